"""Marian models of Hugging Face's transformers: the same outputs in both directions, and refusals of all others."""

import json
import os
import pickle
import random
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Run
from foreign_tokenizers import ENGLISH, GERMAN
from known_options import CHOICES, names_an_option
from marian_models import LINES, SHARING, MarianModel, own_log_probs

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.huggingface_export import to_huggingface
from nmtkit.conversion.marian import from_marian
from nmtkit.errors import UserError
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import BOS, EOS

pytest.importorskip("transformers")
pytest.importorskip("safetensors")
OPTIONS = ImportConfig()


def check_equal_outputs(marian: MarianModel, checkpoint: Checkpoint, seed: int = 1) -> None:
    """Compare the log-probabilities of all tokens after random targets, with padding."""
    target, ids = marian.targets(seed), marian.own_ids(1, checkpoint)
    ours = own_log_probs(checkpoint, ids[target])[..., ids]
    theirs = marian.log_probs(target)
    assert torch.isneginf(ours).equal(torch.isneginf(theirs))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def check_equal(a: Checkpoint, b: Checkpoint) -> None:
    """Two checkpoints have the same model, to the last bit, and the same tokenizers."""
    assert a.model_config == b.model_config
    assert a.weights.keys() == b.weights.keys()
    assert [name for name, weight in a.weights.items() if not np.array_equal(weight, b.weights[name])] == []
    assert (a.joined, a.source_language, a.target_language) == (b.joined, b.source_language, b.target_language)
    for ours, theirs in ((a.source, b.source), (a.target, b.target)):
        assert (ours.kind, ours.vocab, ours.model) == (theirs.kind, theirs.vocab, theirs.model)


# Import ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_an_imported_model_has_the_same_log_probabilities_and_survives_a_round_trip(seed: int, tmp_path: Path) -> None:
    sharing, separate = (*SHARING, "decoder", "none")[seed % 6], seed % 6 > 3
    marian = MarianModel(tmp_path / "marian", seed, sharing, separate)
    imported = from_marian(marian.folder, OPTIONS)
    assert imported.joined is not separate
    check_equal_outputs(marian, imported)
    to_huggingface(imported, tmp_path / "exported")
    check_equal(imported, from_marian(tmp_path / "exported", OPTIONS))


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before-1.6"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_weights_of_torch_in_any_number_format_are_read(dtype: torch.dtype, old: bool, tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=3, sharing="all")
    marian.write_pickled(dtype, old=old)
    marian.model.model.encoder.embed_positions.weight.copy_(marian.model.model.encoder.embed_positions.create_weight())
    marian.model.model.decoder.embed_positions.weight.copy_(marian.model.model.decoder.embed_positions.create_weight())
    check_equal_outputs(marian, from_marian(marian.folder, OPTIONS))


def write_shards(marian: MarianModel, pickled: bool) -> Path:
    """Write the weights in several files, as transformers does; return the index. Old releases pickled them."""
    (marian.folder / "model.safetensors").unlink()
    if not pickled:
        marian.model.save_pretrained(marian.folder, max_shard_size=2000)
        return marian.folder / "model.safetensors.index.json"
    weights = marian.model.state_dict()
    files = {name: f"pytorch_model-0000{1 + number % 2}-of-00002.bin" for number, name in enumerate(weights)}
    for file in set(files.values()):
        torch.save({name: weights[name] for name, place in files.items() if place == file}, marian.folder / file)
    index = marian.folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return index


@pytest.mark.parametrize("pickled", [False, True])
def test_weights_in_shards_are_read(pickled: bool, tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=3)
    whole = from_marian(marian.folder, OPTIONS)
    index = write_shards(marian, pickled)
    assert len(set(json.loads(index.read_text())["weight_map"].values())) > 1
    check_equal(from_marian(marian.folder, OPTIONS), whole)


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("../marian/config.json", "is not a file in this folder"),
        ("/etc/passwd", "is not a file in this folder"),
        ("other.bin", "other.bin, listed in pytorch_model.bin.index.json, is missing"),
        (3, "damaged"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(place: object, named: str, tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=3)
    index = write_shards(marian, pickled=True)
    content = json.loads(index.read_text())
    content["weight_map"]["model.decoder.layers.0.fc1.weight"] = place
    content["weight_map"]["other"] = place
    index.write_text(json.dumps(content))
    with pytest.raises(UserError, match=named):
        from_marian(marian.folder, OPTIONS)


def test_beam_search_of_transformers_finds_outputs_with_the_same_log_probability(tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=5)
    checkpoint = from_marian(marian.folder, OPTIONS)
    pad, ids = marian.model.config.pad_token_id, marian.own_ids(1, checkpoint)
    found = marian.model.generate(
        **marian.batch(),
        **{"num_beams": 4, "max_new_tokens": 12, "bad_words_ids": [[pad]], "forced_eos_token_id": None},
        **{"length_penalty": 0.0, "renormalize_logits": True},
        **{"output_scores": True, "return_dict_in_generate": True},
    )
    sequences = found.sequences
    scores = own_log_probs(checkpoint, ids[sequences])[:, :-1]
    chosen = scores.gather(2, ids[sequences[:, 1:]].unsqueeze(2)).squeeze(2)
    total = chosen.masked_fill(sequences[:, 1:] == pad, 0.0).sum(1)
    torch.testing.assert_close(total, found.sequences_scores, rtol=0, atol=1e-4)


def test_shared_matrices_ignore_the_size_of_the_target_vocabulary_like_transformers(tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=2, sharing="all", decoder_vocab_size=10**4)
    imported = from_marian(marian.folder, OPTIONS)
    target, ids = marian.targets(1), marian.own_ids(1, imported)
    ours = own_log_probs(imported, ids[target])[..., ids]
    torch.testing.assert_close(ours, marian.log_probs(target), rtol=0, atol=1e-4)


def test_ids_without_a_piece_keep_their_rows(tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=1)
    ids = json.loads((marian.folder / "vocab.json").read_text())
    lost = marian.names[0][7]
    (marian.folder / "vocab.json").write_text(json.dumps({piece: i for piece, i in ids.items() if piece != lost}))
    checkpoint = from_marian(marian.folder, OPTIONS)
    marian.names[0][7] = "<unused7>"
    check_equal_outputs(marian, checkpoint)


# Export ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, *CHOICES], ids=str)
def test_an_exported_model_has_the_same_log_probabilities_in_transformers_or_the_option_is_refused(
    changes: dict[str, Any], make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    from transformers import MarianMTModel, MarianTokenizer

    checkpoint = make_checkpoint(**changes)
    try:
        to_huggingface(checkpoint, tmp_path / "exported")
    except UserError as error:
        assert (names_an_option(error, changes), list(tmp_path.iterdir())) == (True, [])  # noqa: PT017
        return
    model: Any = MarianMTModel.from_pretrained(tmp_path / "exported")
    tokenizer: Any = MarianTokenizer.from_pretrained(tmp_path / "exported")
    assert not model.training
    names = {BOS: "<pad>", EOS: "</s>"}
    ids = [4, 9, 17, 5, 30]
    ours = own_log_probs(checkpoint, torch.tensor([[BOS, *ids]] * len(LINES)))
    order = torch.tensor(
        [tokenizer.encoder[names.get(i, piece)] for i, piece in enumerate(checkpoint.target.vocab.pieces)]
    )
    with torch.no_grad():
        batch = tokenizer(LINES[:1] + LINES[2:], return_tensors="pt", padding=True)  # here, a tag is no piece
        inputs = order[torch.tensor([[BOS, *ids]] * (len(LINES) - 1))]
        theirs = model(**batch, decoder_input_ids=inputs).logits.log_softmax(-1)[..., order]
    kept = [i for i in range(len(order)) if i not in (0, BOS)]
    torch.testing.assert_close(ours[[0, 2, 3]][..., kept], theirs[..., kept], rtol=0, atol=1e-4)


def test_models_that_marian_cannot_express_are_refused(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    segmented = SpaceTokenizer(checkpoint.source.vocab)
    with pytest.raises(UserError, match="tokenizer space"):
        to_huggingface(replace(checkpoint, source=segmented, target=segmented), tmp_path / "exported")
    with pytest.raises(UserError, match="heads of width 64"):
        to_huggingface(make_checkpoint(d_k=64), tmp_path / "exported")


# The command -----------------------------------------------------------------------------------------------------


def test_the_command_names_the_format_and_the_next_command(run_here: Run, tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=1)
    marian.edit("generation_config.json", num_beams=6, length_penalty=0.8, max_length=32)
    done = run_here("nmt-import", marian.folder, "--output", tmp_path / "a.pt", "--target-lang", "nds")
    assert done.returncode == 0, done.stderr
    assert b"is a Hugging Face Marian model" in done.stderr
    search = "--beam 6 --length-penalty-form power --length-penalty 0.8 --max-len-a 0 --max-len-b 30"
    assert search.encode() in done.stderr
    checkpoint = load_checkpoint(tmp_path / "a.pt")
    assert (checkpoint.source_language, checkpoint.target_language) == ("en", "nds")
    assert checkpoint.search["allow_unknown"]
    translated = run_here("nmt-generate", "--checkpoint", tmp_path / "a.pt", "--device", "cpu", input=b"the dog runs\n")
    assert (translated.returncode, translated.stdout.count(b"\n")) == (0, 1)
    exported = run_here("nmt-export", tmp_path / "a.pt", "--to", "huggingface", "--output", tmp_path / "again")
    assert exported.returncode == 0, exported.stderr
    again = run_here("nmt-import", tmp_path / "a.pt", "--output", tmp_path / "b.pt")
    assert (again.returncode, again.stderr.count(b"is an nmtkit checkpoint")) == (2, 1)


@pytest.mark.slow
def test_a_model_is_fine_tuned_with_the_logged_options_and_exported_again(run_here: Run, tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=1)
    done = run_here("nmt-import", marian.folder, "--output", tmp_path / "a.pt")
    for language, text in (("en", ENGLISH), ("de", GERMAN)):
        for split, times in (("train", 50), ("valid", 2)):
            (tmp_path / f"{split}.{language}").write_text("\n".join(text * times) + "\n")
    prefixes = ("--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid")
    vocabulary = ("--vocab-from", tmp_path / "a.pt", "--destdir", tmp_path / "data")
    assert run_here("nmt-preprocess", "-s", "en", "-t", "de", *prefixes, *vocabulary).returncode == 0
    logged = done.stderr.decode().partition("nmt-train DATASET ")[2].splitlines()[0]
    limits = "--max-updates 150 --batch-tokens 400 --max-tokens 400 --warmup-updates 50 --device cpu --threads 1"
    folders = (tmp_path / "data", "--save-dir", tmp_path / "run")
    trained = run_here("nmt-train", *folders, *shlex.split(logged), *limits.split())
    assert trained.returncode == 0, trained.stderr
    checkpoint = load_checkpoint(tmp_path / "run/checkpoint_last.pt")
    to_huggingface(checkpoint, tmp_path / "exported")
    check_equal(checkpoint.without_training(), from_marian(tmp_path / "exported", OPTIONS))
    marian.model = type(marian.model).from_pretrained(tmp_path / "exported")
    check_equal_outputs(marian, checkpoint)


class Foreign:
    """A class that weights_only refuses."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("executed",))


def pickled(content: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(content, folder / "pytorch_model.bin", pickle_module=pickle)

    return write


def changed(file: str, **values: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return write


def without_target_embeddings(folder: Path) -> None:
    """The model has an output matrix of its own, which is no embedding."""
    from safetensors.torch import load_file, save_file

    path, source = folder / "model.safetensors", "model.encoder.embed_tokens.weight"
    weights = load_file(path)
    matrices = ("lm_head.weight", "model.shared.weight", "model.decoder.embed_tokens.weight", source)
    (matrix, *_) = [weights.pop(name) for name in matrices if name in weights]
    save_file({**weights, "lm_head.weight": matrix + 1, source: matrix}, path)
    changed("config.json", tie_word_embeddings=False, share_encoder_decoder_embeddings=False)(folder)


def positions_without_a_width(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    positions = {f"model.{stack}.embed_positions.weight": torch.empty(10**12, 0) for stack in ("encoder", "decoder")}
    save_file(load_file(path) | positions, path)


def content(file: str, data: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / file).write_bytes(data)

    return write


def removed(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "pre-norm": (changed("config.json", normalize_before=True), "normalize_before is True"),
    "activation": (changed("config.json", activation_function="gelu_new"), "activation_function is 'gelu_new'"),
    "heads": (changed("config.json", decoder_attention_heads=1, encoder_attention_heads=2), "attention_heads differ"),
    "start": (changed("generation_config.json", decoder_start_token_id=5), "decoder_start_token_id is 5"),
    "quantized": (changed("config.json", quantization_config={"bits": 8}), "quantization_config"),
    "other model": (changed("config.json", model_type="bart"), "models of type bart are not supported"),
    "layers": (changed("config.json", encoder_layers=9), "is missing"),
    "text for a number": (changed("config.json", d_model="6"), "marian"),
    "sampling": (changed("tokenizer_config.json", sp_model_kwargs={"nbest_size": 5}), "sp_model_kwargs"),
    "languages": (changed("tokenizer_config.json", source_lang="de"), "--source-lang"),
    "same id": (changed("vocab.json", new=3), "vocab.json"),
    "large id": (changed("vocab.json", new=10**9), "not below"),
    "no eos": (content("vocab.json", b'{"<unk>": 1}'), "eos_token_id is 0, not the id of </s>"),
    "config": (content("config.json", b"{"), "config.json is not JSON"),
    "positions": (positions_without_a_width, "positions do not have the width"),
    "no target embeddings": (without_target_embeddings, "the weight decoder.embed_tokens.weight is missing"),
    "weights": (content("model.safetensors", b"\xff" * 100), "model.safetensors is damaged"),
    "spm": (content("source.spm", b"nonsense"), "not a SentencePiece model"),
    "no weights": (removed("model.safetensors"), "pytorch_model.bin"),
    "code": (pickled({"a": Foreign()}), "nmtkit does not load"),
    "no tensors": (pickled([1, 2]), "weights by name"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MarianModel(tmp_path_factory.mktemp("sound") / "marian", seed=1).folder


@pytest.mark.parametrize("case", REFUSED)
def test_damaged_hostile_and_unsupported_folders_are_refused_in_one_line(
    case: str, sound: Path, run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, named = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "marian"
    shutil.copytree(sound, folder)
    damage(folder)
    done = run_here("nmt-import", folder, "--output", tmp_path / "a.pt", "--quiet")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
    assert named in done.stderr.decode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marian"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.json", "source.spm"])
def test_a_truncated_file_is_refused(name: str, sound: Path, tmp_path: Path) -> None:
    choose = random.Random(name)
    folder = tmp_path / "marian"
    shutil.copytree(sound, folder)
    whole = (sound / name).read_bytes()
    for _ in range(4):
        (folder / name).write_bytes(whole[: choose.randrange(len(whole) - 8)])
        with pytest.raises(UserError):
            from_marian(folder, OPTIONS)

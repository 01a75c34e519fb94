"""Imported checkpoints of fairseq compute what transformers computes with the same weights, and run no code."""

import argparse
import json
import os
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Run
from fairseq_objects import FairseqObjects, bleu_state, unused_weights
from foreign_models import FsmtModel, PreNormModel, fairseq_batch, log_probs_of, renormalized
from foreign_tokenizers import ENGLISH, GERMAN, train_model
from forged import archive_of, members_of
from sentencepiece import SentencePieceProcessor

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fairseq import from_fairseq
from nmtkit.conversion.fairseq_tokenizers import read_dictionary
from nmtkit.conversion.fsmt import from_fsmt
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError

pytest.importorskip("transformers")
pytest.importorskip("sacremoses")
pytest.importorskip("safetensors")
SHARING = ("none", "decoder", "all")
LANGUAGES = ImportConfig(source_lang="en", target_lang="de")


@pytest.mark.parametrize("seed", range(9))
def test_log_probabilities_equal_those_of_the_same_weights_in_transformers(seed: int, tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", seed, SHARING[seed % 3])
    source, target = model.files.vocabs
    batch = fairseq_batch((len(source), len(target)), seed)
    expected = renormalized(model.logits(*batch))
    for old in (False, True):
        checkpoint = from_fairseq(model.write_fairseq(tmp_path / f"old-{old}", old=old), ImportConfig())
        torch.testing.assert_close(log_probs_of(checkpoint, *batch), expected, rtol=0, atol=1e-4)
        assert (checkpoint.source_language, checkpoint.target_language) == ("en", "de")
        assert checkpoint.model_config.to_dict()["dropout"] == 0.25


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("learned", [False, True])
def test_pre_norm_models_compute_the_same(seed: int, learned: bool, tmp_path: Path) -> None:
    model = PreNormModel(seed, learned, size=19)
    checkpoint = from_fairseq(model.write_fairseq(tmp_path / "model"), LANGUAGES)
    batch = fairseq_batch((19, 19), seed)
    torch.testing.assert_close(log_probs_of(checkpoint, *batch), renormalized(model.logits(*batch)), rtol=0, atol=1e-4)
    options = checkpoint.model_config.to_dict()
    assert (options["norm"], options["share_embeddings"], checkpoint.joined) == ("pre", "all", True)
    assert (options["positions"], options["max_positions"]) == (("learned", 30) if learned else ("fairseq", 512))


# Tokenizers ------------------------------------------------------------------------------------------------------


def test_a_model_with_codes_translates_raw_text_like_the_same_model_of_transformers(tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", 1)
    checkpoints = (
        from_fsmt(model.folder, ImportConfig()),
        from_fairseq(model.write_fairseq(tmp_path / "model"), ImportConfig()),
    )
    translations = []
    for number, checkpoint in enumerate(checkpoints):
        save_checkpoint(tmp_path / f"{number}.pt", checkpoint)
        adopted = load_checkpoint(tmp_path / f"{number}.pt")
        assert [adopted.source.kind, adopted.target.kind] == ["moses-bpe", "moses-bpe"]
        translator = Translator.from_checkpoint(tmp_path / f"{number}.pt", device="cpu", precision="fp32")
        translations.append(translator.translate(list(ENGLISH), beam=2, max_len_a=0, max_len_b=20))
    assert translations[0] == translations[1]
    assert checkpoints[0].source.encode(ENGLISH) == checkpoints[1].source.encode(ENGLISH)


def word_model(tmp_path: Path) -> Path:
    return PreNormModel(1, False, size=19).write_fairseq(tmp_path / "model")


def test_without_codes_text_is_segmented_already(tmp_path: Path) -> None:
    checkpoint = from_fairseq(word_model(tmp_path), LANGUAGES)
    assert (checkpoint.source.kind, checkpoint.source is checkpoint.target) == ("space", True)
    assert checkpoint.source.encode(["w0 w14 <s> word"]) == [[4, 18, 1, 1]]


@pytest.mark.parametrize("is_named", [False, True])
def test_a_sentencepiece_model_segments_text_into_pieces_of_the_dictionary(is_named: bool, tmp_path: Path) -> None:
    content = train_model(ENGLISH + GERMAN)
    processor = SentencePieceProcessor(model_proto=content)
    pieces = [processor.id_to_piece(i) for i in range(3, len(processor))]
    path = PreNormModel(1, False, size=4 + len(pieces)).write_fairseq(tmp_path / "model")
    for language in ("en", "de"):
        (path.parent / f"dict.{language}.txt").write_text("".join(f"{piece} 1\n" for piece in reversed(pieces)))
    name = path.parent / ("my.model" if is_named else "sentencepiece.bpe.model")
    name.write_bytes(content)
    (path.parent / "codes").mkdir()
    options = ImportConfig(source_lang="en", target_lang="de", spm_model=(name,) if is_named else ())
    checkpoint = from_fairseq(path, options)
    (ids,) = checkpoint.source.encode(ENGLISH[:1])
    assert checkpoint.source.vocab.to_pieces(ids) == processor.encode(ENGLISH[0], out_type=str)
    assert checkpoint.target.decode(ids) == ENGLISH[0]
    assert checkpoint.joined


def test_a_dictionary_has_its_pieces_in_order() -> None:
    lines = ["the 9", "a  2", "<s> 1 #fairseq:overwrite", "word 3", "the 1 #fairseq:overwrite", "madeupword0000 0"]
    pieces = ["the#4", "a ", "<s>#6", "word", "the", "madeupword0000"]
    assert read_dictionary("\n".join([*lines, ""]).encode()).pieces[4:] == pieces


@pytest.mark.parametrize("text", ["word", "word x", "a 1\na 2", "<unk> 4", ""])
def test_a_malformed_dictionary_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^line \d"):
        read_dictionary(text.encode())


def test_dictionaries_and_codes_can_be_elsewhere(tmp_path: Path) -> None:
    path = FsmtModel(tmp_path / "fsmt", 1).write_fairseq(tmp_path / "model")
    beside = from_fairseq(path, ImportConfig())
    (tmp_path / "else").mkdir()
    names = ("dict.en.txt", "dict.de.txt", "bpecodes")
    source, target, codes = ((path.parent / name).rename(tmp_path / "else" / name) for name in names)
    with pytest.raises(UserError, match=r"dict\.en\.txt is missing: give both dictionaries with --dict"):
        from_fairseq(path, ImportConfig())
    named = from_fairseq(path, ImportConfig(dict=(source, target), bpe_codes=codes))
    assert (named.source.model, named.target.vocab) == (beside.source.model, beside.target.vocab)
    with pytest.raises(UserError, match="give two dictionaries"):
        from_fairseq(path, ImportConfig(dict=(source,)))
    with pytest.raises(UserError, match="mutually exclusive"):
        from_fairseq(path, ImportConfig(dict=(source, target), bpe_codes=codes, spm_model=(codes,)))
    with pytest.raises(UserError, match="but the vocabulary has"):
        from_fairseq(path, ImportConfig(dict=(source, source), bpe_codes=codes))


# What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arch": "fconv_iwslt_de_en"}, "the architecture 'fconv_iwslt_de_en' is not supported"),
        ({"task": "multilingual_translation"}, "the task 'multilingual_translation' is not supported"),
        ({"adaptive_softmax_cutoff": "1,2"}, "the option adaptive_softmax_cutoff is not supported"),
        ({"decoder_embed_dim": 99}, "encoder_embed_dim and decoder_embed_dim differ"),
        ({"activation_fn": "gelu_accurate"}, "the activation 'gelu_accurate' is not supported"),
        (
            {"encoder_normalize_before": True, "decoder_normalize_before": True},
            "the weight encoder.layer_norm.weight is missing",
        ),
        ({"encoder_layers": 99}, "is missing"),
        ({"source_lang": "de"}, "give --source-lang and --target-lang"),
    ],
)
def test_models_that_nmtkit_lacks_are_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = FsmtModel(tmp_path / "fsmt", 2).write_fairseq(tmp_path / "model", **changes)
    with pytest.raises(UserError, match=words) as error:
        from_fairseq(path, ImportConfig())
    assert "\n" not in str(error.value)


class Runs:
    """A pickle that calls a function when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def imported(content: Any, path: Path, **options: Any) -> Checkpoint:
    torch.save(content, path, **options)
    return from_fairseq(path, LANGUAGES)


@pytest.mark.parametrize("is_zip", [True, False])
def test_no_code_of_a_checkpoint_runs(is_zip: bool, tmp_path: Path) -> None:
    path, marker = word_model(tmp_path), tmp_path / "marker"
    content = torch.load(path, weights_only=False)
    for function, arguments in (
        (os.system, (f"touch {marker}",)),
        (os.mkdir, (str(marker),)),
        (eval, (f"open({str(marker)!r}, 'w')",)),
        (Path.touch, (marker,)),
    ):
        hostile = Runs(function, *arguments)
        for place in ({"extra_state": hostile}, {"args": hostile}, {"args": argparse.Namespace(arch=hostile)}):
            with pytest.raises(UserError, match="which nmtkit does not load") as error:
                imported(content | place, path, _use_new_zipfile_serialization=is_zip)
            assert not marker.exists()
            assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"zipfile\.ZipInfo"):
        imported(content | {"task_state": zipfile.ZipInfo()}, path)


def test_scalars_of_numpy_among_the_statistics_are_ignored(tmp_path: Path) -> None:
    path = word_model(tmp_path)
    content = torch.load(path, weights_only=False)
    state = {"best": np.float64(3.5), "val_loss": np.float32(4), "epoch": np.int64(2)}
    for is_zip in (True, False):
        assert imported(content | {"extra_state": state}, path, _use_new_zipfile_serialization=is_zip).joined


@pytest.mark.parametrize("is_zip", [True, False])
def test_other_objects_that_trainers_store_are_ignored(
    is_zip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = word_model(tmp_path)
    content = torch.load(path, weights_only=False)
    expected = from_fairseq(path, LANGUAGES).weights
    for extra in (bleu_state(), FairseqObjects(monkeypatch).meters()):
        weights = imported(content | {"extra_state": extra}, path, _use_new_zipfile_serialization=is_zip).weights
        assert [name for name in expected if not np.array_equal(weights[name], expected[name])] == []


def test_weights_for_a_fused_kernel_are_ignored(tmp_path: Path) -> None:
    path = word_model(tmp_path)
    content = torch.load(path, weights_only=False)
    expected = from_fairseq(path, LANGUAGES).weights
    copies = unused_weights(content["model"])
    assert len(copies) == 8 * len([name for name in content["model"] if re.match(r"encoder\..*fc1.weight", name)])
    weights = imported(content | {"model": {**content["model"], **copies}}, path).weights
    assert [name for name in expected if not np.array_equal(weights[name], expected[name])] == []
    decoder = {name.replace("encoder", "decoder"): weight for name, weight in copies.items()}
    with pytest.raises(UserError, match=r"decoder.* has no counterpart"):
        imported(content | {"model": {**content["model"], **decoder}}, path)


@pytest.mark.parametrize("whole", [True, False])
def test_options_are_read_from_nodes_of_omegaconf(whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = FsmtModel(tmp_path / "fsmt", 1).write_fairseq(tmp_path / "model", dropout=0.4)
    expected = from_fairseq(path, ImportConfig())
    content = torch.load(path, weights_only=False)
    model = vars(content["cfg"]["model"]) if whole else content["cfg"]["model"]
    cfg = {**content["cfg"], "model": model, "optimization": {"lr": [0.1], "update_freq": [1]}}
    torch.save(content | {"cfg": FairseqObjects(monkeypatch).config(cfg)}, path)
    checkpoint = from_fairseq(path, ImportConfig())
    assert checkpoint.model_config == expected.model_config
    assert checkpoint.model_config.to_dict()["dropout"] == 0.4
    assert (checkpoint.source_language, checkpoint.target_language) == ("en", "de")


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (torch.zeros(3, dtype=torch.int8), "is torch.int8: nmtkit imports only floating-point weights"),
        (torch.full((1,), torch.nan), "the weights do not fit the model"),
        (torch.nan, "contains NaN or infinity"),
        ("text", "is not a tensor"),
    ],
)
def test_a_weight_that_is_not_as_expected_is_refused_by_name(weight: Any, words: str, tmp_path: Path) -> None:
    path = word_model(tmp_path)
    content = torch.load(path, weights_only=False)
    name = "encoder.layers.0.fc1.bias"
    content["model"][name] = content["model"][name] * weight if isinstance(weight, float) else weight
    with pytest.raises(UserError, match=words):
        imported(content, path)


EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.output_projection.weight")


@pytest.mark.parametrize("name", EMBEDDINGS)
@pytest.mark.parametrize(
    ("options", "shared"),
    [
        ({}, ()),
        ({"share_decoder_input_output_embed": True}, EMBEDDINGS[1:]),
        ({"share_all_embeddings": True}, EMBEDDINGS),
    ],
)
def test_a_matrix_may_be_missing_or_must_be_equal_if_it_is_shared(
    options: dict[str, Any], shared: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    path = FsmtModel(tmp_path / "fsmt", 2, "all").write_fairseq(tmp_path / "model", **options)
    whole = from_fairseq(path, ImportConfig()).weights
    content = torch.load(path, weights_only=False)
    matrix = content["model"].pop(name)
    torch.save(content, path)
    if name in shared:
        weights = from_fairseq(path, ImportConfig()).weights
        assert [other for other in whole if not np.array_equal(weights[other], whole[other])] == []
        content["model"][name] = matrix + 1
        torch.save(content, path)
        with pytest.raises(UserError, match=f"{name}.* differ, but the options"):
            from_fairseq(path, ImportConfig())
    else:
        with pytest.raises(UserError, match=f"the weight {name} is missing"):
            from_fairseq(path, ImportConfig())


def test_one_changed_bit_of_a_weight_is_refused(tmp_path: Path) -> None:
    path = word_model(tmp_path)
    weight = next(iter(torch.load(path, weights_only=False)["model"].values())).numpy().tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(weight) + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="checksum"):
        from_fairseq(path, LANGUAGES)


def test_a_compressed_checkpoint_is_refused(tmp_path: Path) -> None:
    path = word_model(tmp_path)
    path.write_bytes(archive_of(members_of(path.read_bytes()), zipfile.ZIP_DEFLATED))
    with pytest.raises(UserError, match=r"model\.pt: compressed"):
        from_fairseq(path, LANGUAGES)


@pytest.mark.parametrize("content", [None, {}, {"model": {}}, {"model": [], "args": {"arch": "transformer"}}])
def test_other_files_of_torch_are_refused(content: Any, tmp_path: Path) -> None:
    path = word_model(tmp_path)
    with pytest.raises(UserError) as error:
        imported(content, path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_damaged_file_is_refused_or_read_and_never_crashes(is_zip: bool, tmp_path: Path) -> None:
    path = word_model(tmp_path)
    torch.save(torch.load(path, weights_only=False), path, _use_new_zipfile_serialization=is_zip)
    whole, choose = path.read_bytes(), random.Random(1)
    for trial in range(30):
        damaged = bytearray(whole[: choose.randrange(len(whole))] if trial % 2 else whole)
        for _ in range(trial % 4 if damaged else 0):
            damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        path.write_bytes(damaged)
        try:
            from_fairseq(path, LANGUAGES)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_the_command_imports_a_checkpoint_with_dictionaries_from_elsewhere(run_here: Run, tmp_path: Path) -> None:
    path = FsmtModel(tmp_path / "fsmt", 1).write_fairseq(tmp_path / "model")
    dictionaries = [(path.parent / name).rename(tmp_path / name) for name in ("dict.en.txt", "dict.de.txt")]
    command = ("nmt-import", path, "--output", tmp_path / "adopted.pt")
    missing = run_here(*command)
    assert (missing.returncode, len(missing.stderr.splitlines())) == (2, 2), missing.stderr  # with the format's name
    assert run_here(*command, "--dict", dictionaries[0]).returncode == 2
    done = run_here(*command, "--dict", *dictionaries)
    assert done.returncode == 0, done.stderr
    adopted = load_checkpoint(tmp_path / "adopted.pt")
    assert (adopted.source.kind, adopted.search["allow_unknown"]) == ("moses-bpe", False)
    settings = json.dumps({"dict": [str(name) for name in dictionaries]})
    (tmp_path / "options.json").write_text(settings)
    assert run_here(*command, "--config", tmp_path / "options.json").returncode == 0

"""Imported FSMT models compute what transformers computes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_models import FsmtModel, fairseq_batch, log_probs_of, renormalized
from foreign_tokenizers import ENGLISH

from nmtkit.checkpoint import load_checkpoint, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fsmt import from_fsmt
from nmtkit.decoding.config import EngineConfig, SearchConfig
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("sacremoses")
pytest.importorskip("safetensors")
SHARING = ("none", "decoder", "all")


@pytest.mark.parametrize("seed", range(8))
def test_log_probabilities_equal_those_of_transformers(seed: int, tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", seed, SHARING[seed % 3])
    if seed % 4 == 3:
        (model.folder / "model.safetensors").unlink()
        model.write("pytorch_model.bin")
    checkpoint = from_fsmt(model.folder, ImportConfig())
    source, target = model.files.vocabs
    batch = fairseq_batch((len(source), len(target)), seed)
    expected = renormalized(model.logits(*batch))
    torch.testing.assert_close(log_probs_of(checkpoint, *batch), expected, rtol=0, atol=1e-4)
    tied = SHARING[seed % 3]
    options = checkpoint.model_config.to_dict()
    assert (options["share_embeddings"], options["dropout"], options["positions"]) == (tied, 0.25, "fairseq")
    assert (checkpoint.source_language, checkpoint.target_language) == ("en", "de")


def test_positions_that_transformers_trained_are_imported_as_learned_positions(tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", 4, "all")
    for stack in (model.model.model.encoder, model.model.model.decoder):
        stack.embed_positions.weight.data += 0.01 * torch.randn(stack.embed_positions.weight.shape)
    model.write()
    checkpoint = from_fsmt(model.folder, ImportConfig())
    source, target = model.files.vocabs
    batch = fairseq_batch((len(source), len(target)), 4)
    torch.testing.assert_close(log_probs_of(checkpoint, *batch), renormalized(model.logits(*batch)), rtol=0, atol=1e-4)
    assert checkpoint.model_config.to_dict()["positions"] == "learned"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rounded_sinusoids_are_recognized(dtype: torch.dtype, tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", 4)
    model.write(dtype=dtype)
    assert from_fsmt(model.folder, ImportConfig()).model_config.to_dict()["positions"] == "fairseq"


def test_a_repeated_merge_has_the_rank_of_its_last_line(tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", 1)
    path = model.folder / "merges.txt"
    once = from_fsmt(model.folder, ImportConfig()).source.encode(ENGLISH)
    merges = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{merge}\n" for merge in [*merges, *merges[:5]]), encoding="utf-8")
    source = from_fsmt(model.folder, ImportConfig()).source
    tokenizer = transformers.FSMTTokenizer.from_pretrained(model.folder)
    encoded = source.encode(ENGLISH)
    assert encoded != once
    for line, ids in zip(ENGLISH, encoded, strict=True):
        pieces = [piece if piece in tokenizer.encoder else "<unk>" for piece in tokenizer.tokenize(line)]
        assert source.vocab.to_pieces(ids) == pieces


@pytest.mark.parametrize("seed", range(3))
def test_greedy_translations_of_text_equal_those_of_transformers(seed: int, tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", seed, SHARING[seed % 3])
    save_checkpoint(tmp_path / "adopted.pt", from_fsmt(model.folder, ImportConfig()))
    checkpoint = load_checkpoint(tmp_path / "adopted.pt")
    ours = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    best = [line.candidates[0] for line in ours.stream(ENGLISH, SearchConfig(beam=1, max_len_a=0, max_len_b=9))]
    tokenizer = transformers.FSMTTokenizer.from_pretrained(model.folder)
    for line, found in zip(ENGLISH, best, strict=True):
        ids = tokenizer(line, return_tensors="pt").input_ids
        theirs = model.model.generate(
            ids, num_beams=1, do_sample=False, max_new_tokens=10, suppress_tokens=[0, 1], forced_eos_token_id=None
        )[0].tolist()[1:]
        theirs = theirs[: theirs.index(2)] if 2 in theirs else theirs[:9]
        pieces = ["<unk>" if i == 3 else checkpoint.target.vocab.pieces[i] for i in theirs]
        assert [token for token in found.tokens if token != "</s>"][:9] == pieces
        assert found.text == tokenizer.decode(theirs, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder_start_token_id": 0}, "decoder_start_token_id is 0"),
        ({"decoder_attention_heads": 7}, "encoder_attention_heads and decoder_attention_heads differ"),
        ({"activation_function": "gelu_new"}, "activation_function is 'gelu_new', only relu, gelu, swish, silu"),
        ({"encoder_layers": 4}, "the weight encoder.layers.3.self_attn.q_proj.weight is missing"),
        ({"decoder_layers": 1}, "the weight decoder.layers.1.encoder_attn.k_proj.bias has no counterpart"),
        ({"langs": ["en"]}, "give --source-lang and --target-lang"),
    ],
)
def test_models_that_nmtkit_lacks_are_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", 3, encoder_layers=3, decoder_layers=2)
    path = model.folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=words) as error:
        from_fsmt(model.folder, ImportConfig())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_source_embedding_is_that_of_the_target_only_if_the_settings_say_so(is_tied: bool, tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", 2, "all")
    whole = from_fsmt(model.folder, ImportConfig()).weights
    weights = model.weights()
    del weights["model.encoder.embed_tokens.weight"]
    (model.folder / "model.safetensors").unlink()
    torch.save(weights, model.folder / "pytorch_model.bin")
    settings = json.loads((model.folder / "config.json").read_text()) | {"tie_word_embeddings": is_tied}
    (model.folder / "config.json").write_text(json.dumps(settings))
    if is_tied:
        imported = from_fsmt(model.folder, ImportConfig()).weights
        assert [name for name in whole if not np.array_equal(imported[name], whole[name])] == []
    else:
        with pytest.raises(UserError, match=r"the weight encoder\.embed_tokens\.weight is missing"):
            from_fsmt(model.folder, ImportConfig())


def shuffled(content: bytes) -> bytes:
    return json.dumps({piece: 2 * number for piece, number in json.loads(content).items()}).encode()


FILES = ("config.json", "vocab-src.json", "vocab-tgt.json", "merges.txt", "model.safetensors")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, lambda content: content[: len(content) // 2]) for name in FILES if name != "merges.txt"),
        *((name, None) for name in FILES),
        ("merges.txt", lambda _: b"a b c\nabc\n"),
        ("vocab-src.json", shuffled),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(
    name: str, change: Callable[[bytes], bytes] | None, tmp_path: Path
) -> None:
    path = FsmtModel(tmp_path / "fsmt", 2).folder / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError) as error:
        from_fsmt(path.parent, ImportConfig())
    assert "\n" not in str(error.value)
    assert "fsmt" in str(error.value)

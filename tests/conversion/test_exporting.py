"""What is exported is the model: by the other engine's own word, and bit by bit on the way back."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Run
from known_options import CHOICES, names_an_option

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.conversion.safetensors import from_safetensors
from nmtkit.decoding.config import EngineConfig, SearchConfig
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary

LINES = ["the dog runs", "a cat on the street", "die katze läuft über die straße", "ein hund"]


@pytest.mark.parametrize("changes", [{}, *CHOICES], ids=str)
def test_ctranslate2_gives_the_same_greedy_tokens_and_log_probabilities_or_the_option_is_refused(
    changes: dict[str, Any], make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    checkpoint = make_checkpoint(**changes)
    try:
        to_ctranslate2(checkpoint, tmp_path / "exported")
    except UserError as error:
        assert (names_an_option(error, changes), list(tmp_path.iterdir())) == (True, [])  # noqa: PT017
        return
    engine = ctranslate2.Translator(str(tmp_path / "exported"), device="cpu", intra_threads=1)
    ours = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    best = [line.candidates[0] for line in ours.stream(LINES, SearchConfig(beam=1, max_len_a=0, max_len_b=9))]
    sources = [checkpoint.source.vocab.to_pieces(ids) for ids in checkpoint.source.encode(LINES)]
    tokens = [list(candidate.tokens[:-1]) for candidate in best]
    theirs = engine.translate_batch(sources, beam_size=1, max_decoding_length=9)
    assert [result.hypotheses[0] for result in theirs] == tokens
    for score, candidate in zip(engine.score_batch(sources, tokens), best, strict=True):
        assert score.log_probs == pytest.approx(candidate.token_log_probs, abs=1e-4)
    assert (tmp_path / "exported" / "spm.model").read_bytes() == checkpoint.source.model


def test_heads_wider_than_ctranslate2_has_are_refused(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    with pytest.raises(UserError, match="heads of width 64"):
        to_ctranslate2(make_checkpoint(d_k=64), tmp_path / "exported")


# The command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def export(run_here: Run, tiny_checkpoint: Path) -> Run:
    """Run nmt-export with the tiny checkpoint."""
    return partial(run_here, "nmt-export", tiny_checkpoint)


def refusal(done: Any) -> str:
    """The one line with which the command refuses."""
    assert (done.returncode, done.stdout) == (2, b""), done.stderr
    (line,) = done.stderr.decode().splitlines()
    return str(line)


def test_a_ctranslate2_export_contains_everything_needed_to_translate(
    export: Run, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    from sentencepiece import SentencePieceProcessor

    done = export("--to", "ctranslate2", "--output", tmp_path / "engine")
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    engine = ctranslate2.Translator(str(tmp_path / "engine"), device="cpu", intra_threads=1)
    pieces = SentencePieceProcessor(model_file=str(tmp_path / "engine/spm.model"))
    theirs = engine.translate_batch(pieces.encode(LINES, out_type=str), beam_size=1, max_decoding_length=9)
    ours = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")
    texts = [pieces.decode(result.hypotheses[0]).replace("\ufffd", "") for result in theirs]  # bytes of no character
    assert texts == ours.translate(LINES, beam=1, max_len_a=0, max_len_b=9)


def test_a_ctranslate2_export_can_be_quantized(export: Run, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    assert export("--to", "ctranslate2", "--quantization", "int8", "--output", tmp_path / "engine").returncode == 0
    engine = ctranslate2.Translator(str(tmp_path / "engine"), device="cpu", intra_threads=1)
    assert engine.compute_type.startswith("int8")


def test_a_safetensors_export_converts_back_to_the_same_checkpoint(
    export: Run, run_here: Run, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    library = pytest.importorskip("safetensors.torch")
    assert export("--to", "safetensors", "--output", tmp_path / "model").returncode == 0
    done = run_here("nmt-export", tmp_path / "model", "--to", "checkpoint", "--output", tmp_path / "back.pt")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back.pt").read_bytes() == tiny_checkpoint.read_bytes()
    tensors = library.load_file(tmp_path / "model/model.safetensors")
    weights = load_checkpoint(tiny_checkpoint).weights
    assert tensors.keys() == weights.keys()
    assert all(np.array_equal(tensors[name], weights[name]) for name in weights)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        *("config.json", "model.safetensors", "spm.model", "vocab.txt")
    ]


def test_separate_vocabularies_and_averaged_weights_survive_a_safetensors_round_trip(
    make_checkpoint: Callable[..., Checkpoint], run_here: Run, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    checkpoint = make_checkpoint(share_embeddings="decoder")
    size = len(checkpoint.source.vocab)
    source, target = (
        SpaceTokenizer(Vocabulary([*SPECIALS, *(f"{side}{n}" for n in range(size - len(SPECIALS)))])) for side in "st"
    )
    ema = {name: tensor + 1 for name, tensor in checkpoint.weights.items()}
    save_checkpoint(tmp_path / "a.pt", replace(checkpoint, source=source, target=target, ema=ema))
    for path, to, output in (("a.pt", "safetensors", "model"), ("model", "checkpoint", "b.pt")):
        assert run_here("nmt-export", tmp_path / path, "--to", to, "--output", tmp_path / output).returncode == 0
    back = load_checkpoint(tmp_path / "b.pt")
    assert (back.source.vocab, back.target.vocab) == (source.vocab, target.vocab)
    assert (back.ema, back.optimizer, back.progress) == (None, None, checkpoint.progress)
    assert all(np.array_equal(back.weights[name], ema[name]) for name in ema)


def test_only_an_export_is_replaced_and_only_by_force(export: Run, run_here: Run, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    to_safetensors = partial(export, "--to", "safetensors", "--output", tmp_path / "model")
    (tmp_path / "model").mkdir()
    assert to_safetensors().returncode == 0
    assert "model exists: replace it with --force" in refusal(to_safetensors())
    assert to_safetensors("--force").returncode == 0
    (tmp_path / "model/thesis").touch()
    assert "model exists: choose a different --output" in refusal(to_safetensors())
    assert "exists, and this command did not write all of it" in refusal(to_safetensors("--force"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    checkpoint = partial(export, "--to", "checkpoint", "--output", tmp_path / "model.pt")
    assert checkpoint().returncode == 0
    assert "model.pt exists" in refusal(checkpoint())
    assert checkpoint("--force").returncode == 0
    itself = ("--to", "checkpoint", "--output", tmp_path / "model.pt", "--force")
    assert "is an input and would be overwritten" in refusal(run_here("nmt-export", tmp_path / "model.pt", *itself))
    itself = ("--to", "safetensors", "--output", tmp_path / "model", "--force")
    assert "is an input and would be overwritten" in refusal(run_here("nmt-export", tmp_path / "model", *itself))
    assert "cannot read" in refusal(run_here("nmt-export", tmp_path / "missing.pt", *itself))
    assert "Choose from: int8, ctranslate2, huggingface, safetensors" in refusal(
        run_here("nmt-export", "a.pt", "--output", "b")
    )
    (tmp_path / "model.pt").write_bytes(b"a thesis")
    assert "exists and is not a checkpoint" in refusal(checkpoint("--force"))
    assert (tmp_path / "model.pt").read_bytes() == b"a thesis"
    translated = run_here("nmt-generate", "--checkpoint", tmp_path / "model", input=b"")
    assert f"nmt-export {tmp_path / 'model'} --to checkpoint" in refusal(translated)


@pytest.mark.parametrize("package", ["ctranslate2", "safetensors"])
def test_a_missing_package_is_reported_with_its_install_command(
    package: str, export: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, f"{package}.specs", f"{package}.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    message = refusal(export("--to", package, "--output", tmp_path / "model"))
    assert message == f"nmt-export: this format needs the package {package}: pip install {package}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", None, "without a file model.safetensors"),
        ("config.json", None, "has no config.json"),
        ("model.safetensors", b"not at all", "model.safetensors is damaged"),
        ("config.json", b"[" * 100_000, "not an nmtkit checkpoint"),
        ("config.json", {"version": 99}, "version 99"),
        ("config.json", {"model": {"d_model": 32, "heads": 2}}, "the weights do not fit the model"),
        ("spm.model", b"", "not a SentencePiece model"),
    ],
)
def test_a_folder_that_is_not_an_export_is_refused(
    name: str, content: bytes | dict[str, Any] | None, words: str, export: Run, run_here: Run, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    assert export("--to", "safetensors", "--output", tmp_path / "model").returncode == 0
    path = tmp_path / "model" / name
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    done = run_here("nmt-export", tmp_path / "model", "--to", "checkpoint", "--output", tmp_path / "back.pt")
    assert words in refusal(done)
    assert not (tmp_path / "back.pt").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weight: weight.to(torch.int8), "is int8 where float32 is expected"),
        (lambda weight: weight[:, :1], "has [330, 1] where [330, 16] is expected"),
        (lambda weight: weight.double() * 1e300, "contains NaN or infinity"),  # finite in float64
        (lambda weight: weight * math.nan, "contains NaN or infinity"),
    ],
)
def test_weights_that_do_not_fit_the_model_are_reported_by_name(
    change: Callable[[torch.Tensor], torch.Tensor], words: str, export: Run, run_here: Run, tmp_path: Path
) -> None:
    library = pytest.importorskip("safetensors.torch")
    assert export("--to", "safetensors", "--output", tmp_path / "model").returncode == 0
    weights = library.load_file(tmp_path / "model/model.safetensors")
    name = "target_embedding.weight"
    library.save_file(weights | {name: change(weights[name]).contiguous()}, tmp_path / "model/model.safetensors")
    said = refusal(run_here("nmt-export", tmp_path / "model", "--to", "checkpoint", "--output", tmp_path / "back.pt"))
    assert f"{tmp_path / 'model'}: " in said
    assert f"{name} {words}" in said
    with pytest.raises(UserError) as error:
        from_safetensors(tmp_path / "model")
    assert said == f"nmt-export: {error.value}"
    assert not (tmp_path / "back.pt").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_in_other_floating_point_types_become_float32(
    dtype: torch.dtype, export: Run, run_here: Run, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    library = pytest.importorskip("safetensors.torch")
    assert export("--to", "safetensors", "--output", tmp_path / "model").returncode == 0
    path = tmp_path / "model/model.safetensors"
    library.save_file({name: weight.to(dtype) for name, weight in library.load_file(path).items()}, path)
    assert (
        run_here("nmt-export", tmp_path / "model", "--to", "checkpoint", "--output", tmp_path / "b.pt").returncode == 0
    )
    back = load_checkpoint(tmp_path / "b.pt").weights
    for name, weight in load_checkpoint(tiny_checkpoint).weights.items():
        assert np.array_equal(back[name], torch.from_numpy(weight).to(dtype).float())


@pytest.mark.parametrize("target", ["safetensors", "ctranslate2"])
def test_weights_that_are_not_finite_are_not_exported(
    target: str, make_checkpoint: Callable[..., Checkpoint], run_here: Run, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    weights = {name: weight.copy() for name, weight in checkpoint.weights.items()}
    weights["encoder.0.feed_forward.inner.bias"][3] = math.inf
    save_checkpoint(tmp_path / "a.pt", replace(checkpoint, weights=weights, ema=checkpoint.weights))
    to = ("--to", target, "--output", tmp_path / "exported")
    said = refusal(run_here("nmt-export", tmp_path / "a.pt", "--weights", "trained", *to))
    assert "a.pt: encoder.0.feed_forward.inner.bias contains NaN or infinity" in said
    assert not (tmp_path / "exported").exists()


def test_the_error_for_a_run_folder_suggests_a_checkpoint_in_it(
    make_checkpoint: Callable[..., Checkpoint], run_here: Run, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    save_checkpoint(tmp_path / "checkpoint_12.pt", make_checkpoint())
    done = run_here("nmt-export", tmp_path, "--to", "checkpoint", "--output", tmp_path / "a.pt")
    assert refusal(done).endswith(f"is a folder without a file model.safetensors: use {tmp_path / 'checkpoint_12.pt'}")


def test_options_without_effect_are_refused(export: Run, tmp_path: Path) -> None:
    done = export("--to", "safetensors", "--quantization", "int8", "--output", tmp_path / "model")
    assert "--quantization has no effect with --to safetensors" in refusal(done)

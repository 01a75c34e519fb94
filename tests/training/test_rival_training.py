"""The recurrent and the convolutional model through the commands: trained, resumed, averaged, translated, exported."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import Run
from training_runs import TRAIN, assert_near, assert_same_end, assert_same_rows, finish, metrics, start

from nmtkit.checkpoint import load_checkpoint

COMMON = (
    *("--max-tokens", 200, "--batch-tokens", 400, "--warmup-updates", 20, "--threads", 1, "--log-every", 1),
    *("--precision", "fp32", "--device", "cpu"),
)
RIVALS: dict[str, tuple[object, ...]] = {
    "lstm_small": ("--encoder-layers", 3, "--decoder-layers", 3, "--d-model", 16),
    "conv_small": (
        *("--encoder-convolutions", "1x16,1x20", "--decoder-convolutions", "2x16", "--d-model", 16),
        *("--max-positions", 128),
    ),
}
rivals = pytest.mark.parametrize("arch", RIVALS)
TrainRival = Callable[..., str]


@pytest.fixture
def train_rival(run_here: Run, datasets: dict[str, Path]) -> TrainRival:
    """Train a small model, train_rival(arch, folder, "--max-updates", 3), and return what it wrote to stderr."""

    def run(arch: str, folder: Path, *arguments: object, dataset: Path = datasets["joined"], code: int = 0) -> str:
        options = ("--arch", arch, *RIVALS[arch], *COMMON, *arguments)
        result = run_here("nmt-train", dataset, "--save-dir", folder, *options)
        assert result.returncode == code, result.stderr.decode()
        return result.stderr.decode()

    return run


@rivals
def test_a_resumed_run_ends_as_one_without_a_stop(arch: str, train_rival: TrainRival, tmp_path: Path) -> None:
    options = ("--ema", 0.9, "--dropout", 0.3, "--validate-every", 4, "--valid-bleu")
    train_rival(arch, tmp_path / "straight", *options, "--max-updates", 8)
    for updates in (4, 8):
        train_rival(arch, tmp_path / "resumed", *options, "--max-updates", updates)
    assert_same_end(tmp_path / "straight", tmp_path / "resumed")
    assert [row["update"] for row in metrics(tmp_path / "straight", "valid")] == [4, 8]
    assert all("valid_bleu" in row for row in metrics(tmp_path / "straight", "valid"))


@rivals
def test_two_ranks_train_as_one(arch: str, train_rival: TrainRival, datasets: dict[str, Path], tmp_path: Path) -> None:
    options = ("--dropout", 0.3, "--adam-eps", 1e-6, "--max-updates", 12, "--validate-every", 6)
    train_rival(arch, tmp_path / "one", *options)
    words = (datasets["joined"], "--arch", arch, *RIVALS[arch], *COMMON, *options)
    finish(start(2, TRAIN, *words, "--save-dir", tmp_path / "two"))
    assert_near(tmp_path / "one", tmp_path / "two")


@rivals
@pytest.mark.parametrize("option", ["--activation-checkpointing", "--precision=bf16"])
def test_options_of_computation_leave_the_loss_about_the_same(
    arch: str, option: str, train_rival: TrainRival, tmp_path: Path
) -> None:
    if arch == "lstm_small" and option == "--precision=bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bf16 on this machine, and it is refused")
    train_rival(arch, tmp_path / "plain", "--max-updates", 3)
    train_rival(arch, tmp_path / "other", "--max-updates", 3, option)
    ours, theirs = metrics(tmp_path / "plain", "train"), metrics(tmp_path / "other", "train")
    assert [row["loss"] for row in theirs] == pytest.approx([row["loss"] for row in ours], rel=0.01)
    if option == "--activation-checkpointing":
        assert_same_rows(tmp_path / "plain", tmp_path / "other")


def test_a_recurrent_model_is_refused_where_torch_has_no_lstm_in_bf16(
    train_rival: TrainRival, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    said = train_rival("lstm_small", tmp_path, "--max-updates", 1, "--precision=bf16", code=2)
    assert "this CPU cannot train recurrent models in bf16: use fp32" in said


def dataset_of_copies(folder: Path, run_here: Run) -> Path:
    generator, words = random.Random(1), "abcdefgh"
    for split, pairs in (("train", 2000), ("valid", 50)):
        lines = [" ".join(generator.choices(words, k=generator.randint(1, 4))) + "\n" for _ in range(pairs)]
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text("".join(lines))
    text = ("-s", "en", "-t", "de", "--trainpref", folder / "train", "--validpref", folder / "valid")
    result = run_here("nmt-preprocess", *text, "--destdir", folder / "data", "--tokenizer", "space")
    assert result.returncode == 0, result.stderr.decode()
    return folder / "data"


@rivals
def test_it_learns_to_copy(arch: str, train_rival: TrainRival, run_here: Run, tmp_path: Path) -> None:
    dataset = dataset_of_copies(tmp_path, run_here)
    size = {
        "lstm_small": ("--encoder-layers", 2, "--decoder-layers", 2, "--d-model", 128),
        "conv_small": ("--d-model", 64),
    }
    schedule = ("--lr-schedule", "cosine", "--lr", 5e-3, "--dropout", 0.1, "--max-tokens", 1000, "--batch-tokens", 1000)
    train_rival(arch, tmp_path / "run", *size[arch], *schedule, "--max-updates", 250, dataset=dataset)
    best = tmp_path / "run" / "checkpoint_last.pt"
    source = (tmp_path / "valid.en").read_bytes()
    result = run_here("nmt-generate", "--checkpoint", best, input=source)
    copied = sum(a == b for a, b in zip(source.splitlines(), result.stdout.splitlines(), strict=True))
    assert copied >= 45


@rivals
def test_checkpoints_are_averaged_searched_scored_and_exported(
    arch: str, train_rival: TrainRival, run_here: Run, tmp_path: Path
) -> None:
    def run(name: str, *arguments: object, code: int = 0) -> bytes:
        result = run_here(name, *arguments, input=b"katlas\n\npel mon kos\n")
        assert result.returncode == code, result.stderr.decode()
        return result.stdout or result.stderr

    train_rival(arch, tmp_path / "run", "--max-updates", 4, "--save-every", 2)
    average = tmp_path / "average.pt"
    run("nmt-average", tmp_path / "run", "--last", 2, "--output", average)
    output = run("nmt-generate", "--checkpoint", average, "--nbest", 2, "--alignment", "--format", "jsonl")
    first, empty, _ = (json.loads(line) for line in output.splitlines())
    assert len(first["hypotheses"]) == 2
    assert all(len(row) == len(first["source_tokens"]) for row in first["hypotheses"][0]["attention"])
    assert empty["hypotheses"][0]["text"] == ""
    (tmp_path / "given").write_bytes(b"KATLAS\n\nKOS MON PEL\n")
    assert len(run("nmt-generate", "--checkpoint", average, "--score", tmp_path / "given").splitlines()) == 3
    newest = tmp_path / "run" / "checkpoint_last.pt"
    assert run("nmt-generate", "--checkpoint", average, "--checkpoint", newest, "--beam", 1).count(b"\n") == 3
    refusal = run("nmt-export", average, "--to", "ctranslate2", "--output", tmp_path / "fast", code=2)
    assert f"not the architecture {load_checkpoint(average).model_config.arch}".encode() in refusal
    refusal = run("nmt-generate", "--checkpoint", average, "--precision", "int8", code=2)
    assert b"--precision int8" in refusal
    pytest.importorskip("safetensors")
    run("nmt-export", average, "--to", "safetensors", "--output", tmp_path / "exported")
    again = tmp_path / "again.pt"
    run("nmt-export", tmp_path / "exported", "--to", "checkpoint", "--output", again)
    assert run("nmt-generate", "--checkpoint", again) == run("nmt-generate", "--checkpoint", average)


def test_a_sentence_with_more_tokens_than_positions_is_refused(train_rival: TrainRival, tmp_path: Path) -> None:
    log = train_rival("conv_small", tmp_path / "run", "--max-positions", 20, code=2)
    assert "--max-positions 20 is too small" in log
    assert "or preprocess with a smaller --max-length" in log

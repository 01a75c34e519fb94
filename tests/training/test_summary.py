"""What a run says before it begins, the time that it foresees, and the dry run, which leaves nothing behind."""

import os
import re
import time
from pathlib import Path

import pytest
import torch
from commands import Train
from training_runs import metrics, refused

from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.training import run_log
from nmtkit.training.config import StopConfig
from nmtkit.training.state import RunState
from nmtkit.training.summary import Pace, describe_model, duration, idle_devices

D, F, W = 8, 12, 20
SMALL = {"encoder_layers": 1, "decoder_layers": 2, "d_model": D, "d_ff": F, "heads": 2}
ATTENTION, FEED_FORWARD, NORM = 4 * D * D + 4 * D, 2 * D * F + F + D, 2 * D


def model(**options: object) -> Transformer:
    return Transformer(TransformerConfig.from_dict({**SMALL, **options}), W, W)


@pytest.mark.parametrize(
    ("options", "embeddings", "output"),
    [
        ({"share_embeddings": "all"}, W * D, 0),
        ({"share_embeddings": "decoder"}, 2 * W * D, 0),
        ({"share_embeddings": "none"}, 2 * W * D, W * D),
        ({"share_embeddings": "all", "positions": "learned", "max_positions": 50}, W * D + 2 * 50 * D, 0),
    ],
)
def test_parameters_are_counted_by_part(options: dict[str, object], embeddings: int, output: int) -> None:
    encoder, decoder = ATTENTION + FEED_FORWARD + 2 * NORM, 2 * (2 * ATTENTION + FEED_FORWARD + 3 * NORM)
    expected = {"embeddings": embeddings, "encoder": encoder, "decoder": decoder, "output": output}
    assert model(**options).count_parameters() == expected
    assert ("output shared" in describe_model(model(**options))) == (output == 0)


@pytest.mark.parametrize(
    ("minutes", "words"),
    [(0, "0 s"), (0.75, "45 s"), (12.51, "12 min 31 s"), (200, "3 h 20 min"), (60, "1 h 0 min"), (3120, "2 d 4 h")],
)
def test_durations_have_two_units(minutes: float, words: str) -> None:
    assert duration(minutes) == words


def test_the_time_left_is_that_of_updates_of_mean_size_to_the_nearest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace(tokens_per_epoch=1000)
    pace.tokens += 10 * 80
    now += 10 * 24  # smaller updates than the mean of 100 tokens, which takes half a minute
    state = RunState(update=60, epoch=2, updates_in_epoch=4, minutes=7.0)
    for stop, expected in (
        (StopConfig(max_updates=100), 20),
        (StopConfig(max_updates=100, max_epochs=3), (2 * 10 - 4) / 2),
        (StopConfig(max_updates=100, max_minutes=9.0), 2),
        (StopConfig(max_updates=55), 0),
    ):
        assert pace.minutes_left(state, stop, updates_per_epoch=10) == pytest.approx(expected)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_the_size_of_a_checkpoint_is_estimated(ema: float, train: Train, tmp_path: Path) -> None:
    sizes = ("--d-model", 128, "--d-ff", 512)
    lines = train(tmp_path, "--max-updates", 1, "--ema", ema, "--freeze", "encoder.*", *sizes).stderr.decode()
    foreseen = re.search(r"checkpoints: about ([\d.]+) MB each", lines)
    assert foreseen
    assert float(foreseen[1]) * 1e6 == pytest.approx((tmp_path / "checkpoint_1.pt").stat().st_size, rel=0.1)


def test_a_run_starts_with_a_summary_and_estimates_the_time_left(train: Train, tmp_path: Path) -> None:
    lines = train(tmp_path, "--max-updates", 12, "--freeze", "encoder.*").stderr.decode()
    for words in (
        r"model: \d+ parameters \(embeddings \d+, encoder \d+, decoder \d+, output shared\), 1-1 layers, d_model 16, "
        r"d_ff 24, 2 heads; \d+ of them are trained",
        r"data: .*joined, en-de, 240 pairs, [\d,]+ source and [\d,]+ target tokens, vocabulary 70",
        r"device: cpu, float32; updates: 0 done, 12 to go, of about 400 target tokens",
        r"checkpoints: about .* each, up to 11 of them in .* \(.* free\)",
        r"plan: \d+ updates an epoch; the next has \d+ target tokens in \d+ micro-batches",
        r"time left: \d+ s",
    ):
        assert re.search(words, lines), words
    assert lines.index("plan: ") < lines.index("update 1 ") < lines.index("time left: ")
    left = [row["minutes_left"] for row in metrics(tmp_path, "train")]
    assert left[0] > 0
    assert left[-1] == 0
    assert "checkpoints: about" in train(tmp_path, "--max-updates", 13).stderr.decode()


def test_the_time_left_is_logged_after_the_first_update_if_that_was_long(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "time left" not in train(tmp_path / "short", "--max-updates", 2).stderr.decode()
    monkeypatch.setattr(run_log, "LONG_UPDATE", 0.0)
    said = train(tmp_path / "long", "--max-updates", 2).stderr.decode()
    assert said.count("time left: ") == 1
    assert said.index("time left: ") < said.index("update 1 |")


# --dry-run


def everything_below(folder: Path) -> dict[Path, tuple[float, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [folder, *folder.rglob("*")]}


def test_a_dry_run_times_an_update_and_leaves_no_files(train: Train, tmp_path: Path) -> None:
    before = everything_below(tmp_path)
    board = tmp_path / "board"
    result = train(tmp_path / "runs" / "run", "--dry-run", "--tensorboard", board, "--max-updates", 1000)
    message = result.stderr.decode()
    assert re.search(r"dry run: an update of \d+ target tokens takes [\d.]+ s \(.* the run about \d+ (s|min)", message)
    assert message.count("plan: ") == 1
    assert "update 1 |" not in message
    assert everything_below(tmp_path) == before


def test_a_dry_run_of_a_resumed_run_does_not_change_it(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2)
    before = everything_below(tmp_path)
    result = train(tmp_path, "--max-updates", 4, "--dry-run")
    assert "resuming after update 2" in result.stderr.decode()
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_the_error_for_a_model_too_large_for_the_memory_gives_its_size(
    options: tuple[object, ...], train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=128, d_ff=1024, heads=2)
    numbers = sum(parameter.numel() for parameter in Transformer(config, 70, 70).parameters())
    monkeypatch.setattr(Transformer, "initialize", lambda self: torch.empty(1 << 60, dtype=torch.uint8))
    result = train(tmp_path / "run", "--d-model", 128, "--d-ff", 1024, *options, code=1)
    (line,) = result.stderr.decode().splitlines()
    assert line.startswith(f"nmt-train: out of memory: the model's {numbers / 1e6:.3g} M parameters, ")
    assert f" take about {16 * numbers / 1e6:.3g} MB: lower --d-model, --d-ff or the number of layers" in line
    assert not (tmp_path / "run").exists()


def test_lack_of_memory_in_the_optimizer_gives_the_same_error(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory (a test's)")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    result = train(tmp_path / "run", code=1)
    assert "nmt-train: out of memory: the model's " in result.stderr.decode().splitlines()[-1]


def test_a_dry_run_refuses_invalid_runs(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(train(tmp_path / "file" / "run", "--dry-run", code=2), "--save-dir", "is not a folder")
    refused(train(tmp_path / "run", "--dry-run", "--freeze", "nothing", code=2), "--freeze nothing")
    refused(train(tmp_path / "run", "--dry-run", "--max-tokens", 5, code=2), "--max-tokens 5")
    train(tmp_path / "run", "--max-updates", 1)
    refused(train(tmp_path / "run", "--dry-run", "--d-ff", 32, code=2), "d_ff is 24, not 32")
    if os.geteuid():  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        refused(train(tmp_path / "closed" / "run", "--dry-run", code=2), "is not writable")


def test_only_updates_with_too_few_micro_batches_give_a_warning_with_the_remedy() -> None:
    assert idle_devices(16, 8, packed=False) is None
    assert idle_devices(8, 8, packed=True) is None
    assert idle_devices(7, 8, packed=True) is not None
    said = idle_devices(7, 8, packed=False)
    assert said is not None
    assert said.startswith("an update has 7 micro-batches for 8 devices")
    assert "--max-tokens" in said
    assert "--batch-tokens" in said

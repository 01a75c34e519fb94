"""What a training run survives: signals, a full disk. The same command resumes it."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import TINY, Run
from patience import PATIENCE
from repository import BIN
from torch import Tensor
from training_runs import DROPOUT, Result, assert_same_end, assert_same_rows, environment, metrics, updates, wait_for

from nmtkit.checkpoint import save_checkpoint
from nmtkit.errors import RunError, UserError
from nmtkit.training.averaging import last_checkpoints
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.validation import Validator

END = 360  # updates of the run that the faults below disturb
VALIDATE, LOG = 20, 4  # every so many updates; before each validation there is a log line
OFTEN = (
    *(*DROPOUT, "--validate-every", VALIDATE, "--valid-bleu", "--save-every", 7, "--log-every", LOG),
    *("--max-updates", END),
)


@pytest.fixture(scope="module")
def undisturbed(datasets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the disturbed ones must end as."""
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run(command(datasets, folder), check=True, capture_output=True, env=environment())
    return folder


def command(datasets: dict[str, Path], save_dir: Path, *more: object) -> list[str]:
    words = (sys.executable, BIN / "nmt-train", datasets["joined"], "--save-dir", save_dir, *TINY, *OFTEN, *more)
    return [str(word) for word in words]


@contextmanager
def running(words: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env=environment())
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def reached(folder: Path, update: int) -> bool:
    """Whether the log of a run has come to an update; a line may be half-written."""
    path = folder / "metrics.jsonl"
    return path.exists() and f'"train", "update": {update // LOG * LOG},' in path.read_text(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_stops_the_run_after_its_update_with_a_checkpoint(
    number: signal.Signals, code: int, undisturbed: Path, datasets: dict[str, Path], tmp_path: Path
) -> None:
    with running(command(datasets, tmp_path)) as process:
        wait_for(lambda: reached(tmp_path, 30), process)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    *_, line = stderr.decode().splitlines()
    done = f"update {updates(tmp_path)[-1]} is done and saved; run the same command to resume"
    assert line == f"nmt-train: {number.name}: {done}"
    subprocess.run(command(datasets, tmp_path), check=True, capture_output=True, env=environment())
    assert_same_end(tmp_path, undisturbed)
    assert_same_rows(tmp_path, undisturbed)


def test_a_checkpoint_that_a_signal_saves_between_fixed_updates_is_not_averaged(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    words = command(datasets, tmp_path, "--save-minutes", 0, "--keep-last", 3)
    with running(words) as process:
        wait_for(lambda: reached(tmp_path, 30), process)
        process.terminate()
        process.communicate(timeout=PATIENCE)
    counted = [update for update in range(1, updates(tmp_path)[-1] + 1) if update % 7 == 0 or update % VALIDATE == 0]
    assert [path.name for path in last_checkpoints(tmp_path, 3)] == [f"checkpoint_{n}.pt" for n in counted[-3:]]


def test_a_checkpoint_that_a_signal_saved_counts_if_it_becomes_the_last_one(
    run_command: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    """Also without a validation split and a log line to come, for which it would be written again anyway."""
    text, data, run = datasets["joined"].parent / "train", tmp_path / "data", tmp_path / "run"
    vocabulary = ("--vocab-from", datasets["joined"])
    assert (
        run_command(
            "nmt-preprocess", "-s", "en", "-t", "de", *vocabulary, "--trainpref", text, "--destdir", data
        ).returncode
        == 0
    )

    def words(end: int) -> list[str]:
        options = ("--save-minutes", 0, "--log-every", 1, "--max-updates", end)
        return [str(word) for word in (sys.executable, BIN / "nmt-train", data, "--save-dir", run, *TINY, *options)]

    with running(words(1_000_000)) as process:
        wait_for(lambda: reached(run, 30), process)
        process.terminate()
        process.communicate(timeout=PATIENCE)
    (saved,) = updates(run)
    with pytest.raises(UserError, match="no checkpoints that --keep-last counts"):
        last_checkpoints(run, 1)
    subprocess.run(words(saved), check=True, capture_output=True, env=environment())
    assert [path.name for path in last_checkpoints(run, 1)] == [f"checkpoint_{saved}.pt"]


@pytest.mark.parametrize(("style", "last_read"), [("plain", "model: "), ("json", '"train"')])
def test_a_run_whose_stderr_has_lost_its_reader_saves_and_exits_with_141(
    style: str, last_read: str, datasets: dict[str, Path], tmp_path: Path
) -> None:
    never = ("--save-every", 1_000_000, "--validate-every", 1_000_000, "--max-updates", 1_000_000)
    with running(command(datasets, tmp_path, *never, "--log-format", style)) as process:
        assert process.stderr
        assert any(last_read in line.decode() for line in iter(process.stderr.readline, b""))
        process.stderr.close()
        assert process.wait(timeout=PATIENCE) == 128 + signal.SIGPIPE
        process.stderr = None  # `running` would read it
    (saved,) = updates(tmp_path)
    assert saved >= (LOG if "train" in last_read else 1)


@pytest.mark.slow
def test_a_validation_interrupted_by_a_signal_is_repeated_on_resume(
    undisturbed: Path, datasets: dict[str, Path], tmp_path: Path
) -> None:
    interrupted = """if True:
        import os, signal
        from nmtkit.training.validation import Validator
        translations = Validator._translations
        def interrupted(self, *arguments):
            os.kill(os.getpid(), signal.SIGTERM)
            return translations(self, *arguments)
        Validator._translations = interrupted
        from nmtkit.cli.train import main
        main()
    """
    words = command(datasets, tmp_path)
    stopped = subprocess.run(
        [words[0], "-c", interrupted, *words[2:]], capture_output=True, env=environment(), check=False
    )
    assert stopped.returncode == 143, stopped.stderr.decode()
    assert updates(tmp_path)[-1] == 20
    assert metrics(tmp_path, "valid") == []
    subprocess.run(words, check=True, capture_output=True, env=environment())
    assert_same_end(tmp_path, undisturbed)
    assert_same_rows(tmp_path, undisturbed)


@pytest.mark.parametrize("computed", [6, 7])
def test_a_signal_near_the_last_update_loses_neither_its_validation_nor_its_log_line(
    computed: int, train: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--max-updates", 7, "--validate-every", 100, "--log-every", 5)
    compute = UpdateGradient.compute

    def signalled(self: UpdateGradient, update: int, *arguments: Any) -> tuple[Tensor, list[float]]:
        if update == computed:  # too late for the ranks to agree on it in this update
            os.kill(os.getpid(), signal.SIGTERM)
        return compute(self, update, *arguments)

    monkeypatch.setattr(UpdateGradient, "compute", signalled)
    stopped = train(*options)
    assert stopped.returncode == 143
    assert b"nmt-train: SIGTERM: update 7 is done and saved" in stopped.stderr
    assert train(*options).returncode == 0
    assert [row["update"] for row in metrics(tmp_path, "train")] == [5, 7]
    assert [row["update"] for row in metrics(tmp_path, "valid")] == [7]
    assert (tmp_path / "checkpoint_best.pt").samefile(tmp_path / "checkpoint_7.pt")


def test_sigusr1_saves_one_checkpoint(
    train: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = UpdateGradient.compute

    def signalled(self: UpdateGradient, update: int, *arguments: Any) -> tuple[Tensor, list[float]]:
        if update == 3:  # too late for the ranks to agree on it in this update
            os.kill(os.getpid(), signal.SIGUSR1)
        return compute(self, update, *arguments)

    monkeypatch.setattr(UpdateGradient, "compute", signalled)
    assert train("--max-updates", 9).returncode == 0
    assert updates(tmp_path) == [4, 9]


@pytest.fixture
def train(run_here: Run, datasets: dict[str, Path], tmp_path: Path) -> Callable[..., Result]:
    def run(*arguments: object) -> Result:
        return run_here("nmt-train", datasets["joined"], "--save-dir", tmp_path, *TINY, *arguments)

    return run


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Numbers of updates at which the disk has no room for a checkpoint."""
    numbers: set[int] = set()

    def save_or_fail(path: Path, checkpoint: Any) -> None:
        if checkpoint.progress["update"] in numbers:
            raise RunError(f"cannot write {path}: No space left on device")
        save_checkpoint(path, checkpoint)

    monkeypatch.setattr("nmtkit.training.save_dir.save_checkpoint", save_or_fail)
    return numbers


def test_a_failed_checkpoint_write_is_retried_at_the_next_save(
    full: set[int], train: Callable[..., Result], tmp_path: Path
) -> None:
    full |= {4, 6, 10}
    result = train("--max-updates", 12, "--save-every", 2)
    assert result.returncode == 0
    warnings = [line for line in result.stderr.decode().splitlines() if "next save tries again" in line]
    assert len(warnings) == 3
    assert all("warning: " in line and "No space left" in line for line in warnings)
    assert updates(tmp_path) == [2, 8, 12]


def test_weights_that_are_not_finite_are_never_saved(train: Callable[..., Result], tmp_path: Path) -> None:
    assert train("--max-updates", 2, "--save-every", 1).returncode == 0
    diverging = ("--lr-schedule", "constant", "--lr", 1e38, "--weight-decay", 10, "--warmup-updates", 1)
    result = train("--max-updates", 6, "--save-every", 1, "--keep-last", 1, *diverging)
    assert result.returncode == 1
    assert b"contains NaN or infinity after update 3: the run has diverged; earlier checkpoints are" in result.stderr
    assert (tmp_path / "checkpoint_2.pt").exists()
    assert not (tmp_path / "checkpoint_3.pt").exists()


def test_a_run_whose_last_validation_is_not_finite_fails(
    train: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmtkit.training.validation.perplexity", lambda nll: nll)
    monkeypatch.setattr(Validator, "_sums", lambda self, *_: [math.nan] * (2 * len(self.batches)))
    result = train("--max-updates", 2)
    assert result.returncode == 1
    assert b"the loss of the last validation, after update 2, is not finite: the run has diverged" in result.stderr
    assert updates(tmp_path) == [2]


@pytest.mark.parametrize(("stopping", "code"), [(False, 1), (True, 143)])
def test_a_failure_of_torchs_compiler_is_one_line(
    stopping: bool, code: int, train: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    class CompileError(RuntimeError):
        __module__ = "torch._inductor.exc"

    def fail(*_: object) -> None:
        if stopping:
            os.kill(os.getpid(), signal.SIGTERM)
        raise CompileError("\nbackend raised:\nC++ compile error\nmuch output")

    monkeypatch.setattr(UpdateGradient, "compute", fail)
    result = train("--max-updates", 2)
    assert result.returncode == code
    assert b"much output" not in result.stderr
    compiling = b"torch cannot compile the model (backend raised: C++ compile error): run"
    assert (b"SIGTERM while compiling: run" if stopping else compiling) in result.stderr.splitlines()[-1]


def test_updates_before_a_failed_validation_are_saved(
    train: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RunError("out of memory for one pair")

    monkeypatch.setattr(Validator, "_sums", fail)
    result = train("--max-updates", 9, "--validate-every", 4)
    assert result.returncode == 1
    assert result.stderr.endswith(b"out of memory for one pair\n")
    assert updates(tmp_path) == [4]


def test_a_beam_too_large_for_the_memory_is_refused_before_the_first_update(
    train: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmtkit.decoding.engine.missing_memory", lambda *_: 10**6)
    for options in (["--dry-run"], []):
        result = train("--max-updates", 2, "--valid-bleu", "--valid-beam", 100_000, *options)
        assert result.returncode == 2
        assert b"(in training --valid-beam)" in result.stderr
    assert updates(tmp_path) == []


def test_metrics_have_no_gap_after_a_temporarily_full_disk(
    train: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_or_fail(path: Path, mode: str = "r", **settings: Any) -> Any:
        if path.name == "metrics.jsonl" and mode == "r+b" and 3 <= len(path.read_bytes().splitlines()) < 5:
            with original(path, "ab") as file:
                file.write(b'{"event": "tra')  # as much as there was room for
            calls.append(mode)
            if len(calls) < 4:
                raise OSError(28, os.strerror(28))
        return original(path, mode, **settings)

    calls: list[str] = []
    original = Path.open
    monkeypatch.setattr(Path, "open", open_or_fail)
    result = train("--max-updates", 12)
    assert result.returncode == 0
    assert result.stderr.decode().count("kept for the next attempt") == 3
    assert [row["update"] for row in metrics(tmp_path, "train")] == list(range(1, 13))

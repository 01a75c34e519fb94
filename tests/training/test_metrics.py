"""Where the numbers of a run go: every one into metrics.jsonl, as the documents have it, and to TensorBoard."""

import errno
import os
import re
from pathlib import Path

import pytest
from commands import Train
from repository import ROOT
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_ndarray
from training_runs import metrics

from nmtkit.data.corpus import Dataset
from nmtkit.training.metrics import MetricsWriter
from nmtkit.training.tensorboard import Board
from nmtkit.training.validation import SAMPLES


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return tmp_path / "board"


def curves(board: Path) -> dict[str, dict[int, object]]:
    """What TensorBoard shows: by tag, a value for each update."""
    events = EventAccumulator(str(board), size_guidance={"tensors": 0}).Reload()
    found: dict[str, dict[int, object]] = {}
    for tag in events.Tags()["tensors"]:
        points = events.Tensors(tag)
        found[tag] = {point.step: make_ndarray(point.tensor_proto).item() for point in points}
        assert len(found[tag]) == len(points), f"{tag}: two values for one update"
    return found


def test_every_number_is_documented_and_every_documented_one_written(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2, "--valid-bleu")
    document = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    both, *documented = (
        {key for row in re.findall(r"^\| (`.*?) \|", table, re.M) for key in re.findall(r"`(\w+)`", row)}
        for table in document.split("| key | unit |")[1:]
    )
    for event, keys in zip(("train", "valid"), documented, strict=True):
        for row in metrics(tmp_path, event):
            assert row.keys() == both | keys


def test_tensorboard_shows_every_number_and_some_sentences(
    train: Train, datasets: dict[str, Path], tmp_path: Path, board: Path
) -> None:
    run = tmp_path / "run"
    options = ("--validate-every", 2, "--valid-bleu", "--tensorboard", board)
    train(run, "--max-updates", 4, *options)
    shown = curves(board)
    names = "loss nll ppl lr gradient_norm tokens_per_second padding waiting peak_memory_gib minutes minutes_left"
    assert {f"train/{name}" for name in names.split()} < shown.keys()
    assert {f"valid/valid_{name}" for name in ("loss", "nll", "ppl", "bleu")} < shown.keys()
    for event in ("train", "valid"):
        for row in metrics(run, event):
            for name, value in row.items():
                if name not in ("event", "update") and value is not None:
                    assert shown[f"{event}/{name}"][row["update"]] == pytest.approx(value, rel=1e-6)

    split, tokenizer = (lambda data: (data.split("valid"), data.source))(Dataset.open(datasets["joined"]))
    texts = {tag.split("/")[1]: values for tag, values in shown.items() if tag.startswith("sentences/")}
    assert len(texts) == SAMPLES
    for line, values in texts.items():
        assert values.keys() == {2, 4}
        number = int(line.removeprefix("line_")) - 1
        for text in values.values():
            assert isinstance(text, bytes)
            source, reference, translation = (row.split(maxsplit=1) for row in text.decode().splitlines())
            assert source == ["source", tokenizer.decode(split.source[number][:-1].tolist())]
            assert reference == ["reference", tokenizer.decode(split.target[number][:-1].tolist())]
            assert translation[0] == "translation"


def test_a_run_that_goes_on_from_an_older_checkpoint_is_shown_once(train: Train, tmp_path: Path, board: Path) -> None:
    run = tmp_path / "run"
    options = ("--validate-every", 2, "--valid-bleu", "--save-every", 2, "--tensorboard", board)
    train(run, "--max-updates", 5, *options)
    for update in (4, 5):
        (run / f"checkpoint_{update}.pt").unlink()
    train(run, "--max-updates", 6, *options)
    shown = curves(board)
    assert sorted(shown["train/loss"]) == [1, 2, 3, 4, 5, 6]
    assert all(sorted(values) == [2, 4, 6] for tag, values in shown.items() if tag.startswith("sentences/"))


def test_the_folder_of_a_run_whose_options_are_taken_over_is_left_to_it(train: Train, tmp_path: Path) -> None:
    first, board = tmp_path / "first", tmp_path / "board"
    train(first, "--max-updates", 1, "--tensorboard", board)
    events = {path: path.read_bytes() for path in board.iterdir()}
    taken_over = ("--config", first / "options.json")
    told = train(tmp_path / "second", *taken_over).stderr.decode()
    assert f"--tensorboard {board} belongs to the run in {first}" in told
    assert {path: path.read_bytes() for path in board.iterdir()} == events
    told = train(tmp_path / "third", *taken_over, "--tensorboard", tmp_path / "own").stderr.decode()
    assert "is of the run" not in told
    assert any((tmp_path / "own").iterdir())
    told = train(first, *taken_over, "--max-updates", 2).stderr.decode()
    assert "is of the run" not in told
    assert len(list(board.iterdir())) == 2


def test_what_is_no_line_of_metrics_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    good = b'{"event": "train", "update": 1}\n'
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(good + b'\xff\x00\n[1]\n{}\n7\n{"update": 2}\n{"update": 1, "los')
    with MetricsWriter(tmp_path, 1, tensorboard=None):
        assert path.read_bytes() == good


def test_a_folder_that_tensorboard_cannot_have_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = train(tmp_path / "run", "--max-updates", 1, "--tensorboard", tmp_path / "file" / "board", code=2)
    assert f"nmt-train: --tensorboard {tmp_path}/file/board: cannot be written" in result.stderr.decode()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the thread that writes ends
def test_a_disk_that_takes_no_more_for_tensorboard_does_not_end_the_run(
    train: Train, tmp_path: Path, board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, records = RecordWriter.write, []

    def write(self: RecordWriter, data: bytes) -> None:
        records.append(data)
        if len(records) > 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self, data)

    monkeypatch.setattr(RecordWriter, "write", write)
    result = train(tmp_path / "run", "--max-updates", 20, "--tensorboard", board)
    assert result.stderr.decode().count(f"--tensorboard {board}: cannot be written (No space left") == 1
    assert len(metrics(tmp_path / "run", "train")) == 20


@pytest.mark.parametrize("junk", [b"[" * 100_000, b"\xff\xfe", b"{}", b"7", b'{"update": "x"}'])
def test_a_line_that_is_none_of_ours_is_dropped_when_a_run_resumes(junk: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"event": "train", "update": 1}\n' + junk + b"\n")
    with MetricsWriter(tmp_path, 1, None):
        pass
    assert (tmp_path / "metrics.jsonl").read_text() == '{"event": "train", "update": 1}\n'


def test_nobody_can_guess_the_name_of_an_event_file(tmp_path: Path) -> None:
    """In a folder of several users, whoever could would put a symlink there."""
    for name in "ab":
        Board(tmp_path / name, 0).close()
    secrets = {re.fullmatch(r".*tfevents.*\.([0-9a-f]{32})", file.name) for file in tmp_path.glob("*/*")}
    assert len({secret[1] for secret in secrets if secret}) == 2

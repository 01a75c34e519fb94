"""The numbers of a run: all of them in metrics.jsonl, as documented, and in TensorBoard."""

import re
from pathlib import Path

import pytest
from commands import Train
from repository import ROOT
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG
from tensorboard.util.tensor_util import make_ndarray
from training_runs import metrics

from nmtkit.data.corpus import Dataset
from nmtkit.training.config import CheckpointConfig
from nmtkit.training.metrics import Board, MetricsWriter, tag
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.validation import SAMPLES


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return tmp_path / "board"


def curves(board: Path) -> dict[str, dict[int, object]]:
    """The curves and texts that TensorBoard shows: by tag, a value for each update."""
    events = EventAccumulator(str(board), size_guidance={"tensors": 0}).Reload()
    found: dict[str, dict[int, object]] = {}
    for name in set(events.Tags()["tensors"]) - {CONFIG_SUMMARY_TAG}:
        points = events.Tensors(name)
        found[name] = {point.step: make_ndarray(point.tensor_proto).item() for point in points}
        assert len(found[name]) == len(points), f"{name}: two values for one update"
    return found


def test_the_written_metrics_are_exactly_the_documented_ones(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2, "--valid-bleu")
    document = (ROOT / "docs/how-to/monitor.md").read_text(encoding="utf-8")
    both, *documented = (
        {key for row in re.findall(r"^\| (`.*?) \|", table, re.M) for key in re.findall(r"`(\w+)`", row)}
        for table in document.split("| key | unit |")[1:]
    )
    for event, keys in zip(("train", "valid"), documented, strict=True):
        for row in metrics(tmp_path, event):
            assert row.keys() == both | keys


def test_tensorboard_has_every_number_under_its_tag_and_some_sentences(
    train: Train, datasets: dict[str, Path], tmp_path: Path, board: Path
) -> None:
    run = tmp_path / "run"
    options = ("--validate-every", 2, "--valid-bleu", "--tensorboard", board)
    train(run, "--max-updates", 4, *options)
    shown = curves(board)
    for event, without_curve in (("train", {"event", "update"}), ("valid", {"event", "update"})):
        for row in metrics(run, event):
            for name in row.keys() - without_curve:
                if row[name] is not None:
                    assert shown[tag(event, name)][row["update"]] == pytest.approx(row[name], rel=1e-6)

    split, tokenizer = (lambda data: (data.split("valid"), data.source))(Dataset.open(datasets["joined"]))
    texts = {name.split("/")[1]: values for name, values in shown.items() if name.startswith("sentences/")}
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


def test_a_chart_shows_training_and_validation_together(board: Path) -> None:
    Board(board, 0).close()
    event = EventAccumulator(str(board)).Reload().Tensors(CONFIG_SUMMARY_TAG)[0]
    layout = Layout.FromString(make_ndarray(event.tensor_proto).item())
    charts = {chart.title: list(chart.multiline.tag) for category in layout.category for chart in category.chart}
    assert charts == {name: [f"train/{name}", f"valid/{name}"] for name in ("loss", "nll", "ppl")}


def test_a_run_resumed_from_an_older_checkpoint_has_each_update_once_and_in_order(
    train: Train, tmp_path: Path, board: Path
) -> None:
    run = tmp_path / "run"
    options = ("--validate-every", 2, "--valid-bleu", "--save-every", 2, "--tensorboard", board)
    train(run, "--max-updates", 5, *options)
    for name in (4, 5, "last"):
        (run / f"checkpoint_{name}.pt").unlink()
    train(run, "--max-updates", 6, *options)
    shown = curves(board)
    assert list(shown["train/loss"]) == [1, 2, 3, 4, 5, 6]
    assert all(list(values) == [2, 4, 6] for name, values in shown.items() if name.startswith(("sentences/", "valid/")))


def test_an_unwritable_tensorboard_folder_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = train(tmp_path / "run", "--max-updates", 1, "--tensorboard", tmp_path / "file" / "board", code=2)
    *_, line = result.stderr.decode().splitlines()
    assert f"--tensorboard {tmp_path}/file/board: cannot be written" in line


def test_a_number_is_in_the_event_file_at_once(board: Path) -> None:
    writer = Board(board, 0)
    writer.write("train", 1, {"loss": 2.0})
    shown = curves(board)
    writer.close()
    assert shown == {"train/loss": {1: 2.0}}


@pytest.mark.parametrize("junk", [b'{"update": 1, "los', b"\xff\xfe", b"7", b'{"update": 2}'])
def test_a_resumed_run_drops_lines_that_are_not_its_own(junk: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"event": "train", "update": 1}\n' + junk + b"\n")
    with MetricsWriter(SaveDir(CheckpointConfig(save_dir=tmp_path)), 1, None):
        pass
    assert (tmp_path / "metrics.jsonl").read_text() == '{"event": "train", "update": 1}\n'

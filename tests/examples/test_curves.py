"""The script that plots training curves."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import Train
from patience import PATIENCE
from repository import ROOT

SVG = "{http://www.w3.org/2000/svg}"
Point = tuple[float, float]
Line = tuple[int, str, list[Point]]  # number of the run, key, points


def curves(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "examples/curves.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False
    )


def run_in(folder: Path, updates: int, scale: float = 1.0) -> list[dict[str, Any]]:
    """Write and return the metrics of a run that logs each update and validates every second one."""
    rows: list[dict[str, Any]] = []
    for update in range(1, updates + 1):
        loss = 2 + scale * 6 / update
        rows.append({"event": "train", "update": update, "loss": loss, "skipped": None})
        if update % 2 == 0:
            rows.append(
                {"event": "valid", "update": update, "valid_loss": loss, "valid_ppl": 2**loss, "valid_bleu": update}
            )
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return rows


def drawn(picture: Path) -> list[Line]:
    """The lines of a plot, which must be well-formed XML."""
    lines = []
    for group in ElementTree.parse(picture).iter(f"{SVG}g"):
        key, _, number = group.get("id", "").partition(" ")
        if number:
            path = next(group.iter(f"{SVG}path")).attrib["d"]
            points = [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)]
            lines.append((int(number), key, points))
    return lines


def texts(picture: Path) -> list[str | None]:
    return [text.text for text in ElementTree.parse(picture).iter(f"{SVG}text")]


def test_each_run_has_a_line_with_all_its_points_in_each_panel(tmp_path: Path) -> None:
    run_in(tmp_path / "short", updates=6)
    run_in(tmp_path / "long", updates=10, scale=1.2)
    done = curves(tmp_path, "short", 'a <better> & "longer" one=long/metrics.jsonl', "--output", "two.svg")
    message = 'wrote two.svg, the curves of short, a <better> & "longer" one\n'
    assert (done.returncode, done.stdout, done.stderr) == (0, "", message)
    lines = drawn(tmp_path / "two.svg")
    keys = ("loss", "valid_loss", "valid_ppl", "valid_bleu")
    assert {(run, key): len(points) for run, key, points in lines} == {
        **dict(zip([(0, key) for key in keys], (6, 3, 3, 3), strict=True)),
        **dict(zip([(1, key) for key in keys], (10, 5, 5, 5), strict=True)),
    }
    bleu = {run: points for run, key, points in lines if key == "valid_bleu"}
    assert bleu[0] == bleu[1][:3]  # equal values have equal positions
    for positions in zip(*bleu[1], strict=True):  # updates and BLEU grow evenly
        assert steps(positions) == pytest.approx([steps(positions)[0]] * 4, abs=1e-3)


def steps(positions: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(positions)]


def test_the_legend_lists_each_run_once_in_the_given_order(tmp_path: Path) -> None:
    names = ["short", 'a <better> & "longer" one', "$x$", "_private", "bell \x07", "日本語"]
    run_in(tmp_path / "run", updates=2)
    done = curves(tmp_path, *(f"{name}=run" for name in names))
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    shown = texts(tmp_path / "curves.svg")
    assert [text for text in shown if text and text in [*names, r"bell \x07"]] == [*names[:4], r"bell \x07", names[5]]


def test_the_same_runs_give_the_same_file(tmp_path: Path) -> None:
    run_in(tmp_path / "run", updates=4)
    for name in ("first.svg", "second.svg"):
        assert curves(tmp_path, "run", "--output", name).returncode == 0
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()


def test_damaged_lines_are_skipped_and_the_last_line_of_an_update_counts(tmp_path: Path) -> None:
    run_in(tmp_path / "run", updates=4)
    with (tmp_path / "run/metrics.jsonl").open("ab") as file:
        file.write(b'[]\n7\n"update"\n\n\xff\xfe\n{"update": null, "loss": 1}\n{"loss": 1}\n')
        file.write(b'{"event": "train", "update": Infinity, "loss": 1}\n')
        file.write(b'{"event": "train", "update": 5, "loss": null}\n{"event": "train", "update": 6, "loss": NaN}\n')
        file.write(b'{"event": "valid", "update": 4, "valid_bleu": 0.0}\n{"event": "valid", "update": 6, "valid_bl')
    assert curves(tmp_path, "run").returncode == 0
    points = {key: points for _, key, points in drawn(tmp_path / "curves.svg")}
    assert {key: len(own) for key, own in points.items()} == {
        "loss": 4,
        "valid_loss": 2,
        "valid_ppl": 2,
        "valid_bleu": 2,
    }
    (_, first), (_, last) = points["valid_bleu"]
    assert last > first  # y grows downwards, and BLEU falls from 2 to 0


def test_the_metrics_of_nmt_train_can_be_plotted(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run", "--max-updates", 3, "--validate-every", 1, "--valid-bleu")
    assert curves(tmp_path, "run").returncode == 0
    assert [len(points) for _, _, points in drawn(tmp_path / "curves.svg")] == [3, 3, 3, 3]


def test_a_single_value_and_a_run_without_validation_are_plotted(tmp_path: Path) -> None:
    (tmp_path / "lr=5e-4.jsonl").write_text('{"event": "valid", "update": 100, "valid_ppl": 5}\n')
    run_in(tmp_path / "run", updates=1)
    assert curves(tmp_path, "lr=5e-4.jsonl", "run").returncode == 0
    assert [(run, key) for run, key, _ in drawn(tmp_path / "curves.svg")] == [(1, "loss"), (0, "valid_ppl")]


def test_no_two_runs_look_alike(tmp_path: Path) -> None:
    names = [f"run {number}" for number in range(20)]
    for name in names:
        run_in(tmp_path / name, updates=2)
    assert curves(tmp_path, *names).returncode == 0
    groups = [group for group in ElementTree.parse(tmp_path / "curves.svg").iter(f"{SVG}g") if group.get("id")]
    lines = [group for group in groups if group.attrib["id"].startswith("valid_bleu ")]
    looks = {re.sub("stroke-width[^;]*", "", next(line.iter(f"{SVG}path")).attrib["style"]) for line in lines}
    assert len(looks) == len(lines) == len(names)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read metrics.jsonl: No such file"),
        ("", "metrics.jsonl: no numbers of a training"),
        ('{"update": 1, "lr": 0.1}\n', "no run has a loss, a perplexity or BLEU"),
    ],
)
def test_unusable_metrics_are_refused_in_one_line(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    done = curves(tmp_path, "metrics.jsonl")
    assert done.returncode == 2
    assert done.stderr.startswith(f"curves.py: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "curves.svg").exists()

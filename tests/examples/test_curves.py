"""The script that plots training curves."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import Train
from patience import PATIENCE
from repository import ROOT

SVG = "{http://www.w3.org/2000/svg}"
Point = tuple[float, float]


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


def drawn(picture: Path) -> list[tuple[str, str, list[Point]]]:
    """The color, key and points of each line in a plot, which must be well-formed XML."""
    lines = []
    for line in ElementTree.parse(picture).iter(f"{SVG}polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        lines.append((line.attrib["class"].split()[0], line.attrib["data-key"], [(x, y) for x, y in points]))
    return lines


def test_each_run_has_a_line_with_all_its_points_in_each_panel(tmp_path: Path) -> None:
    run_in(tmp_path / "short", updates=6)
    run_in(tmp_path / "long", updates=10, scale=1.2)
    done = curves(tmp_path, "short", 'a <better> & "longer" one=long/metrics.jsonl', "--output", "two.svg")
    message = 'wrote two.svg, the curves of short, a <better> & "longer" one\n'
    assert (done.returncode, done.stdout, done.stderr) == (0, "", message)
    lines = drawn(tmp_path / "two.svg")
    keys = ("loss", "valid_loss", "valid_ppl", "valid_bleu")
    assert {(color, key): len(points) for color, key, points in lines} == {
        **dict(zip([("run0", key) for key in keys], (6, 3, 3, 3), strict=True)),
        **dict(zip([("run1", key) for key in keys], (10, 5, 5, 5), strict=True)),
    }
    bleu = {color: points for color, key, points in lines if key == "valid_bleu"}
    assert bleu["run0"] == bleu["run1"][:3]  # equal values have equal positions
    assert [x for x, _ in bleu["run1"]] == pytest.approx([60, 120, 180, 240, 300])
    assert [y for _, y in bleu["run1"]] == pytest.approx(
        [210 * (10 - update) / 8 for update in (2, 4, 6, 8, 10)], abs=0.1
    )
    texts = [text.text for text in ElementTree.parse(tmp_path / "two.svg").iter(f"{SVG}text")]
    assert texts[-2:] == ["short", 'a <better> & "longer" one']


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
    assert points["valid_bleu"][-1] == (300, 210)


def test_the_metrics_of_nmt_train_can_be_plotted(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run", "--max-updates", 3, "--validate-every", 1, "--valid-bleu")
    assert curves(tmp_path, "run").returncode == 0
    assert [len(points) for _, _, points in drawn(tmp_path / "curves.svg")] == [3, 3, 3, 3]


def test_a_single_value_and_a_run_without_validation_are_plotted(tmp_path: Path) -> None:
    (tmp_path / "lr=5e-4.jsonl").write_text('{"event": "valid", "update": 100, "valid_ppl": 5}\n')
    run_in(tmp_path / "run", updates=1)
    assert curves(tmp_path, "lr=5e-4.jsonl", "run").returncode == 0
    assert [(color, key) for color, key, _ in drawn(tmp_path / "curves.svg")] == [
        ("run1", "loss"),
        ("run0", "valid_ppl"),
    ]


def test_no_two_runs_look_alike(tmp_path: Path) -> None:
    names = [f"run {number}" for number in range(20)]
    for name in names:
        run_in(tmp_path / name, updates=2)
    assert curves(tmp_path, *names).returncode == 0
    picture = ElementTree.parse(tmp_path / "curves.svg")
    legend = [path.attrib for path in picture.iter(f"{SVG}path") if path.attrib["d"].endswith("h24")]
    lines = [line.attrib for line in picture.iter(f"{SVG}polyline") if line.attrib["data-key"] == "valid_bleu"]
    for drawn_as in (legend, lines):
        assert len({(own["class"], own.get("stroke-dasharray")) for own in drawn_as}) == len(names)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read metrics.jsonl: No such file"),
        ("", "metrics.jsonl: no line of it has the numbers of an update"),
        ('{"update": 1, "lr": 0.1}\n', "there is neither a loss, nor a perplexity, nor BLEU"),
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

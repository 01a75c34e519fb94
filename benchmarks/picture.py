"""Draws docs/speed.svg and docs/speed-dark.svg from the measurements in results.csv.

    python benchmarks/picture.py

Add or replace a row of results.csv after measuring again. `values` are the turns of a benchmark, of which the picture
shows the median; `log` is the section of the log with their conditions.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median

BENCHMARKS = Path(__file__).resolve().parent
DOCS = BENCHMARKS.parent / "docs"

PANELS = {
    "whole commands": ("Translation", "output tokens per second"),
    "engine": ("Translation of tokenized text", "sentences per second"),
    "training": ("Training", "target tokens per second"),
}
CONDITIONS = (
    "Small model (3+3 layers, width 256), Multi30k; translation in batches, beam 4.",
    "2 cores of an AMD EPYC (Zen 5), November 2026.",
)
WIDTH, LEFT, RIGHT, BAR, GAP = 520, 156, 70, 18, 6


@dataclass(frozen=True)
class Row:
    """A line of results.csv."""

    panel: str
    tool: str
    version: str
    precision: str
    values: str
    log: str

    @property
    def turns(self) -> list[int]:
        return [int(value) for value in self.values.split()]


@dataclass(frozen=True)
class Theme:
    """Colors."""

    background: str
    text: str
    faint: str
    own: str
    other: str


THEMES = {
    "speed.svg": Theme("#ffffff", text="#1f2328", faint="#59636e", own="#0969da", other="#b6bec8"),
    "speed-dark.svg": Theme("#0d1117", text="#f0f6fc", faint="#9198a1", own="#4493f8", other="#565f6b"),
}


def measurements() -> list[Row]:
    with (BENCHMARKS / "results.csv").open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def picture(rows: list[Row], theme: Theme) -> str:
    """An SVG of one panel of bars after another. Each panel has its own unit, and begins at zero."""
    shapes, y = [], 8
    for name, (title, unit) in PANELS.items():
        panel = sorted((row for row in rows if row.panel == name), key=lambda row: -median(row.turns))
        shapes.append(
            f'<text x="12" y="{y + 18}" font-size="16" font-weight="600">{title}'
            f'<tspan dx="8" font-size="13" font-weight="400" fill="{theme.faint}">{unit}</tspan></text>'
        )
        shapes += bars(panel, y + 30, theme)
        y += 30 + len(panel) * (BAR + GAP) + 16
    for line in notes(rows):
        shapes.append(f'<text x="12" y="{y + 6}" font-size="12" fill="{theme.faint}">{escape(line)}</text>')
        y += 17
    spoken = escape("; ".join(f"{row.tool} {row.precision}, {row.panel}: {median(row.turns):,.0f}" for row in rows))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH * 1.2:.0f}" role="img"\n'
        f'  aria-label="{spoken}"\n  font-family="system-ui, sans-serif" font-size="14" fill="{theme.text}">'
    )
    ground = f'<rect width="{WIDTH}" height="{y}" rx="6" fill="{theme.background}"/>'
    return "\n".join([head, ground, *shapes, "</svg>\n"])


def bars(panel: list[Row], y: int, theme: Theme) -> Iterator[str]:
    """A bar for each row: its name before it, its value after it."""
    scale = (WIDTH - LEFT - RIGHT) / median(panel[0].turns)
    for number, row in enumerate(panel):
        top, length, own = y + number * (BAR + GAP), median(row.turns) * scale, row.tool == "nmtkit"
        weight = ' font-weight="600"' if own else ""
        yield f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end"{weight}>{row.tool} {row.precision}</text>'
        fill = theme.own if own else theme.other
        yield f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2" fill="{fill}"/>'
        yield f'<text x="{LEFT + length + 6:.1f}" y="{top + 14}"{weight}>{median(row.turns):,.0f}</text>'


def notes(rows: list[Row]) -> list[str]:
    """Conditions, and the versions of the other tools."""
    versions = dict.fromkeys(f"{row.tool} {row.version}" for row in rows if row.version)
    return [*CONDITIONS, f"Compared with {', '.join(versions)}."]


def main() -> None:
    for name, theme in THEMES.items():
        (DOCS / name).write_text(picture(measurements(), theme), encoding="utf-8")


if __name__ == "__main__":
    main()

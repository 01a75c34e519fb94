"""Small charts as SVG for pages without scripts: a histogram, and a line on logarithmic axes."""

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT, MARGIN = 440, 200, 40  # pixels
_MOST_BARS = 50
_MOST_POINTS = 200


def length_histogram(title: str, counts: NDArray[np.int64]) -> str:
    """A histogram of lengths; `counts[n]` is the number of sentences of length n."""
    width = math.ceil(len(counts) / _MOST_BARS)
    padded = np.pad(counts, (0, -len(counts) % width)).reshape(-1, width).sum(axis=1)
    names = [f"{n * width}" if width == 1 else f"{n * width}–{n * width + width - 1}" for n in range(len(padded))]
    ticks = {place: str(place * width) for place in range(0, len(padded), max(1, len(padded) // 6))}
    return histogram(title, padded.tolist(), names, ticks)


def histogram(title: str, counts: Sequence[int], names: Sequence[str], ticks: Mapping[int, str]) -> str:
    """A bar for each count. `names` appear in tooltips, `ticks` below the left edge of the bars with these numbers."""
    most, step = max(1, *counts), (WIDTH - MARGIN) / len(counts)
    bars = "".join(
        f'<rect x="{MARGIN + number * step:.1f}" y="{_y(count / most):.1f}" width="{max(step - 1, 0.5):.1f}" '
        f'height="{_y(0) - _y(count / most):.1f}"><title>{escape(name)}: {count:,}</title></rect>'
        for number, (name, count) in enumerate(zip(names, counts, strict=True))
    )
    labels = "".join(_label(MARGIN + place * step, text) for place, text in ticks.items())
    return _picture(title, bars + labels + _height_labels({0.0: "0", 1.0: f"{most:,}"}))


def rank_curve(title: str, frequencies: NDArray[np.int64]) -> str:
    """A line of frequencies in descending order by rank, on logarithmic axes; at least one frequency."""
    ranks = np.unique(np.geomspace(1, len(frequencies), _MOST_POINTS).astype(np.int64))
    across, up = max(math.log10(len(frequencies)), 0.1), max(math.log10(frequencies[0]), 0.1)
    points = " ".join(
        f"{_x(math.log10(rank) / across):.1f},{_y(math.log10(frequencies[rank - 1]) / up):.1f}" for rank in ranks
    )
    labels = "".join(_label(_x(power / across), f"{10**power:,}") for power in range(int(across) + 1))
    heights = {power / up: f"10{_superscript(power)}" for power in range(int(up) + 1)}
    return _picture(title, f'<polyline points="{points}"/>{labels}{_height_labels(heights)}')


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _x(share: float) -> float:
    return MARGIN + share * (WIDTH - MARGIN - 10)


def _y(share: float) -> float:
    return 10 + (1 - share) * (HEIGHT - 30)


def _label(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(text)}</text>'


def _height_labels(texts: Mapping[float, str]) -> str:
    return "".join(
        f'<text x="{MARGIN - 4}" y="{_y(share) + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        f'<line x1="{MARGIN}" x2="{WIDTH}" y1="{_y(share):.1f}" y2="{_y(share):.1f}"/>'
        for share, text in texts.items()
    )


def _picture(title: str, content: str) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{content}</svg></figure>'
    )

"""Converts the two sides of a corpus from the archives to parallel text files.

    python parallel_text.py FROM_SOURCE FROM_TARGET TO_SOURCE TO_TARGET

Development and test sets are .sgm files; all their segments are kept, in order. Training text, plain or .gz, is
cleaned: a pair is dropped if a side is not UTF-8 or blank, or if both sides are equal. The numbers of dropped pairs are
printed to stderr. nmt-preprocess filters by length and length ratio, because it knows the tokens.
"""

import html
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.storage.atomic import staged_file
from nmtkit.text.reading import read_lines, read_raw_lines

_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE | re.DOTALL)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")  # some tools split lines at these

Pair = tuple[str, str]


def segments(path: Path) -> list[str]:
    """The segments of an .sgm file, each on one line, entities (&amp;) resolved."""
    text = "\n".join(read_lines(path))
    return [" ".join(html.unescape(segment).split()) for segment in _SEGMENT.findall(text)]


def side_by_side(source: Path, target: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the lines of two files in parallel. Raises UserError if their numbers differ."""
    for number, (one, other) in enumerate(zip_longest(read_raw_lines(source), read_raw_lines(target)), 1):
        if one is None or other is None:
            ended, longer = (source, target) if one is None else (target, source)
            raise UserError(
                f"{ended} ends before line {number}, {longer} goes on: the two sides must correspond line by line"
            )
        yield one, other


def cleaned(pairs: Iterable[tuple[bytes, bytes]], left_out: Counter[str]) -> Iterator[Pair]:
    """Yield the pairs that are usable for training; count the dropped ones in `left_out`, by reason."""
    for pair in pairs:
        try:
            source, target = (_CONTROLS.sub(" ", side.decode("utf-8")).strip() for side in pair)
        except UnicodeDecodeError:
            left_out["not UTF-8"] += 1
            continue
        if not (source and target):
            left_out["a blank side"] += 1
        elif source == target:
            left_out["both sides the same"] += 1
        else:
            yield source, target


def convert(source: Path, target: Path, to_source: Path, to_target: Path) -> None:
    """Write both files. Raises UserError if the two sides differ in their number of lines or segments."""
    left_out: Counter[str] = Counter()
    if source.suffix == ".sgm":
        sides = segments(source), segments(target)
        if len(sides[0]) != len(sides[1]) or not sides[0]:
            raise UserError(f"{source} has {len(sides[0])} segments and {target} has {len(sides[1])}")
        pairs: Iterable[Pair] = zip(*sides, strict=True)
    else:
        pairs = cleaned(side_by_side(source, target), left_out)
    with staged_file(to_source) as source_file, staged_file(to_target) as target_file:
        count = 0
        for one, other in pairs:
            source_file.write(f"{one}\n".encode())
            target_file.write(f"{other}\n".encode())
            count += 1
    reasons = "".join(f", {number} left out: {reason}" for reason, number in sorted(left_out.items()))
    print(f"{to_source.stem}: {count} pairs{reasons}", file=sys.stderr)


@command("parallel_text.py")
@click.argument("from_source", type=PathName())
@click.argument("from_target", type=PathName())
@click.argument("to_source", type=PathName())
@click.argument("to_target", type=PathName())
def main(from_source: Path, from_target: Path, to_source: Path, to_target: Path) -> None:
    """Write FROM_SOURCE and FROM_TARGET to TO_SOURCE and TO_TARGET as parallel text."""
    convert(from_source, from_target, to_source, to_target)


if __name__ == "__main__":
    main()

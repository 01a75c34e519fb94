"""Writes the translations of n-best lists as parallel text, a pair for each.

    python pairs.py 1-of-2.jsonl 2-of-2.jsonl --source train.en --target train.de

The lists are those of `nmt-generate --format jsonl`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import click

from nmtkit.atomic_io import staged_file
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.text import read_lines


def pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Source and translation of each hypothesis in a file. Raises UserError for a line that is no n-best list."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = json.loads(line)
            source, texts = row["source"], [hypothesis["text"] for hypothesis in row["hypotheses"]]
            if b"\n" in "".join([source, *texts]).encode():
                raise ValueError("several lines")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{path}:{number}: not an n-best list: write it with nmt-generate --format jsonl") from None
        yield from ((source, text) for text in texts if text.strip())


@command("pairs.py")
@click.argument("lists", metavar="FILE...", nargs=-1, required=True, type=PathName())
@click.option("--source", required=True, type=PathName(), metavar="FILE", help="The source side to write.")
@click.option("--target", required=True, type=PathName(), metavar="FILE", help="Its translations.")
def main(lists: tuple[Path, ...], source: Path, target: Path) -> None:
    """Write the translations in each FILE, an n-best list a line, as parallel text."""
    with staged_file(target) as translations, staged_file(source) as sources:
        for path in lists:
            for pair in pairs(path):
                for file, text in zip((sources, translations), pair, strict=True):
                    file.write(f"{text}\n".encode())


if __name__ == "__main__":
    main()

"""Writes the translations of n-best lists as parallel text, a pair for each.

    python pairs.py 1-of-2.jsonl 2-of-2.jsonl --text text/train.en.gz --source train.en --target train.de

The lists are those of `nmt-generate --format jsonl`, one for each line of the text.
"""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.storage.atomic import staged_file
from nmtkit.text.reading import read_lines
from nmtkit.wording import counted


def nbest_lists(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The source and the translations of each n-best list in a file. Raises UserError for a line that is none."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = json.loads(line)
            source, texts = row["source"], [hypothesis["text"] for hypothesis in row["hypotheses"]]
            if b"\n" in "".join([source, *texts]).encode():
                raise ValueError("several lines")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{path}:{number}: not an n-best list: write it with nmt-generate --format jsonl") from None
        yield source, [text for text in texts if text.strip()]


@command("pairs.py")
@click.argument("lists", metavar="FILE...", nargs=-1, required=True, type=PathName())
@click.option("--text", required=True, type=PathName(), metavar="FILE", help="The text that was translated.")
@click.option("--source", required=True, type=PathName(), metavar="FILE", help="The source side to write.")
@click.option("--target", required=True, type=PathName(), metavar="FILE", help="Its translations.")
def main(lists: tuple[Path, ...], text: Path, source: Path, target: Path) -> None:
    """Write the translations in each FILE, an n-best list a line, as parallel text."""
    lines = sum(1 for _ in read_lines(text))
    with staged_file(target) as translations, staged_file(source) as sources:
        found = 0
        for line, hypotheses in chain.from_iterable(map(nbest_lists, lists)):
            found += 1
            for hypothesis in hypotheses:
                sources.write(f"{line}\n".encode())
                translations.write(f"{hypothesis}\n".encode())
        if found != lines:
            raise UserError(
                f"{lists[0].parent}: {counted(found, 'translated line')}, but {text} has {lines}: remove the file "
                f"that is incomplete, of {', '.join(path.name for path in lists)}, and call make again"
            )


if __name__ == "__main__":
    main()

"""Benchmark: how exactly tags are placed.

    python benchmarks/tags.py averaged.pt multi30k/test_2016_flickr.en.gz
    python benchmarks/tags.py 'node examples/browser-student/translate.mjs page worker html' test_2016_flickr.en.gz

Encloses common English words that occur once in a line in <b>…</b>, translates to German, and counts how often the
tags enclose the German word and nothing else. Outputs that contain the German word twice or not at all do not count.
"""

import re
import shlex
import subprocess
from pathlib import Path

import click

from nmtkit import Translator
from nmtkit.text.reading import read_lines

WORDS = {
    "red": "rot", "blue": "blau", "green": "grün", "yellow": "gelb", "white": "weiß", "black": "schwarz",
    "brown": "braun", "orange": "orange", "purple": "lila", "pink": "pink|rosa", "old": "alt", "large": "groß",
    "small": "klein", "two": "zwei", "three": "drei", "with": "mit", "and": "und", "man": "mann", "woman": "frau",
    "boy": "junge", "girl": "mädchen", "child": "kind", "baby": "baby", "dog": "hund", "horse": "pferd",
    "ball": "ball", "shirt": "hemd|shirt|oberteil", "hat": "hut|mütze", "street": "straße", "water": "wasser",
    "snow": "schnee", "beach": "strand", "table": "tisch", "bicycle": "fahrrad", "car": "auto", "tree": "baum",
    "bench": "bank", "guitar": "gitarre", "grass": "gras",
}  # fmt: skip
TAGGED = re.compile("<b>(.*?)</b>")


def tag(line: str) -> list[tuple[str, re.Pattern[str]]]:
    """Return the line with tags around one word, for each known word in it, and a pattern of its translation."""
    found = []
    for word, translation in WORDS.items():
        before, *rest = re.split(rf"(?<![\w-]){word}(?![\w-])", line)
        if len(rest) == 1:
            found.append((f"{before}<b>{word}</b>{rest[0]}", re.compile(translation, re.IGNORECASE)))
    return found


@click.command()
@click.argument("system")
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--layer", type=int, help="Decoder layer, as in --alignment-layer.")
def main(system: str, text: Path, layer: int | None) -> None:
    """Print the share of exact tags for the English TEXT and a SYSTEM: a checkpoint, or a command that reads HTML."""
    tagged = [pair for line in read_lines(text) if not set("<>&") & set(line) for pair in tag(line)]
    lines = [line for line, _ in tagged]
    if Path(system).exists():
        outputs = Translator.from_checkpoint(system).translate(lines, markup="html", beam=1, alignment_layer=layer)
    else:
        given = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(shlex.split(system), input=given, stdout=subprocess.PIPE, check=True, text=True)
        outputs = done.stdout.split("\n")[:-1]
    exact = counted = 0
    for output, (_, wanted) in zip(outputs, tagged, strict=True):
        if sum(1 for word in re.findall(r"[\w-]+", TAGGED.sub(r"\1", output)) if wanted.match(word)) == 1:
            counted += 1
            inside = TAGGED.findall(output)[0].strip(" .,")
            exact += bool(wanted.match(inside) and re.fullmatch(r"[\w-]+", inside))
    click.echo(f"{100 * exact / counted:.1f} % of {counted} tags are exact")


if __name__ == "__main__":
    main()

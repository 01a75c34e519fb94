"""Divides files of sentence pairs (TSV and TMX) into one text for each side."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePath
from xml.etree import ElementTree

from nmtkit.console.log import logger
from nmtkit.errors import UserError
from nmtkit.text.languages import short_code
from nmtkit.text.reading import COMPRESSED, open_bytes, read_lines
from nmtkit.wording import counted

Pair = tuple[str, str]
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_CODE = ("bpt", "ept", "it", "ph", "ut")  # inline elements of TMX that contain markup, not text


def pair_format(name: str) -> str | None:
    """Return the format of a file of pairs, ".tsv" or ".tmx", from its name; None for the prefix of two texts."""
    path = PurePath(name)
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    return suffix.lower() if suffix.lower() in (".tsv", ".tmx") else None


def divide(path: Path, languages: tuple[str, str], folder: Path) -> tuple[Path, Path]:
    """Write the sides of a file of pairs to `folder`, with its modification time, and return both paths. Raises
    UserError for a malformed file."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    pairs = _tsv_pairs(path) if pair_format(path.name) == ".tsv" else _tmx_pairs(path, languages)
    folder.mkdir(parents=True, exist_ok=True)
    sides = folder / "source", folder / "target"
    with ExitStack() as stack:
        files = [stack.enter_context(side.open("w", encoding="utf-8", newline="\n")) for side in sides]
        for pair in pairs:
            for file, text in zip(files, pair, strict=True):
                file.write(f"{text}\n")
    status = path.stat()
    for side in sides:
        os.utime(side, ns=(status.st_atime_ns, status.st_mtime_ns))
    return sides


def _tsv_pairs(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), 1):
        columns = line.removesuffix("\r").split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}, line {number}: {counted(len(columns), 'column')}: a source, a tab and a target are expected"
            )
        yield columns[0], columns[1]


def _tmx_pairs(path: Path, languages: tuple[str, str]) -> Iterator[Pair]:
    complete = incomplete = 0
    body = ElementTree.Element("body")
    with open_bytes(path) as file:
        try:
            for event, element in ElementTree.iterparse(file, ("start", "end")):
                element.tag = element.tag.rpartition("}")[2]  # without a namespace
                if event == "start" and element.tag == "body":
                    body = element
                elif event == "end" and element.tag == "tu":
                    texts = _texts(element)
                    body.clear()  # frees the unit
                    source, target = (texts.get(short_code(language)) for language in languages)
                    if source is None or target is None:
                        incomplete += 1
                        continue
                    complete += 1
                    yield source, target
        except ElementTree.ParseError as error:
            raise UserError(f"{path}: not well-formed: {error}") from error
    if not complete:
        raise UserError(f"{path} has no unit in {languages[0]} and {languages[1]}: give its languages with -s and -t")
    if incomplete:
        logger.warning("%s: skipped %s without both languages", path, counted(incomplete, "unit"))


def _texts(unit: ElementTree.Element) -> dict[str, str]:
    """Return the first text of each language in a unit of TMX, without inline markup."""
    texts: dict[str, str] = {}
    for variant in unit.iter("tuv"):
        language = short_code(variant.get(_LANGUAGE) or variant.get("lang") or "")
        for segment in variant.iter("seg"):
            for code in [inner for inner in segment.iter() if inner.tag in _CODE]:
                tail = code.tail
                code.clear()
                code.tail = tail
            texts.setdefault(language, " ".join("".join(segment.itertext()).split()))
    return texts

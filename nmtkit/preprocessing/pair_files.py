"""Divides files of sentence pairs (TSV and TMX) into one text for each side."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePath
from xml.parsers import expat

from nmtkit.console.log import logger
from nmtkit.errors import UserError
from nmtkit.text.languages import short_code
from nmtkit.text.reading import COMPRESSED, open_bytes, read_lines
from nmtkit.wording import counted

Pair = tuple[str, str]
_CODE = ("bpt", "ept", "it", "ph", "ut")  # inline elements of TMX that contain markup, not text


def pair_format(name: str) -> str | None:
    """Return the format of a file of pairs, ".tsv" or ".tmx", from its name; None for the prefix of two texts."""
    path = PurePath(name)
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    return suffix.lower() if suffix.lower() in (".tsv", ".tmx") else None


def divide(path: Path, languages: tuple[str, str], folder: Path) -> tuple[Path, Path]:
    """Write the sides of a file of pairs to `folder`, with its modification time, and return both paths.

    Raises UserError for a malformed file, and for TMX without a unit of both languages.
    """
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
    units = _Units(languages)
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = units.start, units.end
    parser.CharacterDataHandler = units.add
    with open_bytes(path) as file:
        try:
            while block := file.read(1 << 16):
                parser.Parse(block)
                yield from units.take()
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise UserError(f"{path}: not well-formed: {error}") from error
    yield from units.take()
    if not units.complete:
        raise UserError(f"{path} has no unit in {languages[0]} and {languages[1]}: give its languages with -s and -t")
    if units.incomplete:
        logger.warning("%s: skipped %s without both languages", path, counted(units.incomplete, "unit"))


class _Units:
    """Collects the pairs of a TMX file from the events of a parser."""

    def __init__(self, languages: tuple[str, str]) -> None:
        self._languages = [short_code(language) for language in languages]
        self.pairs: list[Pair] = []
        self.complete = self.incomplete = 0
        self._texts: dict[str, str] = {}
        self._language, self._text, self._code = "", list[str](), 0
        self._in_segment = False

    def take(self) -> list[Pair]:
        """Return the pairs that were found since the last call."""
        pairs, self.pairs = self.pairs, []
        return pairs

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self._texts = {}
        elif name == "tuv":
            self._language = short_code(attributes.get("xml:lang") or attributes.get("lang") or "")
        elif name == "seg":
            self._in_segment, self._text = True, []
        self._code += name in _CODE

    def add(self, text: str) -> None:
        if self._in_segment and not self._code:
            self._text.append(text)

    def end(self, name: str) -> None:
        self._code -= name in _CODE
        if name == "seg":
            self._in_segment = False
            self._texts.setdefault(self._language, " ".join("".join(self._text).split()))
        elif name == "tu":
            source, target = (self._texts.get(language) for language in self._languages)
            if source is None or target is None:
                self.incomplete += 1
            else:
                self.complete += 1
                self.pairs.append((source, target))

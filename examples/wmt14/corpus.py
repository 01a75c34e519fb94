"""Downloads and verifies the archive of a WMT 2014 corpus, and extracts it to two files of parallel text.

    python -m corpus europarl en-de/text/europarl.en en-de/text/europarl.de --archives archives

Development and test sets are .sgm files; all their segments are kept, in order. Training text is cleaned: a pair is
dropped if a side is not UTF-8 or blank, or if both sides are equal. The numbers of dropped pairs are printed.
nmt-preprocess filters by length and length ratio, because it knows the tokens.
"""

import argparse
import gzip
import html
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from download import download, mismatch

SERVER = "https://www.statmt.org"
LIST = Path(__file__).with_name("archives.txt")
CORPORA = {  # the archive and the files of a corpus
    "europarl": ("training-parallel-europarl-v7.tgz", "training/europarl-v7.{target}-en.{side}"),
    "commoncrawl": ("training-parallel-commoncrawl.tgz", "commoncrawl.{target}-en.{side}"),
    "news-commentary": ("training-parallel-nc-v9.tgz", "training/news-commentary-v9.{target}-en.{side}"),
    "un": ("training-parallel-un.tgz", "un/undoc.2000.fr-en.{side}"),
    "giga": ("training-giga-fren.tar", "giga-fren.release2.fixed.{side}.gz"),
    "newstest2013": ("test.tgz", "test/newstest2013-src.{side}.sgm"),
    "newstest2014": ("test-full.tgz", "test-full/newstest2014-{target}en-{kind}.{side}.sgm"),
}
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE | re.DOTALL)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")  # some tools split lines at these


class Archive(NamedTuple):
    """A line of archives.txt."""

    checksum: str  # algorithm:hexadecimal
    size: int  # bytes; 0 if unknown
    path: str  # on the server


def known_archives(path: Path = LIST) -> dict[str, Archive]:
    """The archives of a list, by file name."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {Path(remote).name: Archive(checksum, int(size), remote) for checksum, size, remote in lines}


def get(archive: Path, known: Archive, server: str, may_download: bool) -> None:
    """Verify an archive, or download it. Exits with a message if that fails."""
    if archive.exists():
        if fault := mismatch(archive, known.size, known.checksum):
            sys.exit(f"{archive}: damaged or a different file ({fault}): remove it, and download it again")
    elif may_download:
        archive.parent.mkdir(parents=True, exist_ok=True)
        print(f"downloading {archive}", file=sys.stderr)
        download(f"{server}/{known.path}", archive, known.size, known.checksum)
    else:
        sys.exit(f"{archive} is missing: put it there, from {server}/{known.path}")


def lines_of(archive: Path, member: str) -> Iterator[bytes]:
    """The lines of a file in an archive. Exits with a message if it is missing."""
    with tarfile.open(archive, "r|*") as files:
        for entry in files:
            if entry.name == member and (file := files.extractfile(entry)):
                lines = gzip.GzipFile(fileobj=file) if member.endswith(".gz") else file
                yield from (line.rstrip(b"\n") for line in lines)
                return
    sys.exit(f"{archive} does not contain {member}")


def segments(text: str) -> list[str]:
    """The segments of an .sgm file, each on one line, entities (&amp;) resolved."""
    return [" ".join(html.unescape(segment).split()) for segment in _SEGMENT.findall(text)]


def cleaned(pairs: Iterable[tuple[bytes, bytes]], dropped: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs that are usable for training; count the others by reason."""
    for pair in pairs:
        try:
            source, target = (_CONTROLS.sub(" ", side.decode("utf-8")).strip() for side in pair)
        except UnicodeDecodeError:
            dropped["not UTF-8"] += 1
            continue
        if not (source and target):
            dropped["a blank side"] += 1
        elif source == target:
            dropped["both sides the same"] += 1
        else:
            yield source, target


def side_by_side(sides: Iterable[Iterator[bytes]], name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the lines of two files in parallel. Exits with a message if their numbers differ."""
    for number, (source, target) in enumerate(zip_longest(*sides), 1):
        if source is None or target is None:
            sys.exit(f"{name}: one side ends before line {number}, the other does not")
        yield source, target


def pairs_of(corpus: str, target: str, archive: Path, dropped: Counter[str]) -> Iterator[tuple[str, str]]:
    """The pairs of a corpus."""
    pattern = CORPORA[corpus][1]
    names = [pattern.format(target=target, side=side, kind=kind) for side, kind in (("en", "src"), (target, "ref"))]
    sides = [lines_of(archive, name) for name in names]
    if not pattern.endswith(".sgm"):
        yield from cleaned(side_by_side(sides, corpus), dropped)
        return
    source, reference = (segments(b"\n".join(side).decode("utf-8")) for side in sides)
    if len(source) != len(reference) or not source:
        sys.exit(f"{names[0]} has {len(source)} segments and {names[1]} has {len(reference)}")
    yield from zip(source, reference, strict=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("files", nargs=2, type=Path, metavar="FILE", help="the two files to write, FILE.en first")
    parser.add_argument("--archives", required=True, type=Path, help="folder of the archives")
    parser.add_argument(
        "--smoke", type=Path, help="folder with the archives of smoke_archives.py, instead of the server"
    )
    arguments = parser.parse_args()
    archive, files = arguments.archives / CORPORA[arguments.corpus][0], arguments.files
    known = known_archives(arguments.smoke / LIST.name if arguments.smoke else LIST)[archive.name]
    server = arguments.smoke.absolute().as_uri() if arguments.smoke else SERVER
    get(archive, known, server, may_download=not arguments.archives.is_absolute())

    dropped: Counter[str] = Counter()
    count = 0
    parts = [path.with_name(f"{path.name}.part") for path in files]
    with parts[0].open("wb") as source, parts[1].open("wb") as target:
        for pair in pairs_of(arguments.corpus, files[1].suffix[1:], archive, dropped):
            count += 1
            for file, line in zip((source, target), pair, strict=True):
                file.write(f"{line}\n".encode())
    for part, path in zip(parts, files, strict=True):
        part.replace(path)
    reasons = "".join(f", {number} dropped: {reason}" for reason, number in sorted(dropped.items()))
    print(f"{arguments.corpus}: {count} pairs{reasons}", file=sys.stderr)


if __name__ == "__main__":
    main()

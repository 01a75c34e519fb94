"""What is known of the archives, and whether a file is the one that it should be.

python archives.py LIST ARCHIVE     checks ARCHIVE against the line of LIST that names it
"""

import hashlib
import sys
from pathlib import Path
from typing import NamedTuple

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError

BLOCK = 1 << 20


class Known(NamedTuple):
    """A line of the list: the checksum, the size where it is known, and the place on the server."""

    checksum: str  # algorithm:hexadecimal
    size: int | None
    place: str


def read(path: Path) -> dict[str, Known]:
    """The archives of a list, by the names of their files."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {
        Path(place).name: Known(checksum, None if size == "-" else int(size), place) for checksum, size, place in lines
    }


def difference(archive: Path, known: Known) -> str | None:
    """What is wrong with a file, or None."""
    size = archive.stat().st_size
    if known.size not in (None, size):
        return f"it has {size} bytes and not {known.size}"
    algorithm, checksum = known.checksum.split(":")
    digest = hashlib.new(algorithm)
    with archive.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    found = digest.hexdigest()
    return None if found == checksum else f"its {algorithm} is {found} and not {checksum}"


@command("archives.py")
@click.argument("listed", metavar="LIST", type=PathName())
@click.argument("archive", type=PathName())
def main(listed: Path, archive: Path) -> None:
    """Check ARCHIVE against the line of LIST that names it."""
    known = read(listed).get(archive.name.removesuffix(".part"))
    if known is None:
        raise UserError(f"{archive}: {listed} does not name it")
    wrong = difference(archive, known)
    if wrong:
        raise UserError(f"{archive}: {wrong}: broken, or changed since; remove it, get it again, and call make again")
    print(f"{archive}: as it should be", file=sys.stderr)


if __name__ == "__main__":
    main()

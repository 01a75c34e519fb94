"""Verifies archives against a list of known checksums and sizes.

    python archives.py LIST ARCHIVE --verified FILE

checks ARCHIVE against its line in LIST, unless FILE records this check.
"""

import hashlib
import sys
from pathlib import Path
from typing import NamedTuple

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.storage.atomic import staged_file

BLOCK = 1 << 20


class Entry(NamedTuple):
    """A line of the list."""

    checksum: str  # algorithm:hexadecimal
    size: int | None  # bytes, if known
    path: str  # on the server


def read(path: Path) -> dict[str, Entry]:
    """Read a list; the keys are the file names of the archives."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {
        Path(remote).name: Entry(checksum, None if size == "-" else int(size), remote)
        for checksum, size, remote in lines
    }


def mismatch(archive: Path, entry: Entry) -> str | None:
    """Describe how a file differs from its entry; None if it matches."""
    size = archive.stat().st_size
    if entry.size not in (None, size):
        return f"it has {size} bytes and not {entry.size}"
    algorithm, checksum = entry.checksum.split(":")
    digest = hashlib.new(algorithm)
    with archive.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    found = digest.hexdigest()
    return None if found == checksum else f"its {algorithm} is {found} and not {checksum}"


@command("archives.py")
@click.argument("listed", metavar="LIST", type=PathName())
@click.argument("archive", type=PathName())
@click.option(
    "--verified", type=PathName(), help="Record the check in FILE, and do not repeat a check that it records."
)
def main(listed: Path, archive: Path, verified: Path | None) -> None:
    """Check ARCHIVE against its line in LIST."""
    entry = read(listed).get(archive.name.removesuffix(".part"))
    if entry is None:
        raise UserError(f"{archive}: {listed} does not name it")
    check = _describe_check(archive, entry)
    if verified is not None and verified.exists() and verified.read_text() == check:
        return
    fault = mismatch(archive, entry)
    if fault:
        raise UserError(f"{archive}: {fault}: broken, or changed since; remove it, get it again, and call make again")
    print(f"{archive}: as it should be", file=sys.stderr)
    if verified is not None:
        with staged_file(verified) as file:
            file.write(check.encode())


def _describe_check(archive: Path, entry: Entry) -> str:
    """What was checked: any change of the file changes its ctime, whatever times it was given."""
    found = archive.stat()
    return f"{entry.checksum} {found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}\n"


if __name__ == "__main__":
    main()

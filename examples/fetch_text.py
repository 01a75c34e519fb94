"""Fetches the text of a recipe into its work folder.

    python fetch_text.py work/text train.en.gz train.de.gz --folder FOLDER
    python fetch_text.py work/text train.en.gz train.de.gz --url https://…
    python fetch_text.py work/text train.en.gz train.de.gz --how-to-get "set MULTI30K_DIR …"

The text is fetched once. That of another folder or address replaces it, when all its files are there. A file whose
content stays the same is kept, so make repeats no step. With --how-to-get the text must be there.
"""

import fcntl
import filecmp
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import RunError, UserError

RECORD = ".from"
INCOMING = ".incoming"  # text on its way, a folder


@command("fetch_text.py")
@click.argument("text", type=PathName())
@click.argument("names", nargs=-1, required=True, metavar="FILE...")
@click.option("--folder", help="Copy the files of this folder.")
@click.option("--url", help="Download the files of this address.")
@click.option("--how-to-get", help="What to say if files are missing.")
def main(text: Path, names: tuple[str, ...], folder: str | None, url: str | None, how_to_get: str | None) -> None:
    """Fetch the FILEs into the folder TEXT."""
    missing = fetch(text, names, folder or None, url or None)
    if missing:
        raise UserError(f"{missing[0]}: {how_to_get}")


def fetch(text: Path, names: Sequence[str], folder: str | None, url: str | None) -> list[str]:
    """Fetch files from a folder, else from an address; returns those that are missing without either."""
    text.mkdir(parents=True, exist_ok=True)
    origin = folder or url
    with _locked(text):
        found = Record.read(text)

        def is_current(name: str) -> bool:
            if found is None:  # a copy may be of another folder; anything else was put there
                return folder is None and (text / name).exists()
            return name in found.names and origin in (None, found.origin) and (text / name).exists()

        missing = [name for name in names if not is_current(name)]
        if missing and origin is not None:
            replace(text, missing, origin, found)
            missing = []
    return missing


def replace(text: Path, names: Sequence[str], origin: str, found: "Record | None") -> None:
    """Fetch files from an origin, and replace those of `text` when all are there."""
    incoming = text / INCOMING
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    try:
        for name in names:
            _fetch(origin, name, incoming / name)
        Record("", frozenset()).write(text)  # from here on, files of two origins can be side by side
        for name in names:
            if not ((text / name).exists() and filecmp.cmp(incoming / name, text / name, shallow=False)):
                (incoming / name).replace(text / name)
        kept = found.names if found is not None and found.origin == origin else frozenset()
        Record(origin, kept.union(names)).write(text)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


class Record(NamedTuple):
    """The folder or address that files of the text are from, and their names."""

    origin: str
    names: frozenset[str]

    @classmethod
    def read(cls, text: Path) -> "Record | None":
        """None if the text was not fetched."""
        if not (text / RECORD).exists():
            return None
        origin, *names = (text / RECORD).read_text().splitlines()
        return cls(origin, frozenset(names))

    def write(self, text: Path) -> None:
        new = text / INCOMING / RECORD
        new.write_text("\n".join([self.origin, *sorted(self.names), ""]))
        new.replace(text / RECORD)


def _fetch(origin: str, name: str, path: Path) -> None:
    if "://" in origin:
        print(f"downloading {origin}/{name}", flush=True)
        if subprocess.run(["curl", "-fsSL", "--retry", "3", "-o", path, f"{origin}/{name}"], check=False).returncode:
            raise RunError(f"{origin}/{name}: the download failed")
    else:
        print(f"copying {origin}/{name}", flush=True)
        shutil.copyfile(Path(origin) / name, path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other make fetches into a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    main()

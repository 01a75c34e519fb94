"""Fetches the text of a recipe into its work folder.

    python fetch_text.py work/text train.en.gz train.de.gz --folder FOLDER
    python fetch_text.py work/text train.en.gz train.de.gz --url https://…
    python fetch_text.py work/text train.en.gz train.de.gz --how-to-get "set MULTI30K_DIR …"

The text is fetched once. That of another folder or address replaces it, when all its files are there. A file whose
content stays the same is kept, so make repeats no step. A file of the same folder that has changed since then is
refused, since steps may have used the earlier one. With --how-to-get the text must be there.
"""

import fcntl
import filecmp
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import RunError, UserError
from nmtkit.storage.atomic import staged_file
from nmtkit.text.reading import read_lines

RECORD = ".from"
INCOMING = ".incoming"  # begins the name of the folder of text on its way
LOCK = ".lock"
CURL_OPTIONS = Path(__file__).with_name("curl.conf")
UNKNOWN = ""  # the origin of a file while it is being replaced


@command("fetch_text.py")
@click.argument("text", type=PathName())
@click.argument("names", nargs=-1, required=True, metavar="FILE...")
@click.option("--folder", help="Copy the files of this folder.")
@click.option("--url", help="Download the files of this address.")
@click.option("--how-to-get", help="What to say if files are missing.")
def main(text: Path, names: tuple[str, ...], folder: str | None, url: str | None, how_to_get: str | None) -> None:
    """Fetch the FILEs into the folder TEXT."""
    if sum(option is not None for option in (folder, url, how_to_get)) != 1:
        raise UserError("give one of --folder, --url and --how-to-get")
    missing = fetch(text, names, folder, url)
    if missing:
        raise UserError(f"{missing[0]}: {how_to_get}")


def fetch(text: Path, names: Sequence[str], folder: str | None, url: str | None) -> list[str]:
    """Fetch files from a folder, else from an address; returns those that are missing without either.

    A file that was put into `text` by hand is kept, unless a folder is given.
    """
    text.mkdir(parents=True, exist_ok=True)
    origin = folder or url
    with _locked(text):
        for left in text.glob(f"{INCOMING}*"):  # by a kill
            shutil.rmtree(left, ignore_errors=True)
        found = Record.read(text)

        def is_current(name: str) -> bool:
            own = found.files.get(name)
            is_wanted = folder is None if own is None else own != UNKNOWN and own == (origin or found.origin)
            return is_wanted and (text / name).exists()

        for name in names:
            plain = name.removesuffix(".gz")
            if plain not in names and (text / plain).exists():
                raise UserError(f"{text / plain} would be read instead of {name}: remove it")
        missing = [name for name in names if not is_current(name)]
        for name in names:
            if (
                folder
                and name not in missing
                and has_changed(Path(folder, name), text / name, found.versions.get(name))
            ):
                raise UserError(
                    f"{folder}/{name} differs from its copy {text / name}: remove the copy to use the folder again"
                )
        if missing and origin is not None:
            replace(text, missing, origin, found, copy if folder else download)
            missing = []
    return missing


def has_changed(origin: Path, copied: Path, version: list[int] | None) -> bool:
    """Whether a file differs from its copy. One that is still of the `version` that was copied is not compared."""
    return origin.exists() and version_of(origin) != version and not filecmp.cmp(origin, copied, shallow=False)


def version_of(path: Path) -> list[int]:
    """Size and time of a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def replace(text: Path, names: Sequence[str], origin: str, found: "Record", get: Callable[[str, Path], None]) -> None:
    """Get files from an origin, and replace those of `text` when all are there."""
    # Its name is new: a curl that outlived its make cannot write there.
    incoming, versions = Path(tempfile.mkdtemp(prefix=f"{INCOMING}-", dir=text)), dict(found.versions)
    try:
        for name in names:
            versions.pop(name, None)
            if (file := Path(origin, name)).exists():
                versions[name] = version_of(file)
            (incoming / name).parent.mkdir(parents=True, exist_ok=True)
            get(f"{origin}/{name}", incoming / name)
        Record(found.origin, found.files | dict.fromkeys(names, UNKNOWN), versions).write(text)
        for name in names:
            new, old = incoming / name, text / name
            old.parent.mkdir(parents=True, exist_ok=True)
            if not (old.exists() and filecmp.cmp(new, old, shallow=False)):
                new.touch()  # newer than all that was made from the old one
                new.replace(old)
        Record(origin, found.files | dict.fromkeys(names, origin), versions).write(text)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


class Record(NamedTuple):
    """The folder or address of the last fetch, and that of each file that was fetched.

    `versions` are those of the copied files, where they are known, as by `version_of`.
    """

    origin: str
    files: dict[str, str]
    versions: dict[str, list[int]]

    @classmethod
    def read(cls, text: Path) -> "Record":
        """Raises UserError if it is damaged."""
        path = text / RECORD
        if not path.exists():
            return cls("", {}, {})
        try:
            values = json.loads(path.read_bytes())
            return cls(str(values["origin"]), dict(values["files"]), dict(values.get("versions", {})))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{path}: damaged; remove it to keep the text as it is, or remove {text} to fetch the text again"
            ) from error

    def write(self, text: Path) -> None:
        """Replace the record, also in a power failure."""
        with staged_file(text / RECORD) as file:
            file.write(json.dumps(self._asdict(), indent=1).encode())


def copy(source: str, path: Path) -> None:
    """Copy a file."""
    print(f"copying {source}", flush=True)
    try:
        shutil.copyfile(source, path)
    except OSError as error:
        if error.filename2 is None:
            raise
        raise RunError(f"cannot write {path}: {error.strerror}") from error  # shutil's error begins with the source


def download(url: str, path: Path) -> None:
    """Download a text. Raises RunError if that fails or stops, or if the text is empty or cannot be read."""
    print(f"downloading {url}", flush=True)
    if subprocess.run(["curl", "--silent", "--config", CURL_OPTIONS, "-o", path, url], check=False).returncode:
        raise RunError(f"{url}: the download failed")
    try:
        is_empty = not sum(1 for _ in read_lines(path))
    except UserError as error:
        raise RunError(f"{url}: the download is damaged: {error}") from error
    if is_empty:
        raise RunError(f"{url}: the download is damaged: it is empty")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other make fetches into a folder."""
    with ExitStack() as stack:
        with suppress(OSError):  # a folder that cannot be written, or a file system without locks
            file = stack.enter_context((folder / LOCK).open("a"))  # NFS locks only files that are open for writing
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()

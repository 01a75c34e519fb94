"""Text files, plain or compressed, line by line. A line ends at a line feed and nowhere else."""

import bz2
import gzip
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from nmtkit.errors import UserError

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


def find_side(prefix: str, language: str) -> Path:
    """The file of one side of a corpus: `prefix.language`, plain or with .gz, .xz or .bz2 behind it."""
    plain = Path(f"{prefix}.{language}")
    candidates = [plain, *(Path(f"{plain}{suffix}") for suffix in _OPENERS)]
    for path in candidates:
        if path.is_file():
            return path
    raise UserError(f"no file {plain} (nor {', '.join(path.name for path in candidates[1:])})")


def open_binary(path: Path) -> BinaryIO:
    """Open a file for reading, decompressing it by its suffix."""
    try:
        return cast(BinaryIO, _OPENERS.get(path.suffix, open)(path, "rb"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def read_raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file as bytes, without their line feeds; the last one counts also without one."""
    with open_binary(path) as file:
        try:
            for line in file:
                yield line[:-1] if line.endswith(b"\n") else line
        except (EOFError, OSError, lzma.LZMAError) as error:
            raise UserError(f"{path}: damaged or cut short ({error})") from error


def decode_line(line: bytes, path: Path, number: int) -> str:
    """Decode one line of UTF-8; the error names file, line (counted from 1) and byte."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}); "
            "convert the file, for example with iconv"
        ) from error


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, without their line feeds."""
    for number, line in enumerate(read_raw_lines(path), 1):
        yield decode_line(line, path, number)


def decode_leniently(lines: Iterable[bytes]) -> Iterator[tuple[str, bool]]:
    """Each line with its line feed taken off, and whether bytes that are not UTF-8 were replaced in it."""
    for line in lines:
        raw = line[:-1] if line.endswith(b"\n") else line
        try:
            yield raw.decode("utf-8"), False
        except UnicodeDecodeError:
            yield raw.decode("utf-8", errors="replace"), True

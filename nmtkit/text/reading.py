"""Reads plain or compressed text files line by line. Only a line feed ends a line. Skips a byte order mark."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import re
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nmtkit.console.log import logger
from nmtkit.errors import UserError
from nmtkit.wording import counted

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
COMPRESSED = tuple(_OPENERS)  #: suffixes of files that are decompressed
_DOCUMENTS = {  # by their first bytes: what they are, and what to do
    b"PK\x03\x04": (
        "a zip archive or a document",
        "nmt-generate --document docx (or odt) translates Word and OpenDocument",
    ),
    b"%PDF-": ("a PDF", "extract its text first, for example with pdftotext"),
    b"{\\rtf": ("a document in RTF", "save it as .docx or .odt"),
    b"\xd0\xcf\x11\xe0": (
        "an encrypted document, or one from an old version of Office",
        "save it as .docx or .odt without a password",
    ),
}
# The first bytes of a compressed file, which never begin a text, by the program that decompresses it.
_COMPRESSORS = re.compile(
    rb"(?P<gzip>\x1f\x8b)|(?P<xz>\xfd7zXZ\0)|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<zstd>\x28\xb5\x2f\xfd)"
)
_READ_BYTES = 1 << 16  # bytes per read
BLOCK_BYTES = 1 << 18  # of one `Block`: far below a worker's memory, and large enough to be worth sending


def find_side(prefix: str, language: str) -> Path:
    """Find the file of one side of a corpus: `prefix.language`, plain or with the suffix .gz, .xz or .bz2.

    Raises UserError if there is no such file, or if it is not a regular file.
    """
    plain = Path(f"{prefix}.{language}")
    candidates = [plain, *(Path(f"{plain}{suffix}") for suffix in _OPENERS)]
    for path in candidates:
        if path.is_file():
            return path
    for path in candidates:
        if path.exists():
            raise UserError(f"{path} is not a regular file: a corpus is read more than once, so give a file")
    hint = f"; give the prefix without .{language}" if prefix.endswith(f".{language}") else ""
    hint = hint or ("; for several corpora, give the option several times" if "," in prefix else "")
    raise UserError(f"no file {plain} (nor {', '.join(path.name for path in candidates[1:])}){hint}")


def is_regular_file(path: Path) -> bool:
    """Whether `path` is an accessible regular file, which can be read more than once."""
    return os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises PermissionError)


@contextlib.contextmanager
def _as_user_errors(path: Path | str) -> Iterator[None]:
    """Convert errors of reading or decompressing into a UserError that names `path`."""
    try:
        yield
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        raise UserError(f"{path} is damaged or truncated ({error})") from error


def check_readable(path: Path) -> None:
    """Raise UserError if a file cannot be opened. Skips pipes, because they can be opened only once."""
    with _as_user_errors(path):
        if stat.S_ISREG(path.stat().st_mode):
            path.open("rb").close()


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed according to its suffix."""
    with _as_user_errors(path), _OPENERS.get(path.suffix, partial(Path.open, mode="rb"))(path) as file:
        yield file


@contextlib.contextmanager
def _open_text(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file, decompressed according to its suffix, at its first line. Raises UserError if it is not text."""
    with _as_user_errors(path):
        if path.suffix in _OPENERS and path.is_file() and not path.stat().st_size:
            raise EOFError("it is empty")  # gzip reads it as an empty text
        file = io.BufferedReader(_OPENERS.get(path.suffix, WaitingFile)(path), _READ_BYTES)
    with file:
        with _as_user_errors(path):
            _go_to_first_line(path, file)
        yield file


def _go_to_first_line(path: Path | str, file: io.BufferedReader) -> None:
    """Skip a byte order mark of UTF-8. Raises UserError if the first bytes are not UTF-8 text."""
    begin = file.peek(16)
    for signature, (kind, remedy) in _DOCUMENTS.items():
        if begin.startswith(signature):
            raise UserError(f"{path}: {kind}, not text: {remedy}")
    if found := _COMPRESSORS.match(begin):
        program = found.lastgroup
        raise UserError(f"{path} is compressed by {program}: decompress it, for example with {program} -dc")
    every_second = [begin[offset : min(len(begin), 64) // 2 * 2 : 2] for offset in (0, 1)]
    is_utf16 = len(begin) >= 8 and [any(half) for half in every_second].count(False) == 1
    if is_utf16 or (begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and 0 in begin):
        raise UserError(f"{path} is UTF-16, not UTF-8: convert the file, for example with iconv -f UTF-16 -t UTF-8")
    if b"\n" not in begin and begin.count(b"\r") > 1:
        logger.warning("%s: lines end with carriage returns (\\r) alone: convert it with tr '\\r' '\\n'", path)
    if begin.startswith(codecs.BOM_UTF8):  # a tokenizer would read it as a character of the first word
        file.read(len(codecs.BOM_UTF8))


def read_raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as bytes, without line feeds. The last line may lack one."""
    with _open_text(path) as file, _as_user_errors(path):
        for line in file:
            yield line.removesuffix(b"\n")


class WaitingFile(io.FileIO):
    """A file that waits even if its descriptor is non-blocking, for example a pipe shared with Node.js.

    Otherwise Python takes a pause for the end of the input, and a full pipe may raise an error or lose output.
    """

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Wait for input, read it into `buffer`, and return the number of bytes, 0 at the end of the file."""
        while (count := super().readinto(buffer)) is None:
            select.select([self], [], [])
        return count

    def write(self, data: "ReadableBuffer") -> int:
        """Wait until writing is possible, write, and return the number of bytes written, perhaps not all."""
        while (count := super().write(data)) is None:
            select.select([], [self], [])
        return count


def read_raw_stdin() -> Iterator[bytes]:
    """Yield the lines of stdin as bytes, each as soon as it is complete.

    Opens a separate file object: a thread that waits for a line must not hold the lock of `sys.stdin`, which Python
    needs at exit.
    """
    stdin: io.BufferedReader = io.BufferedReader(WaitingFile(sys.stdin.fileno(), closefd=False), _READ_BYTES)
    with _as_user_errors("stdin"), stdin:
        _go_to_first_line("stdin", stdin)
        for line in stdin:
            yield line.removesuffix(b"\n")


def decode_line(line: bytes, path: Path | str, number: int) -> str:
    """Decode a UTF-8 line. Raises UserError that names the file, the line, counted from 1, and the byte."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number} is not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}): "
            "convert the file, for example with iconv"
        ) from error


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, without line feeds."""
    for number, line in enumerate(read_raw_lines(path), 1):
        yield decode_line(line, path, number)


@dataclass(frozen=True)
class Block:
    """Consecutive lines of a file as bytes, the unit of work of a worker process."""

    path: Path
    first: int  #: the number of the first line, counted from 1
    count: int  #: number of lines
    content: bytes  #: the lines, each with a line feed

    @cached_property
    def text(self) -> str:
        """The decoded content. Raises UserError with the line number if a line is not UTF-8."""
        try:
            return self.content.decode("utf-8")
        except UnicodeDecodeError:
            lines = enumerate(self.raw_lines(), self.first)
            return "\n".join(decode_line(line, self.path, number) for number, line in lines)

    def raw_lines(self) -> list[bytes]:
        """Return the lines as bytes, without line feeds."""
        return self.content.removesuffix(b"\n").split(b"\n")

    def lines(self) -> list[str]:
        """Return the decoded lines without line feeds. Raises UserError with the number of a line that is not UTF-8."""
        return self.text.removesuffix("\n").split("\n")


def read_parallel(source: Path, target: Path) -> Iterator[tuple[Block, Block]]:
    """Read two files in parallel, and yield pairs of blocks with the same line numbers.

    Raises UserError with the names of both files if their numbers of lines differ.
    """
    first = 1
    with _open_text(source) as source_file, _open_text(target) as target_file:
        while True:
            with _as_user_errors(source):
                source_block = _block(source, first, source_file.readlines(BLOCK_BYTES - 1))
            with _as_user_errors(target):
                # at the end of the source, read one more line to check that the target also ends
                target_block = _block(target, first, list(islice(target_file, source_block.count or 1)))
            if source_block.count != target_block.count:
                source_count, target_count = (sum(1 for _ in read_raw_lines(path)) for path in (source, target))
                raise UserError(
                    f"{source} has {counted(source_count, 'line')} and {target} has {target_count}: "
                    "the two sides must correspond line by line"
                )
            if not source_block.count:
                return
            yield source_block, target_block
            first += source_block.count


def _block(path: Path, first: int, lines: list[bytes]) -> Block:
    """Create a block of lines, and add a missing line feed to the last."""
    content = b"".join(lines)
    return Block(path, first, len(lines), content if not lines or content.endswith(b"\n") else content + b"\n")

"""Text files, plain or compressed, line by line. A line ends at a line feed and nowhere else."""

import bz2
import contextlib
import gzip
import io
import itertools
import json
import lzma
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from nmtkit.errors import UserError
from nmtkit.wording import counted

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor


class _Decompressed(io.RawIOBase):
    """The content of a file of .bz2 or .xz streams. Raises EOFError, OSError or lzma.LZMAError where one is damaged.

    Python's own readers take a damaged stream after a complete one for the end of the file, and refuse the padding that
    .xz allows there.
    """

    def __init__(self, path: Path, new_stream: "Callable[[], Decompressor]") -> None:
        self._file = path.open("rb")
        self._new_stream, self._stream, self._input = new_stream, new_stream(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill `buffer`; returns the number of bytes, 0 at the end of the file."""
        room = memoryview(buffer).cast("B")
        while True:
            if self._stream.eof and not self._start_next():
                return 0
            if self._stream.needs_input and not self._input:
                self._input = self._file.read(_BLOCK_BYTES)
                if not self._input:
                    raise EOFError("its last stream is incomplete")
            data, self._input = self._stream.decompress(self._input, len(room)), b""
            if data:
                room[: len(data)] = data
                return len(data)

    def _start_next(self) -> bool:
        """Start the next stream, past any padding; False where the file ends."""
        found = self._stream.unused_data.lstrip(b"\0")
        while not found:
            block = self._file.read(_BLOCK_BYTES)
            if not block:
                return False
            found = block.lstrip(b"\0")
        self._stream, self._input = self._new_stream(), found
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".xz": partial(_Decompressed, new_stream=partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)),
    ".bz2": partial(_Decompressed, new_stream=bz2.BZ2Decompressor),
}
_BEGINNINGS = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ\0", ".bz2": b"BZh"}
_BLOCK_BYTES = 1 << 16  # of a compressed file, read at once
_LONGEST_LINE = 1 << 26  # bytes
BLOCK_BYTES = 1 << 18  # a worker's portion: small beside its memory, large beside the cost of passing it on


def is_language(name: object) -> bool:
    """Whether it can be the name of a language: the ending of a file's name."""
    return isinstance(name, str) and name != "" and "/" not in name and name.isprintable()


def find_side(prefix: str, language: str) -> Path:
    """The file of one side of a corpus: `prefix.language`, plain or with .gz, .xz or .bz2 behind it."""
    plain = Path(f"{prefix}.{language}")
    candidates = [plain, *(Path(f"{plain}{suffix}") for suffix in _OPENERS)]
    for path in candidates:
        if path.is_file():
            return path
    for path in candidates:
        if path.exists():
            raise UserError(f"{path}: not a regular file: a corpus is read more than once, so give a file")
    hint = f"; give the prefix without .{language}" if prefix.endswith(f".{language}") else ""
    raise UserError(f"no file {plain} (nor {', '.join(path.name for path in candidates[1:])}){hint}")


def is_ordinary(path: Path) -> bool:
    """Whether it is a file that can be read more than once; of what cannot be looked at, opening it will tell."""
    try:
        return path.is_file()
    except OSError:
        return False


def open_binary(path: Path) -> BinaryIO:
    """Open a file for reading, decompressing it by its suffix."""
    try:
        if path.suffix in _OPENERS and is_ordinary(path):
            _check_beginning(path)
        opener = _OPENERS.get(path.suffix)
        file = path.open("rb", buffering=0) if opener is None else opener(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    return cast(BinaryIO, io.BufferedReader(file, 1 << 16))


def _check_beginning(path: Path) -> None:
    """Refuse what is not compressed as its name says. A file that is cut short later is found out as it is read."""
    expected = _BEGINNINGS[path.suffix]
    with path.open("rb") as file:
        found = file.read(len(expected))
    if not found:  # which gzip takes for an empty text
        raise UserError(f"{path}: cut short, it has not even a beginning")
    if not expected.startswith(found):
        raise UserError(f"{path}: not compressed as its name says: compress it, or take {path.suffix} from its name")


def read_whole(path: Path, limit: int) -> bytes:
    """The content of a file or pipe. UserError for more than `limit` bytes: a device may have no end."""
    content = bytearray()
    with path.open("rb") as file:
        while block := file.read(1 << 16):  # read(limit) would allocate all of it for a small file, too
            content += block
            if len(content) > limit:
                raise UserError(f"more than {limit} bytes")
    return bytes(content)


def parse_json(text: str) -> Any:
    """The value of a JSON text. ValueError also for a key that an object has twice, and for one nested too deeply."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice[:40]!r} is given twice")
    return values


@contextlib.contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Turn what goes wrong while `path` is read or decompressed into an error that names it."""
    try:
        yield
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        raise UserError(f"{path}: damaged or cut short ({error})") from error


def check_readable(path: Path) -> None:
    """Raise UserError where a file cannot be opened: to know it before the work. A pipe, which opens once, is left."""
    with _naming(path):
        if stat.S_ISREG(path.stat().st_mode):
            path.open("rb").close()


def read_raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file as bytes, without their line feeds; the last one counts also without one."""
    with open_binary(path) as file, _naming(path):
        yield from _lines(file)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    for line in iter(partial(file.readline, _LONGEST_LINE + 1), b""):
        if len(line) > _LONGEST_LINE:  # /dev/zero would fill the memory
            raise OSError(f"a line of more than {_LONGEST_LINE >> 20} MiB: not a text")
        yield line[:-1] if line.endswith(b"\n") else line


def read_raw_stdin() -> Iterator[bytes]:
    """The same of stdin, which may be a pipe or a terminal: a line is given as soon as it is complete.

    Through a file object of its own: a thread that waits for a line must not hold what Python closes when it ends.
    """
    with _naming("stdin"), open(sys.stdin.fileno(), "rb", 1 << 16, closefd=False) as file:
        yield from _lines(file)


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


@dataclass(frozen=True)
class Block:
    """Successive lines of a file, still as bytes: what one process hands another to work on."""

    path: Path
    first: int  #: the number of the first line, counted from 1
    count: int  #: how many lines it holds
    content: bytes

    def raw_lines(self) -> list[bytes]:
        """The lines without their line feeds."""
        return self.content.removesuffix(b"\n").split(b"\n")

    def lines(self) -> list[str]:
        """The lines without their line feeds, decoded. Raises UserError that names the line that is not UTF-8."""
        try:
            return self.content.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError:
            return [decode_line(line, self.path, number) for number, line in enumerate(self.raw_lines(), self.first)]


def read_parallel(source: Path, target: Path) -> Iterator[tuple[Block, Block]]:
    """Two files side by side, in blocks that hold the same lines of both.

    Raises UserError that names both files when one has more lines than the other.
    """
    first = 1
    with open_binary(source) as source_file, open_binary(target) as target_file:
        while True:
            with _naming(source):
                source_lines = source_file.readlines(BLOCK_BYTES)
            with _naming(target):
                # one line is asked for at the end of the source, to see that the target ends there too
                target_lines = list(itertools.islice(target_file, len(source_lines) or 1))
            if len(source_lines) != len(target_lines):
                seen = first - 1
                with _naming(source):
                    source_count = seen + len(source_lines) + sum(1 for _ in source_file)
                with _naming(target):
                    target_count = seen + len(target_lines) + sum(1 for _ in target_file)
                raise UserError(
                    f"{source} has {counted(source_count, 'line')} and {target} has {target_count}: "
                    "the two sides must correspond line by line"
                )
            if not source_lines:
                return
            count = len(source_lines)
            yield (
                Block(source, first, count, b"".join(source_lines)),
                Block(target, first, count, b"".join(target_lines)),
            )
            first += count


def decode_leniently(lines: Iterable[bytes]) -> Iterator[tuple[str, bool]]:
    """Each line as text, and whether bytes that are not UTF-8 were replaced in it."""
    for line in lines:
        try:
            yield line.decode("utf-8"), False
        except UnicodeDecodeError:
            yield line.decode("utf-8", errors="replace"), True

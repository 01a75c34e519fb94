"""Reads text files, plain or compressed, line by line. Only a line feed ends a line. A byte order mark is skipped."""

import bz2
import codecs
import contextlib
import errno
import gzip
import io
import lzma
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmtkit.errors import UserError
from nmtkit.wording import counted

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor


class _DecompressingReader(io.RawIOBase):
    """Decompresses a file of one or more .bz2 or .xz streams. Raises EOFError, OSError or lzma.LZMAError for damage.

    Python's own readers treat a damaged stream after a complete one as the end of the file, and reject the padding that
    .xz allows there.
    """

    def __init__(self, path: Path, new_stream: "Callable[[], Decompressor]") -> None:
        self._file = path.open("rb")
        self._new_stream, self._stream, self._input = new_stream, new_stream(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read into `buffer`, and return the number of bytes, 0 at the end of the file."""
        view = memoryview(buffer).cast("B")
        while True:
            if self._stream.eof and not self._start_next_stream():
                return 0
            if self._stream.needs_input and not self._input:
                self._input = self._file.read(_READ_BYTES)
                if not self._input:
                    raise EOFError("its last stream is incomplete")
            data, self._input = self._stream.decompress(self._input, len(view)), b""
            if data:
                view[: len(data)] = data
                return len(data)

    def _start_next_stream(self) -> bool:
        """Skip padding and start the next stream. Returns False at the end of the file."""
        data = self._stream.unused_data.lstrip(b"\0")
        while not data:
            chunk = self._file.read(_READ_BYTES)
            if not chunk:
                return False
            data = chunk.lstrip(b"\0")
        self._stream, self._input = self._new_stream(), data
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".xz": partial(_DecompressingReader, new_stream=partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)),
    ".bz2": partial(_DecompressingReader, new_stream=bz2.BZ2Decompressor),
}
COMPRESSED = tuple(_OPENERS)  #: suffixes of files that are decompressed
_MAGIC = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ\0", ".bz2": b"BZh"}
_COMPRESSORS = {  # the first bytes of a compressed text, which no text has, and the program that decompresses it
    _MAGIC[".gz"]: "gzip",
    _MAGIC[".xz"]: "xz",
    **{_MAGIC[".bz2"] + b"%d1AY&SY" % level: "bzip2" for level in range(1, 10)},
    b"\x28\xb5\x2f\xfd": "zstd",
}
_READ_BYTES = 1 << 16  # read at a time
_MAX_LINE_BYTES = 1 << 24  # SentencePiece takes 58 bytes of memory for each of them
BLOCK_BYTES = 1 << 18  # of one `Block`: small against a worker's memory, large against the cost of sending it
_TARGET_BYTES = 8 * BLOCK_BYTES  # of the target in a `Block`, which has as many lines as the source; rarely reached


def find_side(prefix: str, language: str) -> Path:
    """Find the file of one side of a corpus: `prefix.language`, plain or with the suffix .gz, .xz or .bz2.

    Raises UserError if there is none, or if it is not a regular file.
    """
    plain = Path(f"{prefix}.{language}")
    candidates = [plain, *(Path(f"{plain}{suffix}") for suffix in _OPENERS)]
    for path in candidates:
        if path.is_file():
            return path
    for path in candidates:
        if path.exists():
            raise UserError(f"{path}: not a regular file: a corpus is read more than once, so give a file")
    hint = f"; give the prefix without .{language}" if prefix.endswith(f".{language}") else ""
    hint = hint or ("; for several corpora, give the option several times" if "," in prefix else "")
    raise UserError(f"no file {plain} (nor {', '.join(path.name for path in candidates[1:])}){hint}")


def is_regular_file(path: Path) -> bool:
    """Whether `path` is a regular file, which can be read more than once. False if it is inaccessible."""
    try:
        return path.is_file()
    except OSError:
        return False


def refuse_special_file(path: Path) -> None:
    """Raise UserError if `path` exists and is not a regular file: opening a pipe would wait for its writer."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path.name} is not a regular file")


def open_binary(path: Path) -> io.BufferedReader:
    """Open a file for reading, and decompress it according to its suffix. Raises UserError if it cannot be opened."""
    try:
        if path.suffix in _OPENERS and is_regular_file(path):
            _check_magic(path)
        opener = _OPENERS.get(path.suffix)
        file = path.open("rb", buffering=0) if opener is None else opener(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    return io.BufferedReader(file, 1 << 16)


def _check_magic(path: Path) -> None:
    """Raise UserError if a file does not begin with the magic bytes of its suffix. Reading detects later damage."""
    expected = _MAGIC[path.suffix]
    with path.open("rb") as file:
        found = file.read(len(expected))
    if not found:  # gzip would read it as empty text
        raise UserError(f"{path}: truncated: it does not even have a header")
    if not expected.startswith(found):
        raise UserError(f"{path}: the content is not that of a {path.suffix} file: rename it")


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a whole file or pipe. Raises UserError beyond `limit` bytes, since a device may be endless."""
    content = bytearray()
    with path.open("rb") as file:
        try:
            while chunk := file.read(_READ_BYTES):  # read(limit) would allocate `limit` bytes even for a small file
                content += chunk
                if len(content) > limit:
                    raise UserError(f"more than {limit} bytes")
        except OSError as error:
            error.filename = str(path)  # only `open` names the file
            raise
    return bytes(content)


@contextlib.contextmanager
def _as_user_errors(path: Path | str) -> Iterator[None]:
    """Convert errors of reading or decompressing `path` into a UserError that names it."""
    try:
        yield
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        raise UserError(f"{path}: damaged or truncated ({error})") from error


def check_readable(path: Path) -> None:
    """Raise UserError if a file cannot be opened. Pipes are not tried, since they can be opened only once."""
    with _as_user_errors(path):
        if stat.S_ISREG(path.stat().st_mode):
            path.open("rb").close()


def read_raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as bytes, without line feeds. The last line may lack one."""
    with open_binary(path) as file, _as_user_errors(path):
        yield from _lines(path, file)


def _lines(path: Path | str, file: io.BufferedReader) -> Iterator[bytes]:
    _refuse_other_content(path, file)
    _skip_byte_order_mark(file)
    return (line[:-1] if line.endswith(b"\n") else line for line in _complete_lines(file))


def _skip_byte_order_mark(file: io.BufferedReader) -> None:
    """Skip the bytes by which some editors mark UTF-8; to a tokenizer they are a character of the first word."""
    if file.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))


def _complete_lines(file: io.BufferedReader) -> Iterator[bytes]:
    """The lines of a file with their line feeds."""
    for line in iter(partial(file.readline, _MAX_LINE_BYTES + 1), b""):
        _check_line_size(len(line))
        yield line


def _check_line_size(size: int) -> None:
    """Raise OSError for a line of so many bytes that it is not text: an endless line would exhaust the memory."""
    if size > _MAX_LINE_BYTES:
        raise OSError(errno.EFBIG, f"a line of more than {_MAX_LINE_BYTES >> 20} MiB, which is not text")


def _read_block(file: io.BufferedReader) -> bytes:
    """The next lines with about `BLOCK_BYTES` in total; nothing at the end of the file."""
    content = file.read(BLOCK_BYTES - 1)
    return content + _read_lines(file, 1, len(content) - content.rfind(b"\n") - 1)


def _read_lines(file: io.BufferedReader, count: int, line_bytes: int = 0, limit: int = sys.maxsize) -> bytes:
    """The next `count` lines; fewer at the end of the file, or once they have `limit` bytes.

    `line_bytes` of the first one are read already.
    """
    parts, size = [], 0
    while count and (buffered := file.peek()):
        *ends, rest = buffered.split(b"\n", count)
        _check_line_size(line_bytes + (len(ends[0]) + 1 if ends else len(rest)))
        line_bytes = len(rest) if ends else line_bytes + len(rest)
        count -= len(ends)
        parts.append(file.read(len(buffered) - (0 if count else len(rest))))
        size += len(parts[-1])
        if size >= limit:
            count = min(count, 1 if line_bytes else 0)
    return b"".join(parts)


def _end_last_line(content: bytes) -> bytes:
    """Add the line feed that the last line of a file may lack."""
    return content if content.endswith(b"\n") or not content else content + b"\n"


class WaitingFile(io.FileIO):
    """A file that waits if its descriptor is non-blocking, as that of a pipe shared with Node.js may be.

    To Python, a pause is the end of such an input, and a full pipe an error, or no error at all.
    """

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read into `buffer` as soon as there is anything, and return the number of bytes, 0 at the end of the file."""
        while (count := super().readinto(buffer)) is None:
            select.select([self], [], [])
        return count

    def write(self, data: "ReadableBuffer") -> int:
        """Write as soon as possible, and return the number of bytes written, perhaps not all."""
        while (count := super().write(data)) is None:
            select.select([], [self], [])
        return count


def read_raw_stdin() -> Iterator[bytes]:
    """Yield the lines of stdin as bytes, each as soon as it is complete.

    It opens its own file object: a thread that waits for a line must not hold the lock of `sys.stdin`, which Python
    needs at exit.
    """
    stdin: io.BufferedReader = io.BufferedReader(WaitingFile(sys.stdin.fileno(), closefd=False), _READ_BYTES)
    with _as_user_errors("stdin"), stdin:
        yield from _lines("stdin", stdin)


def decode_line(line: bytes, path: Path | str, number: int) -> str:
    """Decode one line of UTF-8. Raises UserError that names file, line (counted from 1) and byte."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}); "
            "convert the file, for example with iconv"
        ) from error


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, without line feeds."""
    for number, line in enumerate(read_raw_lines(path), 1):
        yield decode_line(line, path, number)


@dataclass(frozen=True)
class Block:
    """Consecutive lines of a file, as bytes: the unit of work of a worker process."""

    path: Path
    first: int  #: the number of the first line, counted from 1
    count: int  #: number of lines
    content: bytes  #: the lines, each with a line feed

    @cached_property
    def text(self) -> str:
        """The decoded content. Raises UserError that names a line that is not UTF-8."""
        try:
            return self.content.decode("utf-8")
        except UnicodeDecodeError:
            lines = enumerate(self.raw_lines(), self.first)
            return "\n".join(decode_line(line, self.path, number) for number, line in lines)

    def raw_lines(self) -> list[bytes]:
        """The lines without their line feeds."""
        return self.content.removesuffix(b"\n").split(b"\n")

    def lines(self) -> list[str]:
        """The decoded lines without their line feeds. Raises UserError as `text` does."""
        return self.text.removesuffix("\n").split("\n")


def read_parallel(source: Path, target: Path) -> Iterator[tuple[Block, Block]]:
    """Read two files in parallel, as pairs of blocks with the same line numbers.

    A block ends early where the lines of the target are much longer than those of the source, so that its size has a
    limit. Raises UserError that names both files if their line counts differ.
    """
    first, rest = 1, b""
    with open_binary(source) as source_file, open_binary(target) as target_file:
        for path, file in ((source, source_file), (target, target_file)):
            with _as_user_errors(path):
                _refuse_other_content(path, file)
                _skip_byte_order_mark(file)
        while True:
            with _as_user_errors(source):
                source_lines = rest or _end_last_line(_read_block(source_file))
            count = source_lines.count(b"\n")
            with _as_user_errors(target):
                # at the end of the source, read one more line to check that the target ends too
                target_lines = _end_last_line(_read_lines(target_file, count or 1, limit=_TARGET_BYTES))
            target_count, rest = target_lines.count(b"\n"), b""
            if count > target_count and len(target_lines) >= _TARGET_BYTES:
                *_, rest = source_lines.split(b"\n", target_count)
                source_lines, count = source_lines.removesuffix(rest), target_count
            if count != target_count:
                done = first - 1
                with _as_user_errors(source):
                    source_count = done + count + sum(1 for _ in _complete_lines(source_file))
                with _as_user_errors(target):
                    target_count += done + sum(1 for _ in _complete_lines(target_file))
                raise UserError(
                    f"{source} has {counted(source_count, 'line')} and {target} has {target_count}: "
                    "the two sides must correspond line by line"
                )
            if not count:
                return
            yield Block(source, first, count, source_lines), Block(target, first, count, target_lines)
            first += count


def _refuse_other_content(path: Path | str, file: io.BufferedReader) -> None:
    """Raise UserError for compressed text, and for UTF-16: as UTF-8, they would have other lines.

    UTF-16 begins with a byte order mark, and there are zeros in its spaces and line feeds.
    """
    begin = file.peek(16)
    for magic, program in _COMPRESSORS.items():
        if begin.startswith(magic):
            raise UserError(f"{path}: compressed by {program}: decompress it, for example with {program} -dc")
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and 0 in begin:
        raise UserError(f"{path}: UTF-16, not UTF-8; convert the file, for example with iconv -f UTF-16 -t UTF-8")


def decode_with_replacement(lines: Iterable[bytes]) -> Iterator[tuple[str, bool]]:
    """Decode each line, and tell whether bytes that are not UTF-8 were replaced."""
    for line in lines:
        try:
            yield line.decode("utf-8"), False
        except UnicodeDecodeError:
            yield line.decode("utf-8", errors="replace"), True

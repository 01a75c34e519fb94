"""Divides a stream into shards and chunks. Each chunk is sorted by length, translated and written before the next."""

import re
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import Queue
from typing import TypeVar

from nmtkit.console.log import logger
from nmtkit.errors import UserError

T = TypeVar("T")

_BUFFERS_OF_A_LARGE_SHARD = 8
ALL_LINES = slice(0, None)  #: selects all lines instead of a shard
STANDARD_STREAM = Path("-")  #: stdin or stdout instead of a file


@dataclass(frozen=True)
class Shard:
    """One of `count` consecutive parts of a text."""

    number: int  #: from 1
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse a text such as 2/8, the second of eight parts. Raises UserError if it is malformed."""
        match = re.fullmatch("([0-9]+)/([0-9]+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"--shard {text}: expected I/N, the I-th of N parts, such as 1/8")
        return cls(int(match[1]), int(match[2]))

    def of(self, lines: int, buffer: int) -> slice:
        """Select the shard's lines in a text of `lines` lines.

        Large shards consist of whole buffers, so that each line is in the same batch as without shards. The sizes of
        small shards differ by at most one line.
        """
        unit = buffer if lines >= _BUFFERS_OF_A_LARGE_SHARD * buffer * self.count else 1
        units = -(-lines // unit)
        begin, end = (units * number // self.count * unit for number in (self.number - 1, self.number))
        return slice(begin, min(end, lines))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield consecutive lists of `size` items; the last may be shorter. Items are read only when a list is needed."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def chunks_as_they_come(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of all items that have arrived, at least one, from a source that may pause, such as a pipe.

    A thread prefetches up to `size` items while a chunk is processed. It ends with the source or with the process.
    """
    waiting: Queue[list[T]] = Queue(size)  # lists of one item, then an empty list at the end
    failure: list[Exception] = []

    def read() -> None:
        try:
            for item in items:
                waiting.put([item])
        except Exception as error:
            failure.append(error)
        waiting.put([])

    threading.Thread(target=read, name="reader", daemon=True).start()
    while found := waiting.get():
        chunk = [*found]
        while found and len(chunk) < size and not waiting.empty():
            found = waiting.get()
            chunk += found
        yield chunk
        if not found:
            break
    if failure:
        raise failure[0]


def reads_terminal(what_enter_does: str) -> bool:
    """Return whether stdin is a terminal; if so, log that the command waits for input."""
    if not sys.stdin.isatty():
        return False
    logger.info("reading from the terminal: press Enter to %s, Ctrl-D to finish", what_enter_does)
    return True

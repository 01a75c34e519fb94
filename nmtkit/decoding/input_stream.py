"""How a stream comes into chunks, each of which is sorted by length, translated and given back before the next."""

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from nmtkit.errors import UserError

T = TypeVar("T")

_BUFFERS_OF_A_LARGE_PART = 8
WHOLE = slice(0, None)  #: a share that is all of the input


@dataclass(frozen=True)
class Shard:
    """One of several parts of a text, which follow each other."""

    number: int  #: from 1
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read 2/8, the second of eight."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"--shard {text}: I/N is expected, the I-th of N parts, such as 1/8 up to 8/8")
        return cls(int(match[1]), int(match[2]))

    def of(self, lines: int, buffer: int) -> slice:
        """Where it stands in so many lines.

        Large parts are made of whole buffers, whose lines so share their batches with the same lines as if the text
        were not parted; small ones have the same number of lines, give or take one.
        """
        unit = buffer if lines >= _BUFFERS_OF_A_LARGE_PART * buffer * self.count else 1
        units = -(-lines // unit)
        begin, end = (units * number // self.count * unit for number in (self.number - 1, self.number))
        return slice(begin, min(end, lines))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Successive lists of `size` items, the last of what is left; nothing is read before a list is asked for."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def chunks_as_they_come(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The same for a source that may pause, such as a pipe: what has come is given, if it is but one item.

    A thread reads ahead while a chunk is worked on, never more than `size` items. It ends with the source or with the
    process.
    """
    reader = _Reader(items, size)
    threading.Thread(target=reader.run, name="reader", daemon=True).start()
    while chunk := reader.take():
        yield chunk


class _Reader(Generic[T]):
    """Items between the thread that reads them and the one that takes them."""

    def __init__(self, items: Iterable[T], limit: int) -> None:
        self._items, self._limit = items, limit
        self._waiting: list[T] = []
        self._ended = False
        self._error: Exception | None = None
        self._change = threading.Condition()

    def run(self) -> None:
        """Read to the end, or to an error, which `take` raises in its place."""
        try:
            for item in self._items:
                with self._change:
                    self._change.wait_for(lambda: len(self._waiting) < self._limit)
                    self._waiting.append(item)
                    self._change.notify()
        except Exception as error:
            self._error = error
        with self._change:
            self._ended = True
            self._change.notify()

    def take(self) -> list[T]:
        """All that has been read, at least one item; nothing at the end."""
        with self._change:
            self._change.wait_for(lambda: bool(self._waiting) or self._ended)
            taken, self._waiting = self._waiting, []
            self._change.notify()
        if self._error is not None and not taken:
            raise self._error
        return taken

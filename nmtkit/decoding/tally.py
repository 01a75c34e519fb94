"""The accounts of a stream: as many lines out as in, and what else is told at the end."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from nmtkit.errors import RunError, UserError
from nmtkit.log import logger, report
from nmtkit.text import decode_leniently
from nmtkit.wording import counted

T = TypeVar("T")


@dataclass
class Tally:
    """What went in and what came out."""

    done: int  # lines that were translated before --resume
    lines_in: int = 0
    lines_out: int = 0  # of this run
    not_utf8: int = 0
    tokens: int = 0  # of the best translations, without </s>

    def count(self, items: Iterable[T]) -> Iterator[T]:
        """Pass items on and count them."""
        for item in items:
            self.lines_in += 1
            yield item

    def decode(self, lines: Iterable[bytes]) -> list[str]:
        """Lines as text; they are counted, and those with bytes that are not UTF-8."""
        texts = []
        for line, replaced in decode_leniently(self.count(lines)):
            self.not_utf8 += replaced
            texts.append(line)
        return texts

    def check(self) -> None:
        """The promise of the command: as many lines out as in."""
        if self.lines_in < self.done:
            raise UserError(
                f"--resume: {counted(self.done, 'line')} translated already, but the input has {self.lines_in}"
            )
        if self.done + self.lines_out != self.lines_in:
            raise RunError(
                f"{self.lines_in} lines were read, but {self.done + self.lines_out} translated: this is a bug of nmtkit"
            )

    def report(self, seconds: float, precision: str) -> None:
        """Say what was done, and in which number format, on stderr."""
        if self.not_utf8:
            lines = counted(self.not_utf8, "line")
            logger.warning("%s had bytes that are not UTF-8, in whose place stands U+FFFD now", lines)
        values = {"sentences": self.lines_out, "tokens": self.tokens, "seconds": round(seconds, 2)}
        rates = {"sentences/s": self.lines_out / seconds, "tokens/s": self.tokens / seconds}
        report("translated", values | rates | {"precision": precision})

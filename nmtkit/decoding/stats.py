"""Statistics of a stream: checks that there are as many lines out as in, and reports the totals at the end."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from nmtkit.console.log import logger, report
from nmtkit.errors import RunError
from nmtkit.text.vocabulary import UNK, unknown_percent, warn_of_unknown
from nmtkit.wording import counted

if TYPE_CHECKING:
    from nmtkit.decoding.translation import Translation
    from nmtkit.inference.protocol import InferenceModel

T = TypeVar("T")
_NEARLY_ALL = 0.9  # of the lines with text


@dataclass
class StreamStats:
    """Counts of lines and tokens. `done` lines were translated by an earlier run, and --resume keeps them."""

    done: int
    lines_in: int = 0
    lines_out: int = 0  #: of this run
    with_text: int = 0  #: of these, lines that are not blank
    empty: int = 0  #: of these, lines with an empty translation
    not_utf8: int = 0  #: lines
    tokens: int = 0  #: of the best translations, without </s>
    source_tokens: int = 0  #: with </s>, as datasets count them
    unknown: int = 0  #: source tokens

    def count(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items unchanged, and count each as a line."""
        for item in items:
            self.lines_in += 1
            yield item

    def decode(self, lines: Iterable[bytes]) -> list[str]:
        """Decode lines to text. Counts the lines, and the lines with bytes that are not UTF-8."""
        texts = []
        for line in self.count(lines):
            try:
                texts.append(line.decode())
            except UnicodeDecodeError:
                texts.append(line.decode(errors="replace"))
                self.not_utf8 += 1
        return texts

    def add(self, translation: "Translation") -> None:
        """Count a translated line."""
        self.lines_out += 1
        if translation.source.strip():
            self.with_text += 1
            self.empty += not translation.text.strip()
        self.tokens += max(0, len(translation.candidates[0].tokens) - 1)
        self.source_tokens += len(translation.source_ids) + 1
        self.unknown += translation.source_ids.count(UNK)

    def check(self) -> None:
        """Raise RunError if input and output differ in lines."""
        if self.done + self.lines_out != self.lines_in:
            raise RunError(
                f"{self.lines_in} lines were read, but {self.done + self.lines_out} were translated: a bug in nmtkit"
            )

    def report(self, seconds: float, source: str, language: str, model: "InferenceModel", next: str = "") -> None:
        """Log the totals of a run that took `seconds`.

        `source` is the name of the input, `language` the source language, `model` the model that translated, and
        `next` the command to run next.
        """
        if self.not_utf8:
            lines = counted(self.not_utf8, "line")
            logger.warning("%s had bytes that are not UTF-8; they were replaced with U+FFFD", lines)
        if self.empty > _NEARLY_ALL * self.with_text:
            advice = "does the model support these languages, and is the text prepared like its training text?"
            logger.warning("%d of %s are empty: %s", self.empty, counted(self.with_text, "translated line"), advice)
        percent = unknown_percent(self.unknown, self.source_tokens)
        warn_of_unknown(source, percent)
        values: dict[str, object] = {"sentences": self.lines_out, "tokens": self.tokens, "seconds": round(seconds, 2)}
        rates = {"sentences/s": self.lines_out / seconds, "tokens/s": self.tokens / seconds}
        values |= rates | {f"{language} unknown %": percent, "precision": model.precision}
        report("translated", values, table="translation", next=next)
        if model.faster_precision is not None:
            logger.info("--precision %s is faster on this CPU, and changes some translations", model.faster_precision)

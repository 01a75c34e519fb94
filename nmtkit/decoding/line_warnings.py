"""Warnings about lines that were not translated as requested."""

from collections import Counter
from collections.abc import Iterator, Sequence

from nmtkit.console.log import logger
from nmtkit.decoding.engine import Task
from nmtkit.decoding.rules import contains
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.tasks import Sentence, SourceLimit
from nmtkit.text.vocabulary import UNK
from nmtkit.wording import counted

_CUT = "{lines} truncated to {limit} ({reason})"
_SPLIT = "{lines} translated in parts of at most {limit} ({reason})"
_PREFIX_CUT = "{lines} with a prefix truncated to {positions} (the model has no more positions)"
_PREFIX_UNKNOWN = "{lines} with a prefix that the model has no pieces for: the output has unknown pieces instead"
_TERMS_TOO_LONG = "{lines} translated without the required terms: the model has positions for only {positions}"
_TERMS_FORBIDDEN = "{lines} translated without the required terms: other options forbid them"


class LineWarnings:
    """Counts the lines of a stream by warning, to log each warning once."""

    def __init__(self, limit: SourceLimit, positions: int | None) -> None:
        """`positions` is the most tokens of an output, without EOS; None for any number."""
        self._limit, self._positions = limit, positions
        self._lines: Counter[str] = Counter()

    def add(self, sentence: Sentence, found: Sequence[list[Hypothesis]]) -> None:
        """Count a sentence, given the hypotheses of each of its tasks."""
        self._lines.update(set(self._warnings(sentence, found)))

    def log(self) -> None:
        """Log each warning with its number of lines."""
        limit = counted(self._limit.tokens, "token")
        positions = counted(self._positions or 0, "token")
        for warning in (_CUT, _SPLIT, _PREFIX_CUT, _PREFIX_UNKNOWN, _TERMS_TOO_LONG, _TERMS_FORBIDDEN):
            if count := self._lines[warning]:
                lines, reason = counted(count, "line"), self._limit.reason
                logger.warning(warning.format(lines=lines, limit=limit, reason=reason, positions=positions))

    def _warnings(self, sentence: Sentence, found: Sequence[list[Hypothesis]]) -> Iterator[str]:
        if len(sentence.tasks) > 1:
            yield _SPLIT
        elif sentence.length > self._limit.tokens:
            yield _CUT
        for task, nbest in zip(sentence.tasks, found, strict=True):
            if sentence.prefix_is_cut:
                yield _PREFIX_CUT
            if UNK in task.constraints.prefix:
                yield _PREFIX_UNKNOWN
            if _lacks_terms(task, nbest[0]):
                fit = self._positions is None or task.constraints.required_tokens <= self._positions
                yield _TERMS_FORBIDDEN if fit else _TERMS_TOO_LONG


def _lacks_terms(task: Task, best: Hypothesis) -> bool:
    """Whether a required term is missing: the search found no output with all terms and searched without them."""
    return not all(contains(tuple(best.ids), term) for term in task.constraints.terms)

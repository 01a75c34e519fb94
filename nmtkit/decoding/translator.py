"""From lines of text to translations: a stream, sorted into batches, searched, and given back in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.decoding.config import EngineConfig, SearchConfig, StreamConfig
from nmtkit.decoding.engine import Batch, Engine, Workers, here, load_model, longest_sequence
from nmtkit.decoding.search import Hypothesis
from nmtkit.log import logger
from nmtkit.model.config import WeightsConfig
from nmtkit.model.transformer import Transformer
from nmtkit.tokenizer import Tokenizer
from nmtkit.vocab import EOS, SPECIALS

T = TypeVar("T")
Advance = Callable[[int], object]


def _ignore(count: int) -> None:
    """Nobody asks how far the work has come."""


@dataclass(frozen=True)
class Candidate:
    """One translation of a line.

    `tokens` are the pieces with `</s>` at their end, `token_log_probs` the log-probability of each, and `score` is
    their sum over the length penalty. A blank line's translation has no tokens and the score 0.
    """

    text: str
    score: float = 0.0
    tokens: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Translation:
    """What one line became: up to `nbest` candidates, at least one, best first."""

    source: str
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The best translation, without line breaks."""
        return self.candidates[0].text


@dataclass(frozen=True)
class _Sentence:
    """A line with its pieces, of which there are none if it is blank."""

    text: str
    ids: list[int]


class Translator:
    """A trained model with its tokenizers: raw text in, raw text out.

    >>> translator = Translator.from_checkpoint("averaged.pt")
    >>> translator.translate(["A dog runs.", "", "Two men talk."], beam=4)
    ['Ein Hund rennt.', '', 'Zwei Männer reden.']
    """

    def __init__(
        self,
        model: Transformer,
        source: Tokenizer,
        target: Tokenizer,
        engine: Engine | None = None,
    ) -> None:
        """`model` in evaluation mode, on the device and in the number format that it is to run in.

        `engine` searches in another place than this process.
        """
        self.model, self.source, self.target = model, source, target
        self._engine = engine or here(model)
        self._longest = longest_sequence(model)

    @classmethod
    def from_checkpoint(cls, path: str | Path, weights: str = "auto", **engine: Any) -> "Translator":
        """Load a checkpoint. `engine` are the fields of `EngineConfig`: device, precision, threads, workers.

        `weights` are those that were trained, or their moving average (see `WeightsConfig`). Each of several workers
        imports the script, which must keep what it does under `if __name__ == "__main__"`. Raises UserError if the
        file is missing or damaged, or the device cannot be used.
        """
        choice, config = WeightsConfig(weights), EngineConfig(**engine)
        return cls.of(load_checkpoint(Path(path)), config, choice, Path(path))

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        engine: EngineConfig,
        choice: WeightsConfig | None = None,
        path: Path | None = None,
    ) -> "Translator":
        """A translator for a checkpoint that is in memory already. Its `path` is where workers find it."""
        weights = (choice or WeightsConfig()).weights
        model = load_model(checkpoint, engine, weights)
        workers = None if path is None or engine.workers == 1 else Workers(path, engine, weights)
        return cls(model, checkpoint.source, checkpoint.target, workers)

    def translate(self, lines: Iterable[str], **options: Any) -> list[str]:
        """The best translation of each line. `options` are the fields of `SearchConfig`, such as beam=4."""
        if isinstance(lines, str):
            raise TypeError("translate takes a list of lines, not one text: write [line]")
        return [translation.text for translation in self.stream(lines, SearchConfig(**options))]

    def stream(
        self,
        lines: Iterable[str],
        config: SearchConfig | None = None,
        batches: StreamConfig | None = None,
        advance: Advance = _ignore,
    ) -> Iterator[Translation]:
        """One translation for each line, in order, while the lines are read: at most `batches.buffer` ahead.

        Blank lines, and those that leave the tokenizer without a piece, become empty without reaching the model.
        Lines beyond `batches.max_source_tokens` are cut, and a warning at the end counts them. Raises RunError where
        the model gives no finite probabilities. `advance` is called with each number of lines that have been
        translated, be it that others before them have not, so that they are not given back yet.
        """
        return self._stream(lines, self._encode, config or SearchConfig(), batches or StreamConfig(), advance)

    def stream_encoded(
        self,
        sentences: Iterable[Sequence[int]],
        config: SearchConfig | None = None,
        batches: StreamConfig | None = None,
        advance: Advance = _ignore,
    ) -> Iterator[Translation]:
        """Like `stream`, for sentences that are ids of the source vocabulary already, without EOS."""
        return self._stream(
            sentences, self._decode_source, config or SearchConfig(), batches or StreamConfig(), advance
        )

    def _encode(self, lines: list[str]) -> list[_Sentence]:
        encoded = zip(lines, self.source.encode(lines), strict=True)
        return [_Sentence(line, ids if line.strip() else []) for line, ids in encoded]

    def _decode_source(self, sentences: list[Sequence[int]]) -> list[_Sentence]:
        return [_Sentence(self.source.decode(ids), list(ids)) for ids in sentences]

    def _stream(
        self,
        items: Iterable[T],
        prepare: Callable[[list[T]], list[_Sentence]],
        config: SearchConfig,
        batches: StreamConfig,
        advance: Advance,
    ) -> Iterator[Translation]:
        longest = min(batches.max_source_tokens, self._longest or batches.max_source_tokens)
        overlong = 0
        for chunk in _chunks(items, batches.buffer):
            sentences = prepare(chunk)
            overlong += sum(len(sentence.ids) > longest for sentence in sentences)
            rows = [sentence.ids[:longest] for sentence in sentences]
            found = _searched(self._engine, rows, config, batches.batch_tokens, advance)
            for number, hypotheses in _in_order(found):
                yield self._translation(sentences[number], hypotheses)
        if overlong:
            logger.warning("%d lines were cut to their first %d tokens (--max-source-tokens)", overlong, longest)

    def _translation(self, sentence: _Sentence, hypotheses: list[Hypothesis]) -> Translation:
        candidates = tuple(
            Candidate(
                self.target.decode(hypothesis.ids),
                hypothesis.score,
                (*self.target.vocab.text(hypothesis.ids), SPECIALS[EOS]),
                tuple(hypothesis.token_log_probs),
            )
            for hypothesis in hypotheses
        )
        return Translation(sentence.text, candidates or (Candidate(""),))


def _searched(
    engine: Engine, rows: list[list[int]], config: SearchConfig, batch_tokens: int, advance: Advance
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The hypotheses of each sentence, in the order of their batches; none for a sentence without pieces."""
    advance(sum(not ids for ids in rows))
    yield from ((number, []) for number, ids in enumerate(rows) if not ids)
    numbers = list(batches_by_length([len(ids) for ids in rows], batch_tokens))
    batches = (Batch([[*rows[number], EOS] for number in batch], config) for batch in numbers)
    for batch, found in zip(numbers, engine(batches), strict=True):
        advance(len(batch))
        yield from zip(batch, found, strict=True)


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """The numbers of the sentences that have tokens, cut into batches of similar lengths, longest first.

    A batch's longest sentence with its EOS, times its sentences, is at most `batch_tokens`, or it is one sentence.
    """
    numbers = sorted((n for n, length in enumerate(lengths) if length), key=lambda n: lengths[n], reverse=True)
    start = 0
    while start < len(numbers):
        size = max(1, batch_tokens // (lengths[numbers[start]] + 1))
        yield numbers[start : start + size]
        start += size


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Successive lists of at most `size` items; nothing is read before the last list has been worked off."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _in_order(numbered: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
    """Pairs numbered 0, 1, 2, … that come in any order, each as soon as all before it have been given."""
    waiting: dict[int, T] = {}
    due = 0
    for number, item in numbered:
        waiting[number] = item
        while due in waiting:
            yield due, waiting.pop(due)
            due += 1

"""From lines of text to translations: a stream, sorted into batches, searched, and given back in order."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar, overload

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.decoding.alignment import all_heads
from nmtkit.decoding.attention_page import Attention
from nmtkit.decoding.config import EngineConfig, SearchConfig, StreamConfig
from nmtkit.decoding.engine import Engine, SearchBatch, Task, Workers, check_memory, here, load
from nmtkit.decoding.input_stream import chunks
from nmtkit.decoding.overlong import parts as parts_of
from nmtkit.decoding.requests import Request
from nmtkit.decoding.rules import NO_CONSTRAINTS, Constraints
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.translation import Candidate, SourcePieces, Translation, compose, different_texts, word_numbers
from nmtkit.errors import UserError
from nmtkit.inference.protocol import InferenceModel
from nmtkit.log import logger
from nmtkit.model.config import WeightsConfig
from nmtkit.tokenizer import SPACE, Tokenizer
from nmtkit.vocab import EOS, SPECIALS, UNK
from nmtkit.wording import counted

T = TypeVar("T")
Advance = Callable[[int], object]

_TELL = {
    "cut": "{lines} cut to the first {longest} ({reason})",
    "split": "{lines} translated in parts of at most {longest} ({reason})",
    "without terms": "{lines} translated without the terms that must come: other options forbid them",
    "unknown prefix": "{lines} with a prefix that the model has no pieces for: unknown ones stand in its place",
}


def _ignore(count: int) -> None:
    """Nobody asks how far the work has come."""


@dataclass(frozen=True)
class _Sentence:
    """A line with its pieces, of which there are none if it is blank, and with what is asked for."""

    text: str
    ids: list[int]
    constraints: Constraints
    target: list[int] | None


class Translator:
    """A trained model with its tokenizers: raw text in, raw text out.

    >>> translator = Translator.from_checkpoint("averaged.pt")
    >>> translator.translate(["A dog runs.", "", "Two men talk."], beam=4)
    ['Ein Hund rennt.', '', 'Zwei Männer reden.']

    Threads may share one. They do not hasten each other: batches are searched one at a time, by as many processor
    cores as the model was told to use, or by its workers.
    """

    def __init__(
        self,
        model: InferenceModel,
        source: Tokenizer,
        target: Tokenizer,
        engine: Engine | None = None,
    ) -> None:
        """`engine` searches elsewhere than in this process, with the same model."""
        self.model, self.source, self.target = model, source, target
        self._engine = engine or here(model, target.decode)
        self._longest = model.longest_sequence
        self._unspellable: set[str] = set()  # terms that were told of

    @classmethod
    def from_checkpoint(cls, *paths: str | Path, weights: str = "auto", **engine: Any) -> "Translator":
        """Load a checkpoint, or an ensemble of several, whose probabilities are averaged.

        `engine` are the fields of `EngineConfig`: device, precision, threads, workers.

        `weights` are those that were trained, or their moving average (see `WeightsConfig`). Each of several workers
        imports the script, which must keep what it does under `if __name__ == "__main__"`. Raises UserError if the
        file is missing or damaged, or the device cannot be used.
        """
        if not paths:
            raise TypeError("the path of a checkpoint is expected")
        choice, config = WeightsConfig(weights), EngineConfig(**engine)
        files = [Path(path) for path in paths]
        return cls.of([load_checkpoint(file) for file in files], config, choice, files)

    @classmethod
    def of(
        cls,
        checkpoints: Sequence[Checkpoint],
        engine: EngineConfig,
        choice: WeightsConfig | None = None,
        paths: Sequence[Path] = (),
    ) -> "Translator":
        """A translator for checkpoints that are in memory already. Their `paths` are where workers find them."""
        weights = (choice or WeightsConfig()).weights
        model = load(checkpoints, engine, weights)
        workers = Workers(paths, engine, weights) if paths and engine.workers > 1 else None
        return cls(model, checkpoints[0].source, checkpoints[0].target, workers)

    @overload
    def translate(
        self, lines: Iterable[str | Request], *, nbest: None = None, progress: bool = False, **options: Any
    ) -> list[str]: ...

    @overload
    def translate(
        self, lines: Iterable[str | Request], *, nbest: int, progress: bool = False, **options: Any
    ) -> list[list[str]]: ...

    def translate(
        self, lines: Iterable[str | Request], *, nbest: int | None = None, progress: bool = False, **options: Any
    ) -> list[str] | list[list[str]]:
        """The best translation of each line; with `nbest`, a list of up to so many of them, best first.

        A `Request` in the place of a line asks for more: a prefix, or terms that must come. `options` are the other
        fields of `SearchConfig`, such as beam=4; alignments are in what `stream` gives. `progress` shows a bar, in a
        notebook too.
        """
        config = SearchConfig(nbest=1 if nbest is None else nbest, **options)
        if config.alignment:
            raise UserError("translate() gives texts, which have no alignment: take stream()")
        with _bar(lines, progress) as advance:
            translations = self.stream(_checked(lines), config, advance=advance)
            if nbest is None:
                return [translation.text for translation in translations]
            return [[candidate.text for candidate in translation.candidates] for translation in translations]

    def score(
        self, lines: Iterable[str], targets: Iterable[str], *, progress: bool = False, **options: Any
    ) -> list[float]:
        """The score of each line's given translation, the same that the search gives to the same pieces.

        `options` are `length_penalty` and its form; without a penalty a score is log P(Y|X). The log-probabilities of
        single pieces are in what `stream` gives for `Request(line, target=...)`. Raises UserError where there are more
        of one than of the other.
        """
        lines, targets = list(_checked(lines)), list(_checked(targets))
        if not all(isinstance(target, str) for target in targets):
            raise TypeError("a target is a str")
        if len(lines) != len(targets):
            raise UserError(f"{counted(len(lines), 'line')} and {counted(len(targets), 'target')}: give one for each")
        requests = (Request(line, target=target) for line, target in zip(lines, targets, strict=True))
        with _bar(lines, progress) as advance:
            scored = self.stream(requests, SearchConfig(**options), advance=advance)
            return [translation.candidates[0].score for translation in scored]

    def attention(self, lines: Iterable[str | Request], **options: Any) -> list[Attention]:
        """The weights of every layer and head for each line that is not blank, and its translation.

        `options` are the fields of `SearchConfig`; a `Request(line, target=...)` asks for a given translation. Raises
        UserError for an ensemble.
        """
        translations = self.stream(_checked(lines), SearchConfig(**options))
        return [self.attention_of(translation) for translation in translations if translation.candidates[0].tokens]

    def attention_of(self, translation: Translation) -> Attention:
        """The weights of every layer and head for a line that is not blank, and the best of its translations.

        Raises UserError where several models or several parts of the line have a share in it.
        """
        best = translation.candidates[0]
        if best.tokens.count(SPECIALS[EOS]) > 1:
            raise UserError("attention is that of a whole line, and this one was split: raise --max-source-tokens")
        target = self.target.vocab.to_ids(best.tokens[:-1])
        encoder, decoder, cross = all_heads(self.model, [*translation.source_ids, EOS], target)
        source = (*self.source.vocab.to_pieces(translation.source_ids), SPECIALS[EOS])
        return Attention(translation.source, best.text, source, best.tokens, encoder, decoder, cross)

    def stream(
        self,
        lines: Iterable[str | Request],
        config: SearchConfig | None = None,
        batches: StreamConfig | None = None,
        advance: Advance = _ignore,
    ) -> Iterator[Translation]:
        """One translation for each line, in order, while the lines are read: at most `batches.buffer` ahead.

        Blank lines, and those that leave the tokenizer without a piece, become empty without reaching the model.
        Lines beyond `batches.max_source_tokens` are cut, or translated in parts and joined, as `batches.overlong` has
        it; a warning at the end counts them. Raises RunError where the model gives no finite probabilities. `advance`
        is called with each number of lines that have been translated, be it that others before them have not, so that
        they are not given back yet. Of requests, all have a target or none has.
        """
        batches = batches or StreamConfig()
        return self.stream_chunks(chunks(lines, batches.buffer), config, batches, advance)

    def stream_chunks(
        self,
        lines: Iterable[Sequence[str | Request]],
        config: SearchConfig | None = None,
        batches: StreamConfig | None = None,
        advance: Advance = _ignore,
        done: int = 0,
    ) -> Iterator[Translation]:
        """Like `stream`, for lines in chunks of any size, each translated before the next is read.

        The first `done` lines have been translated before: they are read and passed over, the others get the same
        translations, to the last bit, as if they had not.
        """
        return self._stream(lines, config or SearchConfig(), batches or StreamConfig(), advance, done)

    def stream_encoded(
        self,
        sentences: Iterable[Sequence[int]],
        config: SearchConfig | None = None,
        batches: StreamConfig | None = None,
        advance: Advance = _ignore,
        done: int = 0,
    ) -> Iterator[Translation]:
        """Like `stream`, for sentences that are ids of the source vocabulary already, without EOS."""
        batches = batches or StreamConfig()
        read = chunks(map(self.request, sentences), batches.buffer)
        return self._stream(read, config or SearchConfig(), batches, advance, done)

    def request(self, ids: Sequence[int]) -> Request:
        """The request to translate what is ids of the source vocabulary already, without EOS."""
        return Request(self.source.decode(ids), ids=ids)

    def _sentences(self, lines: Sequence[str | Request]) -> list[_Sentence]:
        requests = [Request(line) if isinstance(line, str) else line for line in lines]
        for request in requests:
            if not isinstance(request, Request):
                raise TypeError(f"a line is a str or a Request, not {type(request).__name__}")
        if len({request.target is None for request in requests}) > 1:
            raise UserError("some lines have a target to score and some have none: ask for each kind by itself")
        encoded = iter(self.source.encode([request.text for request in requests if request.ids is None]))
        return [self._sentence(request, encoded) for request in requests]

    def _sentence(self, request: Request, encoded: Iterator[list[int]]) -> _Sentence:
        """What a request becomes; its pieces are the next of `encoded` where it has none."""
        if request.ids is not None:
            ids = list(request.ids)
        else:
            ids = next(encoded) if request.text.strip() else next(encoded)[:0]
        constraints = NO_CONSTRAINTS
        if request.prefix or request.terms:
            constraints = Constraints(tuple(self._target_ids(request.prefix)), self._terms(request.terms))
        target = None if request.target is None else self._target_ids(request.target)
        if target and self._longest is not None and len(target) > self._longest:
            raise UserError(
                f"the translation of {request.text[:40]!r} has {len(target)} pieces, the model has positions for "
                f"{self._longest}: shorten it"
            )
        return _Sentence(request.text, ids, constraints, target)

    def _terms(self, terms: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The pieces of terms that must come; one that the vocabulary cannot spell is told of and left out."""
        encoded = [tuple(ids) for ids in self.target.encode(terms)]
        for term, ids in zip(terms, encoded, strict=True):
            if UNK in ids and term not in self._unspellable:
                self._unspellable.add(term)
                logger.warning("the model has no pieces for %r, which is not looked for", term)
        return tuple(ids for ids in encoded if ids and UNK not in ids)

    def _target_ids(self, text: str) -> list[int]:
        (ids,) = self.target.encode([text])
        return ids if text.strip() else []

    def _stream(
        self,
        read: Iterable[Sequence[str | Request]],
        config: SearchConfig,
        batches: StreamConfig,
        advance: Advance,
        done: int,
    ) -> Iterator[Translation]:
        longest = min(batches.max_source_tokens, self._longest or batches.max_source_tokens)
        asked = longest == batches.max_source_tokens
        reason = "--max-source-tokens" if asked else "the model has positions for no more"
        self._check(config)
        batch = partial(SearchBatch, config=config, banned=self._banned(config.ban))
        told: Counter[str] = Counter()
        for chunk in read:
            begin = min(done, len(chunk))
            done -= begin
            if begin == len(chunk):
                continue
            sentences = self._sentences(chunk)
            parts = [self._tasks(sentence, longest, batches.overlong) for sentence in sentences]
            found = _in_order(_searched(self._engine, parts, begin, batch, batches.max_tokens, advance))
            for sentence, own_parts in zip(sentences[begin:], parts[begin:], strict=True):
                hypotheses = [next(found) for _ in own_parts]
                told["cut"] += len(sentence.ids) > longest and len(own_parts) == 1
                told["split"] += len(own_parts) > 1
                told["without terms"] += any(map(_lacks_terms, own_parts, hypotheses))
                told["unknown prefix"] += bool(own_parts) and UNK in sentence.constraints.prefix
                yield self._translation(sentence, own_parts, hypotheses, config)
            next(found, None)  # lets the search end, so that workers are ready for the next chunk
        for event, count in told.items():
            if count:
                lines, tokens = counted(count, "line"), counted(longest, "token")
                logger.warning(_TELL[event].format(lines=lines, longest=tokens, reason=reason))

    def _check(self, config: SearchConfig) -> None:
        """Raise UserError where this model, its tokenizer or the memory cannot give what is asked for."""
        if config.attends or config.alignment_layer is not None:
            self.model.alignment_layer(config.alignment_layer)
        check_memory(self.model, config)
        if config.copy_unknown and self.target.kind != SPACE:
            raise UserError(
                "--copy-unknown: the target's tokenizer spells every word in pieces, so there is none unknown"
            )

    def _banned(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The pieces of the words; a warning for those that the vocabulary cannot spell, which do not come anyway."""
        if not all(map(str.strip, words)):
            raise UserError("--ban: there is no word")
        encoded = self.target.encode(words)
        for word, ids in zip(words, encoded, strict=True):
            if UNK in ids and word not in self._unspellable:
                self._unspellable.add(word)
                logger.warning("--ban: the model has no pieces for %r: write it as the training text has it", word)
        return tuple(tuple(ids) for ids in encoded if UNK not in ids)

    def _tasks(self, sentence: _Sentence, longest: int, overlong: str) -> list[Task]:
        """What is translated of a sentence, in turn: nothing if it is blank, most often all at once."""
        ids = sentence.ids
        plain = sentence.constraints is NO_CONSTRAINTS and sentence.target is None
        if len(ids) > longest and overlong == "split" and plain:
            return [Task([*part, EOS]) for part in parts_of(ids, self.source.surfaces(ids), longest)]
        return [Task([*ids[:longest], EOS], sentence.constraints, sentence.target)] if ids or sentence.target else []

    def _translation(
        self, sentence: _Sentence, parts: list[Task], found: list[list[Hypothesis]], config: SearchConfig
    ) -> Translation:
        """The candidates of a sentence; of one in parts, the best of each make the best, and so on."""
        source = self._source_pieces(sentence, parts) if config.attends else None
        candidates = tuple(compose(rank, self.target, config, source) for rank in zip(*found, strict=False))
        if not config.sampling:
            candidates = different_texts(candidates)
        blank = Candidate("", alignment=() if config.alignment else None)
        tokens = (*self.source.vocab.to_pieces(sentence.ids), SPECIALS[EOS]) if config.alignment else None
        given = tuple(id for part in parts for id in part.row[:-1])
        return Translation(sentence.text, candidates or (blank,), tokens, given)

    def _source_pieces(self, sentence: _Sentence, parts: list[Task]) -> SourcePieces:
        """What alignments need to know of a sentence; the text of a piece is the user's own where it is a word."""
        ids = sentence.ids
        words = sentence.text.split()
        texts = words if self.source.kind == SPACE and len(words) == len(ids) else self.source.vocab.to_pieces(ids)
        starts = list(accumulate((len(part.row) - 1 for part in parts), initial=0))[:-1]
        return SourcePieces(texts, word_numbers(self.source.surfaces(ids)), starts)


def _lacks_terms(task: Task, found: list[Hypothesis]) -> bool:
    """Whether the search could not find the terms of a task, and so went without."""
    ids = found[0].ids
    terms = task.constraints.terms
    return not all(any(tuple(ids[start : start + len(term)]) == term for start in range(len(ids))) for term in terms)


def _checked(lines: Iterable[T]) -> Iterable[T]:
    if isinstance(lines, str):
        raise TypeError("a list of lines is expected, not one text: write [line]")
    return lines


@contextmanager
def _bar(lines: object, progress: bool) -> Iterator[Advance]:
    """What to call with the number of lines that are done; shows a bar if there is to be progress to see."""
    if not progress:
        yield _ignore
        return
    from tqdm.auto import tqdm  # looks for a notebook

    with tqdm(desc="translating", total=len(lines) if isinstance(lines, Sized) else None, unit=" lines") as bar:
        yield bar.update


def _searched(
    engine: Engine,
    parts: list[list[Task]],
    begin: int,
    make_batch: Callable[[list[Task]], SearchBatch],
    max_tokens: int,
    advance: Advance,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The hypotheses of each part of the sentences from `begin` on, numbered from 0, in the order of their batches.

    The sentences before `begin` are batched with the others all the same, as a result may depend on it by a rounding.
    """
    tasks = [task for own_parts in parts for task in own_parts]
    lengths = [max(len(task.row) - 1, len(task.target or ())) for task in tasks]
    first = sum(map(len, parts[:begin]))
    ends_line = [number == len(own_parts) for own_parts in parts for number in range(1, len(own_parts) + 1)]
    advance(sum(not own_parts for own_parts in parts[begin:]))
    numbers = [batch for batch in batches_by_length(lengths, max_tokens) if max(batch) >= first]
    batches = (make_batch([tasks[number] for number in batch]) for batch in numbers)
    for batch, found in zip(numbers, engine(batches), strict=True):
        advance(sum(ends_line[number] for number in batch if number >= first))
        yield from ((number - first, nbest) for number, nbest in zip(batch, found, strict=True) if number >= first)


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """The numbers of the sentences that have tokens, cut into batches of similar lengths, longest first.

    A batch's longest sentence with its EOS, times its sentences, is at most `max_tokens`, or it is one sentence.
    """
    numbers = sorted((n for n, length in enumerate(lengths) if length), key=lambda n: lengths[n], reverse=True)
    start = 0
    while start < len(numbers):
        size = max(1, max_tokens // (lengths[numbers[start]] + 1))
        yield numbers[start : start + size]
        start += size


def _in_order(numbered: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Items numbered 0, 1, 2, … that come in any order, each as soon as all before it have been given."""
    waiting: dict[int, T] = {}
    due = 0
    for number, item in numbered:
        waiting[number] = item
        while due in waiting:
            yield waiting.pop(due)
            due += 1

"""The translator: raw text in, raw text out."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.config import as_flags
from nmtkit.console.log import logger
from nmtkit.decoding.attention_page import Attention
from nmtkit.decoding.batched_search import Advance, search_in_batches
from nmtkit.decoding.config import (
    BatchSizes,
    EngineConfig,
    EngineKeywords,
    MarkupConfig,
    PenaltyKeywords,
    SearchConfig,
    SearchKeywords,
    StreamConfig,
)
from nmtkit.decoding.engine import Engine, SearchBatch, Workers, check_memory, load, local_engine
from nmtkit.decoding.forced import all_heads
from nmtkit.decoding.requests import Request
from nmtkit.decoding.tasks import LineWarnings, SentenceEncoder, SourceLimit
from nmtkit.decoding.translation import Translation, translation_of
from nmtkit.errors import UserError
from nmtkit.inference.protocol import InferenceModel
from nmtkit.model.config import WeightsConfig
from nmtkit.text.input_stream import chunks
from nmtkit.text.languages import language_of
from nmtkit.text.tags import tag_ids
from nmtkit.text.tokenizer import LEARNED_KINDS, SPACE, Tokenizer
from nmtkit.text.vocabulary import EOS, SPECIALS, UNK
from nmtkit.wording import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

T = TypeVar("T")


def _ignore(count: int) -> None:
    """Ignore progress."""


class Translator:
    """A trained model with its tokenizers: raw text in, raw text out.

    >>> translator = Translator.from_checkpoint("averaged.pt")
    >>> translator.translate(["A dog runs.", "", "Two men talk."], beam=4)
    ['Ein Hund rennt.', '', 'Zwei Männer reden.']

    Threads may share a translator, but gain no speed: one batch is searched at a time, by all threads of
    `EngineConfig.threads` or by the workers.
    """

    def __init__(
        self,
        model: InferenceModel,
        source: Tokenizer,
        target: Tokenizer,
        engine: Engine | None = None,
        languages: tuple[str, str] = ("", ""),
        search: Mapping[str, Any] | None = None,
    ) -> None:
        """`engine` searches with the same model; by default, the model searches in this process.

        `languages` are source and target; of a model with language codes, those of requests that name none. If the
        target is `mul`, a symbol at the beginning of a line is its tag. `search` holds the model's defaults for fields
        of `SearchConfig`.
        """
        self.model, self.source, self.target, self.languages = model, source, target, languages
        self.search = SearchConfig.from_dict(search or {})
        self._engine = engine or local_engine(model, target.decode)
        self._positions = model.longest_sequence and model.longest_sequence - bool(target.language_codes)
        self._encoder = SentenceEncoder(source, target, self._positions, languages)

    @classmethod
    def from_checkpoint(
        cls,
        *paths: str | Path,
        weights: str = "auto",
        source_lang: str = "",
        target_lang: str = "",
        **engine: "Unpack[EngineKeywords]",
    ) -> "Translator":
        """Load a checkpoint, or several as an ensemble, whose probabilities are averaged.

        `weights` selects the trained weights or their moving average, see `WeightsConfig`. `engine` has fields of
        `EngineConfig`: device, precision, threads, shortlist, workers. A model with language codes, such as NLLB, needs
        the languages here or in each `Request`. Each of several workers imports the calling
        script, which therefore needs `if __name__ == "__main__":`. Raises UserError if a file is missing or damaged,
        or the device cannot be used.
        """
        if not paths:
            raise TypeError("the path of a checkpoint is expected")
        choice, config = WeightsConfig(weights), EngineConfig(**engine)
        files = [Path(path) for path in paths]
        checkpoints = [load_checkpoint(file) for file in files]
        return cls.of(checkpoints, config, choice, files, (source_lang, target_lang))

    @classmethod
    def of(
        cls,
        checkpoints: Sequence[Checkpoint],
        engine: EngineConfig,
        choice: WeightsConfig | None = None,
        paths: Sequence[Path] = (),
        languages: tuple[str, str] = ("", ""),
    ) -> "Translator":
        """Create a translator from loaded checkpoints. Workers load the same checkpoints from `paths`.

        `languages`, if not empty, replace the languages of a model with language codes. Raises UserError for a language
        that the model does not have.
        """
        first = checkpoints[0]
        codes = (first.source.language_codes, first.target.language_codes)
        source, target = (
            language_of(name, own, default)
            for name, own, default in zip(languages, codes, first.languages, strict=True)
        )
        weights = (choice or WeightsConfig()).weights
        model = load(checkpoints, engine, weights)
        workers = None
        if paths and engine.workers > 1:
            workers = Workers(paths, engine, weights, [checkpoint.checksum for checkpoint in checkpoints])
        return cls(model, first.source, first.target, workers, (source, target), first.search)

    def log_settings(self, search: SearchConfig) -> None:
        """Log the options in `search` that come from the model and differ from the defaults of nmt-generate."""
        model, usual = self.search.to_dict(), SearchConfig().to_dict()
        used = {name: value for name, value in search.to_dict().items() if value == model[name] != usual[name]}
        if used:
            logger.info("search settings of the model: %s", as_flags(used))

    @overload
    def translate(
        self,
        lines: Iterable[str | Request],
        *,
        nbest: None = None,
        markup: MarkupConfig | str | None = None,
        progress: bool = False,
        **options: "Unpack[SearchKeywords]",
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        lines: Iterable[str | Request],
        *,
        nbest: int,
        markup: None = None,
        progress: bool = False,
        **options: "Unpack[SearchKeywords]",
    ) -> list[list[str]]: ...

    def translate(
        self,
        lines: Iterable[str | Request],
        *,
        nbest: int | None = None,
        markup: MarkupConfig | str | None = None,
        progress: bool = False,
        **options: "Unpack[SearchKeywords]",
    ) -> list[str] | list[list[str]]:
        """Return the best translation of each line; with `nbest`, a list of at most that many, best first.

        A line may be a `Request` with a prefix or required terms. `options` are the other fields of `SearchConfig`,
        such as beam=4, except alignments, which `stream` returns. By default they are `self.search`, the model's own.
        `progress` shows a bar, even in a notebook.

        If `markup` is "html" or "xml", the tags in lines move with their words; `MarkupConfig` offers more options.
        """
        config = replace(self.search, nbest=1 if nbest is None else nbest, **options)
        if config.alignment:
            raise UserError("translate() returns texts without alignments: use stream()")
        if markup is not None and nbest is not None:
            raise UserError("translate() returns one translation of a line with markup: omit nbest")
        with _bar(lines, progress) as advance:
            if markup is not None:
                markup = MarkupConfig(markup=markup) if isinstance(markup, str) else markup
                batches = chunks(_checked(lines), self.sizes(StreamConfig()).buffer)
                return [each.text for each in self.stream_markup(batches, markup, config, advance=advance)]
            translations = self.stream(lines, config, advance=advance)
            if nbest is None:
                return [translation.text for translation in translations]
            return [[candidate.text for candidate in translation.candidates] for translation in translations]

    def score(
        self,
        lines: Iterable[str],
        targets: Iterable[str],
        *,
        progress: bool = False,
        **options: "Unpack[PenaltyKeywords]",
    ) -> list[float]:
        """Score a given translation of each line, like the search scores an output with the same pieces.

        `options` are `length_penalty` and `length_penalty_form`; with length_penalty=0 a score is log P(Y|X). For the
        log-probability of each piece, use `stream` with `Request(line, target=...)`. Raises UserError if the numbers of
        lines and targets differ.
        """
        lines, targets = list(_checked(lines)), list(_checked(targets))
        if not all(isinstance(text, str) for text in (*lines, *targets)):
            raise TypeError("each line and target is a str: for a Request use stream() and Request(line, target=...)")
        if len(lines) != len(targets):
            raise UserError(f"{counted(len(lines), 'line')} and {counted(len(targets), 'target')}: give one for each")
        requests = (Request(line, target=target) for line, target in zip(lines, targets, strict=True))
        with _bar(lines, progress) as advance:
            scored = self.stream(requests, replace(self.search, **options), advance=advance)
            return [translation.candidates[0].score for translation in scored]

    def attention(self, lines: Iterable[str | Request], **options: "Unpack[SearchKeywords]") -> list[Attention]:
        """Translate lines and return the attention of every layer and head, for each line that is not blank.

        `options` are the fields of `SearchConfig`. For a given translation, pass `Request(line, target=...)`. Raises
        UserError for an ensemble, or a model without attention.
        """
        self.model.alignment_layer(None)  # raises UserError before the search
        translations = self.stream(lines, replace(self.search, **options))
        return [self.attention_of(translation) for translation in translations if translation.candidates[0].tokens]

    def attention_of(self, translation: Translation) -> Attention:
        """Compute the attention of every layer and head, for the best translation of a line that is not blank.

        Raises UserError for an ensemble, a model without attention, or a line that was split.
        """
        best = translation.candidates[0]
        if best.tokens.count(SPECIALS[EOS]) > 1:
            raise UserError("cannot show the attention of a line that was split: raise --max-source-tokens")
        target = self.target.vocab.to_ids(best.tokens[:-1])
        start = translation.target_start
        encoder, decoder, cross = all_heads(self.model, [*translation.source_ids, EOS], [*start, *target])
        source = (*self.source.vocab.to_pieces(translation.source_ids), SPECIALS[EOS])
        tokens = (*self.target.vocab.to_pieces(start), *best.tokens)
        return Attention(translation.source, best.text, source, tokens, encoder, decoder, cross)

    def stream(
        self,
        lines: Iterable[str | Request],
        config: SearchConfig | None = None,
        batches: StreamConfig | None = None,
        advance: Advance = _ignore,
    ) -> Generator[Translation, None, None]:
        """Yield one translation for each line, in order, reading at most one buffer of lines ahead.

        Blank lines, and lines without any piece, become empty translations; the model does not see them. Lines longer
        than `batches.max_source_tokens` are truncated or split, see `batches.overlong`, and counted in a warning at the
        end. `advance` is called with the number of lines that have just been translated, in the order of the batches.
        Either all requests have a target or none. `config` defaults to `self.search`, the model's own search settings.

        Raises UserError if a target exceeds the model's positions or the options contradict the model, and RunError if
        the model gives no finite probabilities.
        """
        batches = batches or StreamConfig()
        return self.stream_chunks(chunks(_checked(lines), self.sizes(batches).buffer), config, batches, advance)

    def stream_markup(
        self,
        lines: Iterable[Sequence[str | Request]],
        markup: MarkupConfig,
        config: SearchConfig | None = None,
        batches: StreamConfig | None = None,
        advance: Advance = _ignore,
        done: int = 0,
    ) -> Generator[Translation, None, None]:
        """Translate lines with tags or protected text like `stream_chunks`. Each translation has one candidate."""
        from nmtkit.decoding.markup import stream_markup  # imported late, with all formats of documents

        stream = partial(self.stream_chunks, config=config, batches=batches)
        for translation in stream_markup(lines, markup, stream, done):
            advance(1)
            yield translation

    def sizes(self, batches: StreamConfig) -> BatchSizes:
        """Return the sizes of batches and buffer on the model's device."""
        return batches.sizes_on(self.model.device)

    def request(self, ids: Sequence[int], source_tag: str = "") -> Request:
        """Create a request from ids of the source vocabulary, without EOS, which begin with the ids of the tag."""
        ids = ids[len(tag_ids(source_tag, self.source)) :]
        return Request(self.source.decode(ids), ids=ids, source_tag=source_tag)

    def stream_chunks(
        self,
        lines: Iterable[Sequence[str | Request]],
        config: SearchConfig | None = None,
        batches: StreamConfig | None = None,
        advance: Advance = _ignore,
        done: int = 0,
        first_line: int = 1,
        warns_of_outputs: bool = True,
    ) -> Generator[Translation, None, None]:
        """Translate chunks of lines like `stream`. Each chunk, of any size, is translated before the next is read.

        The first `done` lines are read and skipped; the translations of the others are bit-identical to those of a run
        that skips none. Messages number the lines from `first_line`.
        If `warns_of_outputs`, a warning counts translations that are cut or repetitive; they are marked in any case.
        """
        config, batches = config or self.search, batches or StreamConfig()
        self._check(config)
        limit = SourceLimit.of(batches, self.model.longest_sequence, pass_through=not config.attends)
        max_tokens = self.sizes(batches).max_tokens
        limit = replace(limit, ignores_case=config.ignore_case)
        banned = self._encoder.banned(config.ban, config.ignore_case)
        allows_unknown = config.copy_unknown or config.allow_unknown
        if allows_unknown is None:  # by default, only models of segmented text may write it
            allows_unknown = self.target.kind not in LEARNED_KINDS
        if not allows_unknown:
            banned = (*banned, (UNK,))
        if not config.attends and not config.sampling and config.diverse_groups == 1:
            limit = replace(limit, copies=not allows_unknown)
        make_batch = partial(SearchBatch, config=config, banned=banned)
        warnings = LineWarnings(limit, self._positions, self._encoder.languages[0])
        for chunk in lines:
            skipped = min(done, len(chunk))
            if skipped < len(chunk):
                sentences = self._encoder.sentences(chunk, limit, first_line)
                found = search_in_batches(self._engine, sentences, skipped, make_batch, max_tokens, advance)
                for sentence in sentences[skipped:]:
                    hypotheses = [next(found) for _ in sentence.tasks]
                    translation = translation_of(
                        sentence, hypotheses, self.source, self.target, config, self._positions
                    )
                    best = translation.candidates[0]
                    doubts = (bool(best.cut), bool(best.repetitive)) if warns_of_outputs else (False, False)
                    warnings.add(sentence, hypotheses, *doubts)
                    yield translation
                next(found, None)  # ends the search, which reports the lines of a chunk that has only blank ones
            done -= skipped
            first_line += len(chunk)
        warnings.log()

    def _check(self, config: SearchConfig) -> None:
        """Raise UserError if the model, its tokenizer or the memory does not allow the options."""
        if config.attends or config.alignment_layer is not None:
            self.model.alignment_layer(config.alignment_layer)
        check_memory(self.model, config)
        if config.copy_unknown and self.target.kind != SPACE:
            raise UserError("--copy-unknown is for models of segmented text: this tokenizer splits words itself")


def _checked(lines: Iterable[T]) -> Iterable[T]:
    """Raise TypeError if a single text is given instead of a list of lines."""
    if isinstance(lines, str):
        raise TypeError("a list of lines is expected, not one text: write [line]")
    return lines


@contextmanager
def _bar(lines: object, progress: bool) -> Iterator[Advance]:
    """Yield a function that counts translated lines, and show a progress bar if `progress` is set."""
    if not progress:
        yield _ignore
        return
    from tqdm.auto import tqdm  # detects a notebook

    with tqdm(desc="translating", total=len(lines) if isinstance(lines, Sized) else None, unit=" lines") as bar:
        yield bar.update

"""Turns requests into sentences: token ids, constraints on the output, and the tasks of the search.

It warns about lines that were not translated as requested.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from nmtkit.console.log import logger
from nmtkit.decoding.config import StreamConfig
from nmtkit.decoding.engine import Task
from nmtkit.decoding.overlong import parts
from nmtkit.decoding.recasing import Recasing
from nmtkit.decoding.requests import Request
from nmtkit.decoding.rules import NO_CONSTRAINTS, Constraints, Term, contains
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.stand_ins import StandIns
from nmtkit.errors import UserError
from nmtkit.text.languages import SEVERAL, UNSPACED, find_code, short_code
from nmtkit.text.segment import Segment, has_letters
from nmtkit.text.sentences import has_several_sentences, split_sentences
from nmtkit.text.tags import count_tag, tag_ids, tags_in_lines
from nmtkit.text.tokenizer import Tokenizer, pieces_with, without_space
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.wording import counted


@dataclass(frozen=True)
class SourceLimit:
    """The maximum number of source tokens of a task, without EOS, and how lines become tasks."""

    tokens: int
    reason: str  #: for warnings
    split: bool  #: longer lines are split into several tasks instead of cut
    sentences: bool = False  #: each sentence of a line is a task
    pass_through: bool = False  #: of these, sentences without a letter are not translated
    copies: bool | None = None  #: words that the source vocabulary cannot spell are copied; None: no stand-ins
    ignores_case: bool = False  #: required terms may have any case
    recase: str = "none"  #: which lines in capitals are translated as running text

    @classmethod
    def of(cls, batches: StreamConfig, positions: int | None, pass_through: bool = False) -> "SourceLimit":
        """Return the limit that the options set, or `positions` of the model if lower. Fields are as in the class."""
        sentences = bool(batches.split_sentences)
        how = batches.overlong == "split", sentences, sentences and pass_through
        limit = batches.max_source_tokens, "--max-source-tokens"
        if positions and positions < batches.max_source_tokens:
            limit = positions, "the model has no more positions"
        return cls(*limit, *how, recase=batches.recase or "none")


@dataclass(frozen=True)
class Sentence:
    """A line with its token ids and the tasks of the search. A blank line has no tasks, a split line has several.

    The source of each task begins with the ids of `tag`, or of a tag at the beginning of the line itself.
    """

    text: str
    ids: list[int]
    tasks: list[Task]
    tag: Sequence[int] = ()
    target: str | None = None  #: the text that is scored, if one is given
    own_tag: int = 0  #: number of `ids` that belong to a tag at the beginning of the line itself
    overlong: str = ""  #: "cut" or "split" if there are more tokens than the limit
    frame: tuple[str, ...] = ()  #: of a line in sentences: the text before each task and after the last, as it stands
    starts: tuple[int, ...] = ()  #: of a line in sentences: where the sentence of each task starts
    segment: Segment | None = None  #: with the tags of the text
    line: str | None = None  #: the line as it was given, if it has no tags and `text` has stand-ins
    recasing: Recasing | None = None  #: of a line in capitals; the other fields describe its running text


_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ATTACHED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Pe}\p{Pf}.,;:!?…、。，；：！？・]"


def _is_attached(text: str) -> bool:
    """Whether text begins with a character that usually has no space before it: a letter of a script without spaces,
    or closing punctuation."""
    if text[:1].isascii():
        return text[:1] in tuple(")]}.,;:!?")
    import regex  # which takes long

    return regex.match(_ATTACHED, text) is not None


def _is_unspaced(language: str) -> bool:
    return short_code(language) in UNSPACED


class SentenceEncoder:
    """Converts requests to sentences. Warns once about each word or term that the target vocabulary cannot spell."""

    def __init__(
        self, source: Tokenizer, target: Tokenizer, positions: int | None, languages: tuple[str, str] = ("", "")
    ) -> None:
        """`positions` is the maximum number of output tokens, without EOS, that the model supports, or None.

        `languages` are the default languages of requests.
        """
        self._source, self._target, self._positions = source, target, positions
        self.languages = languages
        self._unspellable: set[str] = set()
        self._tag_ids = functools.cache(functools.partial(tag_ids, tokenizer=source))
        self._stand_ins = StandIns(source, target)
        self._code = functools.cache(find_code)

    def sentences(self, lines: Sequence[str | Request], limit: SourceLimit, first_line: int) -> list[Sentence]:
        """Encode lines, which are numbered from `first_line` in messages.

        Raises UserError if some lines have a target and others have none, if a target exceeds the positions, if a tag
        is not a piece of the vocabulary, or for an unknown language.
        """
        requests = [Request(line) if isinstance(line, str) else line for line in lines]
        for request in requests:
            if not isinstance(request, Request):
                raise TypeError(f"a line is a str or a Request, not {type(request).__name__}")
        requests = [self._with_codes(request, number) for number, request in enumerate(requests, first_line)]
        if len({request.target is None for request in requests}) > 1:
            raise UserError("some lines have a target to score and some have none: separate them into two calls")
        recasings = [Recasing.of(request, limit.recase, self._languages_of(request)) for request in requests]
        requests = [each.running if each else own for each, own in zip(recasings, requests, strict=True)]
        given = requests
        if limit.copies is not None:
            requests = [self._stand_ins.of(request, limit.copies) for request in given]
        texts = [self._parts(request, limit) for request in requests]
        stripped = ([part.strip() for part in parts] if len(parts) > 1 else parts for parts in texts)
        encoded = iter(self._source.encode(list(chain.from_iterable(stripped))))
        sentences = [
            self._in_parts(request, parts, [next(encoded) for _ in parts], limit, number)
            if len(parts) > 1 or (limit.sentences and parts)
            else self._sentence(request, self._source_ids(request, encoded), limit, number)
            for number, (request, parts) in enumerate(zip(requests, texts, strict=True), first_line)
        ]
        pairs = zip(sentences, given, requests, strict=True)
        sentences = [sentence if own is other else _copying(sentence, own, other) for sentence, own, other in pairs]
        return [replace(own, recasing=each) if each else own for own, each in zip(sentences, recasings, strict=True)]

    def banned(self, words: Sequence[str], ignore_case: bool = False) -> tuple[tuple[int, ...], ...]:
        """Return the ids of the words in --ban that the vocabulary can spell. The model cannot produce the others."""
        if not all(map(str.strip, words)):
            raise UserError("--ban: the word is empty")
        message = "--ban: the model has no pieces for %r: write it as in the training text"
        vocab, banned = self._target.vocab, list[tuple[int, ...]]()
        for word, ids in chain.from_iterable(self._spelled(words, message, ignore_case)):
            banned.append(ids)
            attached = without_space(ids, vocab)
            if attached != ids and (_is_unspaced(self.languages[1]) or _is_attached(word) or not word[0].isalnum()):
                banned += [attached] if attached else []
                banned += [(piece,) for piece in pieces_with(word, vocab)]  # such as ",“" for ","
        return tuple(dict.fromkeys(banned))

    def _with_codes(self, request: Request, line: int) -> Request:
        """The request with the codes of its languages as `source_tag` and `target_lang`, for a model that has codes.

        A line may begin with its source code instead. Raises UserError for an unknown or missing language.
        """
        names = [request.source_lang or self.languages[0], request.target_lang or self.languages[1]]
        codes = self._source.language_codes, self._target.language_codes
        if not request.text.strip() or not (codes[1] or request.source_lang or request.target_lang):
            return request
        if request.source_tag:
            names[0] = request.source_tag
        elif names[0] in ("", SEVERAL) and request.text.lstrip().startswith(tuple(codes[0])):
            names[0] = ""
        try:
            source, target = (
                name and self._code(name, own) for name, own in zip(names, map(tuple, codes), strict=True)
            )
        except UserError as error:
            raise UserError(f"line {line}: {error}") from None
        return replace(request, source_tag=source, target_lang=target)

    def _parts(self, request: Request, limit: SourceLimit) -> list[str]:
        """Split the text of a request into its lines, or their sentences. Returns an empty list if it has ids."""
        if request.ids is not None:
            return []
        if request.prefix or request.terms or request.target is not None:
            return [request.text]
        if not limit.sentences:
            return _LINE.findall(request.text) or [""]
        found, at, protected = list[str](), 0, request.segment.protected if request.segment else []
        for line in _LINE.findall(request.text) or [""]:
            inside = [(start - at, end - at) for start, end in protected]
            found += split_sentences(line, self._language(request), inside) or [""]
            at += len(line)
        return found

    def _in_parts(
        self, request: Request, parts: Sequence[str], encoded: Sequence[list[int]], limit: SourceLimit, number: int
    ) -> Sentence:
        """Create the sentence of a line whose parts are translated separately and then joined."""
        tag, own_tag = self._tag_ids(request.source_tag), list[int]()
        ids, tasks, frame, overlong, starts = list[int](), list[Task](), [""], "", list[int]()
        for at, part, part_ids in zip(accumulate(map(len, parts), initial=0), parts, encoded, strict=False):
            text = part.strip()
            if not part_ids or not text or (limit.pass_through and not has_letters(text)):
                frame[-1] += part
                continue
            before, after = part.split(text)
            found = self._sentence(replace(request, text=text), [*own_tag, *part_ids], limit, number)
            own_tag = own_tag or part_ids[: found.own_tag]  # the following sentences need it, too
            overlong = found.overlong or overlong
            frame[-1] += before
            frame += ["" for _ in found.tasks[1:]] + [after]
            tasks += found.tasks
            starts += [at + len(before)] * len(found.tasks)
            ids += part_ids
        line = Sentence(request.text, ids, tasks, tag=tag, own_tag=len(own_tag), overlong=overlong, frame=tuple(frame))
        return replace(line, starts=tuple(starts), segment=request.segment)

    def _sentence(self, request: Request, ids: list[int], limit: SourceLimit, line: int) -> Sentence:
        tag = self._tag_ids(request.source_tag)
        own_tag = 0 if tag else count_tag(ids, self._tags_in_lines, self._source)
        segment, attends = request.segment, request.segment is not None and request.segment.has_tags
        longest = limit.tokens - len(tag)
        if longest < 1:
            room = f"within {counted(limit.tokens, 'token')} ({limit.reason})"
            raise UserError(f"--source-tag: the tag leaves no room for text {room}")
        source = [*tag, *ids[:longest], EOS]
        cut = "cut" if len(ids) > longest else ""
        start = tuple(self._target.vocab.to_ids([request.target_lang] if request.target_lang else ()))
        if request.target is not None:
            target = self._target_ids(request.target)
            if self._positions is not None and len(target) > self._positions:
                raise UserError(
                    f"--score: the translation of line {line} has {counted(len(target), 'token')}, but the model has "
                    f"positions for {self._positions}: shorten it"
                )
            tasks = [Task(source, target=target, start=start)] if ids or target else []
            return Sentence(request.text, ids, tasks, tag=tag, target=request.target, own_tag=own_tag, overlong=cut)
        constraints = NO_CONSTRAINTS
        terms = request.glossary.terms(request.text) if request.glossary else []
        if not (limit.split and cut):
            terms += self._stand_ins.required(request)
        if request.prefix or request.terms or terms:
            prefix = self._target_ids(request.prefix)
            language = self._languages_of(request)[1]
            required = (*self._terms(request.terms, language, limit.ignores_case), *self._terms(terms, language))
            constraints = Constraints(tuple(prefix), tuple(dict.fromkeys(required)))
        if limit.split and cut and constraints is NO_CONSTRAINTS:
            own_tag = own_tag if own_tag < longest else 0  # else there is no room for text
            surfaces = self._source.surfaces(ids, request.text)
            pieces = parts(ids[own_tag:], surfaces[own_tag:], longest - own_tag, self._language(request))
            tasks = [Task([*tag, *ids[:own_tag], *part, EOS], attends=attends, start=start) for part in pieces]
            return Sentence(request.text, ids, tasks, tag=tag, own_tag=own_tag, overlong="split", segment=segment)
        tasks = [Task(source, constraints, attends=attends, start=start)] if ids else []
        return Sentence(request.text, ids, tasks, tag, own_tag=own_tag, overlong=cut, segment=segment)

    @functools.cached_property
    def _tags_in_lines(self) -> frozenset[int]:
        return tags_in_lines(self._source, self.languages[1])

    def _source_ids(self, request: Request, encoded: Iterator[list[int]]) -> list[int]:
        """Return the ids of a request, or the next of `encoded` if it has only text. A blank text has none."""
        ids = next(encoded) if request.ids is None else list(request.ids)
        return ids if request.text.strip() else []

    def _target_ids(self, text: str) -> list[int]:
        (ids,) = self._target.encode([text])
        return ids if text.strip() else []

    def _terms(self, terms: Sequence[str], language: str, ignore_case: bool = False) -> Iterator[Term]:
        """Yield the ids of the terms of a language, without a leading space where running text has none."""
        for spellings in self._spelled(terms, "ignoring the term %r: the model has no pieces for it", ignore_case):
            yield tuple(
                ((_is_unspaced(language) or _is_attached(term)) and without_space(ids, self._target.vocab)) or ids
                for term, ids in spellings
            )

    def _language(self, request: Request) -> str:
        return request.source_tag if request.source_tag in self._source.language_codes else self.languages[0]

    def _languages_of(self, request: Request) -> tuple[str, str]:
        return self._language(request), request.target_lang or self.languages[1]

    def _spelled(
        self, words: Sequence[str], warning: str, ignore_case: bool
    ) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
        """Yield the spellings of each word, stripped, with their ids. With `ignore_case`, a word has several spellings.

        Omits spellings that need an unknown piece. A word without other spellings is logged once.
        """
        cases = (str, str.lower, str.capitalize, str.upper) if ignore_case else (str,)
        for word in words:
            spellings = list(dict.fromkeys(case(word) for case in cases))
            encoded = zip(spellings, map(tuple, self._target.encode(spellings)), strict=True)
            if spelled := [(spelling.strip(), ids) for spelling, ids in encoded if ids and UNK not in ids]:
                yield spelled
            elif word.strip() and word not in self._unspellable:
                self._unspellable.add(word)
                logger.warning(warning, word)


def _copying(sentence: Sentence, given: Request, request: Request) -> Sentence:
    """The sentence of a request with stand-ins. If no letter is left to translate, the text is copied."""
    assert request.segment is not None
    line = None if given.segment else given.text
    if request.segment.is_translatable or request.prefix or request.terms:
        return replace(sentence, line=line)
    return Sentence(given.text, [], [], frame=(given.text,), segment=given.segment, line=line)


_COPIED = "{lines} with copied words, which nmt-preprocess --byte-fallback or --character-coverage 1 could spell"
_SEVERAL = "{lines} with several sentences, some of which may be missing from the translation: use --split-sentences"
_MANY = 0.02  # of all lines


class LineWarnings:
    """Counts the lines of a stream by warning, to log each warning once."""

    def __init__(self, limit: SourceLimit, positions: int | None, language: str) -> None:
        """`positions` is the maximum number of output tokens without EOS, or None; `language` the source language."""
        self._limit, self._positions, self._language = limit, positions, language
        self._lines, self._terms = Counter[str](), Counter[str]()  # and missing terms, by warning
        self._total = 0

    def add(self, sentence: Sentence, found: Sequence[list[Hypothesis]], cut: bool, repetitive: bool) -> None:
        """Count a sentence, given the hypotheses of each task, and whether its output is `cut` or `repetitive`."""
        self._total += 1
        self._lines.update(list(dict.fromkeys(self._warnings(sentence, found))))
        if cut:
            self._lines["{lines} with an output cut at its maximum length (--max-len-a, --max-len-b)"] += 1
        if repetitive:
            self._lines["{lines} with an output that repeats itself, unlike the source: try --repetition-guard"] += 1

    def log(self) -> None:
        """Log each warning with its number of lines."""
        tokens, positions = (counted(count or 0, "token") for count in (self._limit.tokens, self._positions))
        for warning, count in self._lines.items():
            if warning != _SEVERAL or count > _MANY * self._total:
                lines, terms = counted(count, "line"), counted(self._terms[warning], "required term")
                reason = self._limit.reason
                logger.warning(
                    warning.format(lines=lines, terms=terms, limit=tokens, reason=reason, positions=positions)
                )

    def _warnings(self, sentence: Sentence, found: Sequence[list[Hypothesis]]) -> Iterator[str]:
        if not sentence.frame and sentence.target is None and has_several_sentences(sentence.text, self._language):
            yield _SEVERAL
        if sentence.line is not None:
            yield _COPIED
        if sentence.overlong == "split":
            yield "{lines} translated in parts of at most {limit} ({reason})"
        elif sentence.overlong:
            yield "{lines} truncated to {limit} ({reason})"
        for task, nbest in zip(sentence.tasks, found, strict=True):
            if UNK in task.constraints.prefix:
                yield "{lines} with a prefix that the model has no pieces for: the output has unknown pieces instead"
            terms, tokens = task.constraints.terms, tuple(nbest[0].ids)
            if lacking := sum(not contains(tokens, term) for term in terms):  # no output has all, so all were ignored
                warning = "{lines} translated without {terms}: other options ban them"
                if self._positions is not None and task.constraints.required_tokens > self._positions:
                    warning = "{lines} translated without {terms}: the model has positions for only {positions}"
                self._terms[warning] += lacking
                yield warning
            if task.attends and nbest[0].attention is None:
                yield "{lines} with tags around the whole text: the model has no attention to align words"

"""The tokenizer of fairseq models and Hugging Face's FSMT: Moses, BPE merges and a dictionary.

sacremoses tokenizes text into words and detokenizes them. BPE splits words into pieces (Sennrich et al. 2016), which
are looked up in the vocabulary as strings.
"""

import heapq
import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate, chain, pairwise

from nmtkit.errors import UserError
from nmtkit.storage.files import parse_json
from nmtkit.text.vocabulary import SPECIALS, Vocabulary, symbol_pattern
from nmtkit.wording import describe_unknown_version, quoted

MOSES_BPE = "moses-bpe"
INNER_MARK, FINAL_MARK = "@@", "</w>"  # in subword-nmt's output; in its codes and FSMT's vocabulary
_VERSION = 1
_CACHED_WORDS, _MAX_CACHED_CHARACTERS = 1 << 16, 64

_CHARACTER = re.compile(r"@-@|&(?:[a-z]+|#[0-9]+);|.", re.DOTALL)  # Moses escapes some characters

Ranks = dict[tuple[str, str], int]  # pair of symbols -> rank; the lowest is merged first


def read_codes(content: bytes) -> tuple[tuple[str, ...], bool]:
    """Read BPE codes of subword-nmt (either version, given in the first line) or of fastBPE (with counts).

    Returns `merges` and `separate_end` of `MosesBpe`. Raises UserError if the content is malformed.
    """
    try:
        lines = content.decode().rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError("not a file of BPE codes: not UTF-8") from error
    header = lines.pop(0).split() if lines[0].startswith("#version:") else []
    if header not in ([], ["#version:", "0.1"], ["#version:", "0.2"]):
        raise UserError("unknown version of BPE codes: use version 0.1 or 0.2 of subword-nmt")
    fields = [line.strip("\r ").split(" ") for line in lines]
    has_counts = all(len(merge) == 3 and merge[2].isdecimal() for merge in fields)
    merges = tuple(" ".join(merge[:2] if has_counts else merge) for merge in fields)
    _check_merges(merges)
    return merges, not has_counts and header[1:] != ["0.2"]


def _check_merges(merges: Sequence[object]) -> None:
    for number, merge in enumerate(merges, 1):
        if not isinstance(merge, str) or len(merge.split(" ")) != 2 or not all(merge.split(" ")):
            raise UserError(f"BPE merge {number} is {quoted(merge)}, not two pieces separated by a space")


@dataclass(frozen=True)
class MosesBpe:
    """The settings of a `MosesBpeTokenizer`: everything that it needs in addition to the vocabulary.

    FSMT normalizes punctuation and control characters, fairseq does not.
    """

    language: str  #: code of the language in Moses, which treats unknown ones like English
    merges: tuple[str, ...]  #: in order of application, each as `left right`
    separate_end: bool = False  #: whether the end of a word is initially a separate symbol, as in subword-nmt 0.1
    mark: str = INNER_MARK  #: INNER_MARK ends all pieces of a word except the last, FINAL_MARK only the last
    lowercase: bool = False
    normalize: bool = False
    dash_splits: bool = True  #: whether Moses splits at dashes ("aggressive"): `a-b` becomes `a @-@ b`
    escape: bool = True  #: whether the vocabulary spells an apostrophe as `&apos;`, and so on
    symbols: tuple[str, ...] = ()  #: pieces that are never split

    def to_bytes(self) -> bytes:
        """Serialize as JSON."""
        return json.dumps({"format": MOSES_BPE, "version": _VERSION, **asdict(self)}, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "MosesBpe":
        """Restore settings from `to_bytes`. Raises UserError if the content is malformed."""
        try:
            fields = parse_json(content.decode())
            if fields.pop("format") == MOSES_BPE and (version := fields.pop("version")) != _VERSION:
                raise UserError(describe_unknown_version(MOSES_BPE, version, _VERSION))
            settings = cls(**fields | {name: tuple(fields[name]) for name in ("merges", "symbols")})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"not the settings of {MOSES_BPE}") from error
        _check_merges(settings.merges)
        return settings


class MosesBpeTokenizer:
    """Tokenizes raw text by Moses's rules and BPE, and looks up the pieces in the vocabulary.

    `model` is the result of `MosesBpe.to_bytes`. Raises UserError if it is malformed, or if sacremoses is missing.
    """

    kind = MOSES_BPE
    language_codes: Sequence[str] = ()

    def __init__(self, vocab: Vocabulary, model: bytes) -> None:
        self.vocab, self.model = vocab, model
        self._settings = settings = MosesBpe.from_bytes(model)
        try:
            import sacremoses
        except ImportError as error:
            raise UserError(f"{MOSES_BPE} needs the package sacremoses: pip install sacremoses") from error
        self._tokenizer = sacremoses.MosesTokenizer(settings.language)
        self._detokenizer = sacremoses.MosesDetokenizer(settings.language)
        self._plain_detokenizer = sacremoses.MosesDetokenizer("")
        self._normalizer = sacremoses.MosesPunctNormalizer(
            settings.language, pre_replace_unicode_punct=True, post_remove_control_chars=True
        )
        self._ranks: Ranks = {}
        for rank, merge in enumerate(settings.merges):
            left, right = merge.split(" ")
            self._ranks.setdefault((left, right), rank)
        self._symbol = symbol_pattern(settings.symbols)
        self._cached_segment = lru_cache(_CACHED_WORDS)(self._segment)

    def __reduce__(self) -> tuple[type["MosesBpeTokenizer"], tuple[Vocabulary, bytes]]:
        return MosesBpeTokenizer, (self.vocab, self.model)

    def symbols(self) -> Collection[str]:
        return self._settings.symbols

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.vocab.to_ids(self._line_pieces(line)) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        """Join pieces into words, and detokenize them. Special ids, including UNK, are omitted."""
        pieces = self.vocab.to_pieces([number for number in ids if number >= len(SPECIALS)])
        words = "".join(self._text(piece) + " " * (not self._continues(piece)) for piece in pieces).split()
        try:
            text: str = self._detokenizer.detokenize(words)
        except TypeError:  # a bug in sacremoses 0.2.0, for Czech words with an apostrophe and a dash
            text = self._plain_detokenizer.detokenize(words)
        return text

    def surfaces(self, ids: Sequence[int], text: str = "") -> list[str]:
        pieces = self.vocab.to_pieces(ids, self._line_pieces(text))
        inside = [False, *map(self._continues, pieces)]
        spelled = self._unescaped(list(map(self._text, pieces)))
        surfaces = [" " * (not joined) + piece for piece, joined in zip(spelled, inside, strict=False)]
        # Moses splits words at punctuation, so take spaces from the text, or from decoded text with equal characters
        return (text and (respaced(surfaces, text) or respaced(surfaces, self._normalized(text)))) or surfaces

    def _unescaped(self, pieces: list[str]) -> list[str]:
        """Replace Moses's escapes, which may span several pieces, with the characters of the text."""
        ends, unescaped = list(accumulate(map(len, pieces))), [""] * len(pieces)
        for found in _CHARACTER.finditer("".join(pieces)):
            character = "-" if found[0] == "@-@" else self._detokenizer.unescape_xml(found[0])
            unescaped[bisect_left(ends, found.end())] += character
        return unescaped

    def _line_pieces(self, line: str) -> Iterator[str]:
        for number, part in enumerate(self._symbol.split(line)):
            if number % 2:
                yield part  # a symbol
            else:
                yield from chain.from_iterable(map(self._pieces, self._words(part)))

    def _words(self, line: str) -> list[str]:
        text, settings = self._normalized(line), self._settings
        words: list[str] = self._tokenizer.tokenize(
            text, aggressive_dash_splits=settings.dash_splits, return_str=False, escape=settings.escape
        )
        return words

    def _normalized(self, line: str) -> str:
        text = line.lower() if self._settings.lowercase else line
        return self._normalizer.normalize(text) if self._settings.normalize else text

    def _pieces(self, word: str) -> Sequence[str]:
        return (self._segment if len(word) > _MAX_CACHED_CHARACTERS else self._cached_segment)(word)

    def _segment(self, word: str) -> Sequence[str]:
        """Segment a word into pieces, spelled as in the vocabulary."""
        end = [word[-1], FINAL_MARK] if self._settings.separate_end else [word[-1] + FINAL_MARK]
        pieces = merge_symbols([*word[:-1], *end], self._ranks)
        if self._settings.mark == FINAL_MARK:
            return pieces
        *inner, last = pieces if pieces[-1] != FINAL_MARK else pieces[:-1]
        return [*(piece + INNER_MARK for piece in inner), last.removesuffix(FINAL_MARK)]

    def _continues(self, piece: str) -> bool:
        if piece in SPECIALS or piece in self._settings.symbols:
            return False
        return piece.endswith(INNER_MARK) if self._settings.mark == INNER_MARK else not piece.endswith(FINAL_MARK)

    def _text(self, piece: str) -> str:
        return piece.removesuffix(self._settings.mark)


def respaced(surfaces: Sequence[str], text: str) -> list[str] | None:
    """Add the spaces of `text` to the texts of pieces; None if they differ in the number of other characters."""
    characters = re.findall(r"\s*\S", text)
    counts = [len("".join(surface.split())) for surface in surfaces]
    if sum(counts) != len(characters):
        return None
    ends = accumulate(counts)
    return ["".join(characters[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def merge_symbols(symbols: Sequence[str], ranks: Ranks) -> list[str]:
    """Merge pairs of adjacent symbols until none has a rank. Each step merges all occurrences of the best-ranked pair.

    If occurrences overlap, the left one is merged. The result equals subword-nmt's, in O(n log n) for n symbols.
    """
    merged = [*symbols, ""]  # "" means the end, or a symbol merged into the one before it
    after, before = [*range(1, len(merged)), -1], [-1, *range(len(symbols))]

    def pair_at(position: int) -> tuple[str, str]:
        return merged[position], merged[after[position]]

    queue = [(ranks[pair], position) for position, pair in enumerate(pairwise(symbols)) if pair in ranks]
    heapq.heapify(queue)
    while queue:
        lowest, changed = queue[0][0], list[int]()
        while queue and queue[0][0] == lowest:
            _, position = heapq.heappop(queue)
            if ranks.get(pair_at(position)) == lowest:  # otherwise an earlier merge has changed the pair
                following = after[position]
                merged[position], merged[following] = merged[position] + merged[following], ""
                after[position] = after[following]
                before[after[following]] = position
                changed += [position] if before[position] < 0 else [before[position], position]
        for position in changed:
            if (rank := ranks.get(pair_at(position))) is not None:
                heapq.heappush(queue, (rank, position))
    return [symbol for symbol in merged if symbol]

"""Filters of noisy sentence pairs. Each is a pure function of the text, and applies to training text only.

`enabled_filters` is the table: it yields the reason and the filter of each option that is set, in the order of
`reasons.REASONS`.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

import regex

from nmtkit.errors import UserError
from nmtkit.preprocessing.characters import CharacterTable, count_in
from nmtkit.preprocessing.config import CleaningConfig
from nmtkit.preprocessing.language_id import language_filter
from nmtkit.preprocessing.overlap import Overlap
from nmtkit.preprocessing.reasons import EMPTY, KEPT, MARKS, OVERLAP
from nmtkit.text.languages import side_names

P = ParamSpec("P")
PairFilter = Callable[[str, str], bool]  # source, target -> whether the pair is dropped
SideFilter = Callable[[str], bool]

# Scripts that are written without spaces between words.
_UNSPACED_SCRIPTS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_UNSPACED = regex.compile(f"[{_UNSPACED_SCRIPTS}]+")
_LETTER_OF_ONE_SCRIPT = regex.compile(r"[\p{L}--\p{Common}--\p{Inherited}]", regex.VERSION1)
# A URL may have letters of any script, but text in these may follow it without a space.
_IN_URL = rf"[[!-~]||[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED_SCRIPTS}]]]"
# Bounded and anchored, so that the time is linear in the length of any line.
_ADDRESS = regex.compile(
    rf"(?:https?|ftp)://{_IN_URL}+|www\.{_IN_URL}+|(?<![\w.+-])[\w.+-]{{1,64}}@[\w.-]+\.\w+",
    regex.VERSION1 | regex.IGNORECASE,
)
_SCRIPT_NAME = re.compile(r"[A-Za-z_]+")
_IS_ALPHANUMERIC = CharacterTable(lambda character: unicodedata.category(character)[0] in "LMN")  # M: combining marks
_IS_LETTER = CharacterTable(lambda character: _LETTER_OF_ONE_SCRIPT.match(character) is not None)


def has_blank_side(source: str, target: str) -> bool:
    """Whether a side has only white space. `encoding` also finds pairs without tokens, which are empty too."""
    return not source.strip() or not target.strip()


def identical(source: str, target: str) -> bool:
    return source.strip() == target.strip()


def length_outside(text: str, shortest: int | None, longest: int | None) -> bool:
    """Whether the number of characters, spaces around the text not counted, is out of bounds."""
    return _outside(len(text.strip()), shortest, longest)


def words_outside(text: str, fewest: int | None, most: int | None) -> bool:
    return _outside(len(text.split()), fewest, most)


def _outside(number: int, low: int | None, high: int | None) -> bool:
    return (low is not None and number < low) or (high is not None and number > high)


def differs_in_length(source: str, target: str, ratio: float) -> bool:
    """Whether a side has more than `ratio` times the characters of the other."""
    shorter, longer = sorted((len(source.strip()), len(target.strip())))
    return longer > ratio * shorter


def has_long_word(text: str, longest: int) -> bool:
    """Whether a word has more characters than `longest`. Scripts without spaces end a word."""
    long_words = (word for word in text.split() if len(word) > longest)
    return any(len(part) > longest for word in long_words for part in _UNSPACED.split(word))


def has_repetition(text: str, most: int) -> bool:
    """Whether a character other than a digit or space, or a word, occurs more than `most` times in a row."""
    if _repeated_character(most).search(text):
        return True
    words = text.casefold().split()
    if len(words) - len(set(words)) < most:
        return False
    return max(sum(1 for _ in run) for _, run in itertools.groupby(words)) > most


@functools.cache
def _repeated_character(most: int) -> "re.Pattern[str]":
    return re.compile(r"([^\s\d])" + r"\1" * most)  # faster than a counted repetition


def url_share(text: str) -> float:
    """The share of URLs and e-mail addresses in the characters of a text."""
    if "://" not in text and "@" not in text and "www." not in text.lower():
        return 0.0
    return sum(map(len, _ADDRESS.findall(text))) / max(1, len(text.strip()))


def alphanumeric_share(text: str) -> float:
    """The share of letters, with their combining marks, and digits in the characters that are not spaces."""
    return count_in(_IS_ALPHANUMERIC, text) / max(1, sum(map(len, text.split())))


def script_share(text: str, script: CharacterTable[bool]) -> float:
    """The share of letters of `script` in the letters of a text that have one script; 1 without such letters."""
    letters = count_in(_IS_LETTER, text)
    return count_in(script, text) / letters if letters else 1.0


def script_table(option: str, scripts: tuple[str, ...]) -> CharacterTable[bool]:
    """The table of the letters of these scripts. Raises UserError for a script that Unicode does not have."""
    for script in scripts:
        try:
            if not _SCRIPT_NAME.fullmatch(script):
                raise regex.error("not a name")
            regex.compile(rf"\p{{Script={script}}}")
        except regex.error as error:
            raise UserError(f"{option} {script!r}: not a script of Unicode: use a name such as Latin or Han") from error
    pattern = regex.compile("[" + "".join(rf"\p{{Script={script}}}" for script in scripts) + "]")
    return CharacterTable(lambda character: _IS_LETTER[character] and pattern.match(character) is not None)


def either(check: Callable[Concatenate[str, P], bool], *args: P.args, **kwargs: P.kwargs) -> PairFilter:
    """A filter that drops a pair if `check`, with these arguments, is true for one of its sides."""
    return lambda source, target: check(source, *args, **kwargs) or check(target, *args, **kwargs)


def enabled_filters(
    config: CleaningConfig, languages: tuple[str, str], overlap: Overlap | None
) -> Iterator[tuple[str, PairFilter]]:
    """Yield the reason and the filter of each option that is set. Raises UserError for an invalid one."""
    if config.drop_identical:
        yield "identical", identical
    if config.min_chars is not None or config.max_chars is not None:
        yield "characters", either(length_outside, config.min_chars, config.max_chars)
    if config.min_words is not None or config.max_words is not None:
        yield "words", either(words_outside, config.min_words, config.max_words)
    if config.max_char_ratio is not None:
        yield "character ratio", functools.partial(differs_in_length, ratio=config.max_char_ratio)
    if config.max_repeats is not None:
        yield "repetition", either(has_repetition, config.max_repeats)
    if (most := config.max_url_share) is not None:
        yield "URL", either(lambda text, most: url_share(text) > most, most)
    if (least := config.min_alphanumeric) is not None:
        yield "alphanumeric", either(lambda text, least: alphanumeric_share(text) < least, least)
    if config.source_script or config.target_script:
        yield "script", _script_filter(config)
    if config.max_word_length is not None:
        yield "long word", either(has_long_word, config.max_word_length)
    if overlap is not None:
        yield OVERLAP, overlap.contains_side
    if config.langid_model is not None:
        yield "language", language_filter(config.langid_model, config.langid_labels or languages, config.min_langid)


def _script_filter(config: CleaningConfig) -> PairFilter:
    source = _wrong_script("--source-script", config.source_script, config.min_script)
    target = _wrong_script("--target-script", config.target_script, config.min_script)
    return lambda source_text, target_text: source(source_text) or target(target_text)


def _wrong_script(option: str, scripts: tuple[str, ...], least: float) -> SideFilter:
    if not scripts:
        return lambda text: False
    table = script_table(option, scripts)
    return lambda text: script_share(text, table) < least


@dataclass(frozen=True)
class PairMarker:
    """Marks a pair with the first filter that drops it. Picklable: each worker makes its filters at its first pair."""

    config: CleaningConfig
    languages: tuple[str, str]
    overlap: Overlap | None

    @functools.cached_property
    def _filters(self) -> list[tuple[int, PairFilter]]:
        filters = enabled_filters(self.config, self.languages, self.overlap)
        return [(MARKS[reason], drops) for reason, drops in filters]

    def __call__(self, source: str, target: str) -> int:
        """The mark of a pair: `KEPT`, or that of a reason."""
        if has_blank_side(source, target):
            return MARKS[EMPTY]
        return next((mark for mark, drops in self._filters if drops(source, target)), KEPT)


def make_marker(config: CleaningConfig, languages: tuple[str, str]) -> PairMarker | None:
    """The marker for these options; None if pairs need no marks. Raises UserError for an invalid option."""
    overlap = Overlap.read(config.exclude_overlap, side_names(languages)) if config.exclude_overlap else None
    has_filters = bool(list(enabled_filters(config, languages, overlap)))
    return PairMarker(config, languages, overlap) if has_filters or config.removes_duplicates else None

"""Augmentation: rewrites some training pairs, so that a model also translates capitals, typos and other rough input."""

import math
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from nmtkit.errors import UserError
from nmtkit.text.casing import capitalize_words
from nmtkit.text.languages import UNSPACED_LETTER

DEFAULT = "upper=.07,title=.05,typos=.05,noise=.005,merge=.01,remove-end-punct=.1"
_END_MARKS = ".!?…。！？।"
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
_WORDS_PER_TYPO = 8
_NOISE = tuple("😀😂😉😍🙏👍🎉🔥❤★☆✓→•§©®™#*@~|")


class Pair(NamedTuple):
    """A source text and its target text."""

    source: str
    target: str


Following = Callable[[], Pair | None]  # reads the next pair of the corpus
Modifier = Callable[[Pair, Following, Random], Pair]


def parse(text: str) -> dict[str, float]:
    """Read the value of --augment: `default`, or probabilities such as `upper=.07,typos=.05`. Raises UserError."""
    rates = {}
    for part in (DEFAULT if text == "default" else text).split(","):
        name, _, value = part.partition("=")
        try:
            rates[name] = float(value)
        except ValueError:
            rates[name] = math.nan
        if name not in MODIFIERS or not 0 <= rates[name] <= 1:
            names = ", ".join(MODIFIERS)
            raise UserError(f"--augment {text}: give default, or probabilities of {names}, such as upper=.07")
    return rates


def choose(rates: Mapping[str, float], random: Random) -> list[Modifier]:
    """Choose each modifier with its probability, in the order of `MODIFIERS`."""
    return [modify for name, modify in MODIFIERS.items() if random.random() < rates.get(name, 0.0)]


def _merge(pair: Pair, following: Following, random: Random) -> Pair:
    after = following()
    return Pair(*map(_join, pair, after)) if after else pair


def _join(first: str, second: str) -> str:
    """Join two texts with a space, or without one in a script that has none between words."""
    return first + ("" if UNSPACED_LETTER.search(first) and UNSPACED_LETTER.search(second) else " ") + second


def _upper(pair: Pair, following: Following, random: Random) -> Pair:
    return Pair(pair.source.upper(), pair.target.upper())


def _title(pair: Pair, following: Following, random: Random) -> Pair:
    return Pair(*map(capitalize_words, pair))


def _typos(pair: Pair, following: Following, random: Random) -> Pair:
    """Misspell about one source word in eight: swap, drop, double or replace a letter after the first."""
    source = pair.source
    words = [word.span() for word in _LONG_WORD.finditer(source) if not UNSPACED_LETTER.search(word[0])]
    letters = "".join(source[start:end].lower() for start, end in words)
    count = min(len(words), 1 + len(words) // _WORDS_PER_TYPO)
    for start, end in sorted(random.sample(words, count), reverse=True):
        at = random.randrange(start + 1, end - 1)
        one, other = source[at], source[at + 1]
        typo = random.choice((other + one, other, one + one + other, random.choice(letters) + other))
        source = source[:at] + typo + source[at + 2 :]
    return pair._replace(source=source)


def _noise(pair: Pair, following: Following, random: Random) -> Pair:
    """Put the same symbols before or after both texts."""
    noise = "".join(random.choices(_NOISE, k=random.randint(1, 3)))
    before = random.random() < 0.5
    return Pair(*(_join(noise, text) if before else _join(text, noise) for text in pair))


def _remove_end_punctuation(pair: Pair, following: Following, random: Random) -> Pair:
    stripped = Pair(*(text.rstrip(_END_MARKS) for text in pair))
    both = all(short and short != text for short, text in zip(stripped, pair, strict=True))
    return stripped if both else pair


MODIFIERS: dict[str, Modifier] = {
    "merge": _merge,
    "remove-end-punct": _remove_end_punctuation,
    "typos": _typos,
    "upper": _upper,
    "title": _title,
    "noise": _noise,
}

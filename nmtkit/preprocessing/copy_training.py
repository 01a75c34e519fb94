"""Copy training (--placeholders): some training pairs contain placeholder symbols, which the model learns to copy.

In 7.5 % of the pairs, words that both sides have once become symbols. Pairs without such words get symbols at their
ends and, if both sides have the same punctuation, before it.
"""

import random
import re
import zlib
from collections.abc import Sequence

from nmtkit.text.user_symbols import PLACEHOLDERS

_PER_MILLE = 75
_MOST = 3  # symbols of a pair
_WORD = re.compile(r"(?<![\w@])(?:\d+|\w{4,})(?![\w@])")  # shorter words are rarely names; no subword with @@
_MARK = re.compile(r"[^\w\s]")


def with_placeholders(sides: Sequence[bytes], seed: int) -> list[bytes]:
    """Return the lines of both sides with placeholder symbols in some pairs, which each pair and the seed determine."""
    pairs = zip(*(side.removesuffix(b"\n").split(b"\n") for side in sides), strict=True)
    changed = [_changed(pair, zlib.crc32(b"\t".join(pair), seed)) for pair in pairs]
    return [b"".join(line + b"\n" for line in side) for side in zip(*changed, strict=True)]


def _changed(pair: tuple[bytes, bytes], number: int) -> tuple[bytes, ...]:
    """Choose by a random `number` whether a pair gets symbols, and which."""
    if number % 1000 >= _PER_MILLE:
        return pair
    draw, sides = random.Random(number), [side.decode().strip() for side in pair]
    symbols = draw.sample(PLACEHOLDERS, draw.randint(1, _MOST))
    words = [_WORD.findall(side) for side in sides]
    common = [word for word in words[0] if words[0].count(word) == words[1].count(word) == 1]
    new = dict(zip(draw.sample(common, min(len(common), len(symbols))), symbols, strict=False))
    if new:
        return tuple(_WORD.sub(lambda word: new.get(word[0], word[0]), side).encode() for side in sides)
    marks = [list(_MARK.finditer(side)) for side in sides]
    spots = [(0, 0), (len(sides[0]), len(sides[1]))]
    if [mark[0] for mark in marks[0]] == [mark[0] for mark in marks[1]]:
        spots += [(one.start(), other.start()) for one, other in zip(*marks, strict=True)]
    for spot, symbol in zip(sorted(draw.sample(spots, min(len(spots), len(symbols))))[::-1], symbols, strict=False):
        sides = [_with_symbol(side, at, symbol) for side, at in zip(sides, spot, strict=True)]
    return tuple(side.encode() for side in sides)


def _with_symbol(side: str, at: int, symbol: str) -> str:
    left = side[:at].rstrip()
    return f"{left} {symbol}{side[len(left) : at] or ' ' * (at == 0)}{side[at:]}".strip()

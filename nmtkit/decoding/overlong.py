"""Splits lines that are too long into parts that end at a sentence, a clause or a word."""

import re
from collections.abc import Sequence
from itertools import accumulate
from operator import add

# Where a text may be split, the best boundaries last: words, clauses, sentences. In scripts without spaces, the mark of
# a sentence need not be followed by one.
_CLOSING = r"[\"'”’»›)\]}」』）】》〉]*"
_ENDING = r"[.!?…؟۔।॥։።፧፨།။។៕]"  # a run of them is matched only from its start
_BOUNDARIES = [
    re.compile(r"(?=\s)"),
    re.compile(rf"[,;:–—،؛፣፤]{_CLOSING}(?=\s)|[、，；：]{_CLOSING}"),
    re.compile(rf"(?<!{_ENDING}){_ENDING}+{_CLOSING}(?=\s)|[。！？｡．]+{_CLOSING}"),
]
_UNSPACED = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")  # Chinese and Japanese


def parts(ids: list[int], surfaces: Sequence[str], longest: int) -> list[list[int]]:
    """Split ids into parts of at most `longest`, each as long as possible.

    Each part ends at a sentence if possible, else at a clause, a word or a piece. No id is lost. `surfaces` has the
    text that each id adds, see `Tokenizer.surfaces`.
    """
    ends = list(accumulate(map(len, surfaces), initial=0))
    first_at = {end: number for number, end in reversed(list(enumerate(ends)))}  # not between the bytes of a character
    rank = [int(first_at[end] == number) for number, end in enumerate(ends)]
    text = "".join(surfaces)
    for better, boundary in enumerate(_BOUNDARIES, 2):
        for found in boundary.finditer(text):
            if (number := first_at.get(found.end())) is not None:
                rank[number] = better
    found_parts, start = [], 0
    while len(ids) - start > longest:
        end = max(range(start + 1, start + longest + 1), key=lambda number: (rank[number], number))
        found_parts.append(ids[start:end])
        start = end
    return [*found_parts, ids[start:]]


def separators(texts: Sequence[str]) -> list[str]:
    """The separator before each text: a space, but nothing between two Chinese or Japanese characters."""
    found, last = [], ""
    for text in texts:
        is_attached = not text or not last or (_UNSPACED.match(last) and _UNSPACED.match(text[0]))
        found.append("" if is_attached else " ")
        last = text[-1:] or last
    return found


def join(texts: Sequence[str]) -> str:
    """Join the translations of the parts of a line."""
    return "".join(map(add, separators(texts), texts))

"""Splits lines that are too long into parts that end at a sentence, a clause or a word."""

import re
from collections.abc import Sequence
from itertools import accumulate
from operator import add

from nmtkit.text.sentences import split_sentences

# Where a text may be split apart from the ends of sentences, the best boundaries last: words, clauses.
_CLOSING = r"[\"'”’»›)\]}」』）】》〉]*"
_BOUNDARIES = [re.compile(r"(?=\s)"), re.compile(rf"[,;:–—،؛፣፤]{_CLOSING}(?=\s)|[、，；：]{_CLOSING}")]
_UNSPACED = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")  # Chinese and Japanese


def parts(ids: list[int], surfaces: Sequence[str], longest: int, language: str = "en") -> list[list[int]]:
    """Split the ids of a text in `language` into parts of at most `longest` ids, each as long as possible.

    Each part ends at a sentence if possible, else at a clause, a word or a piece. No id is lost. `surfaces` is the
    text that each id adds, see `Tokenizer.surfaces`.
    """
    ends = list(accumulate(map(len, surfaces), initial=0))
    first_at = {end: number for number, end in reversed(list(enumerate(ends)))}  # not between the bytes of a character
    rank = [int(first_at[end] == number) for number, end in enumerate(ends)]
    text = "".join(surfaces)
    sentences = list(accumulate(map(len, split_sentences(text, language))))
    clauses = ([found.end() for found in boundary.finditer(text)] for boundary in _BOUNDARIES)
    for better, boundaries in enumerate([*clauses, [len(text[:end].rstrip()) for end in sentences]], 2):
        for number in filter(None, map(first_at.get, boundaries)):
            rank[number] = better
    found_parts, start = [], 0
    while len(ids) - start > longest:
        end = max(range(start + 1, start + longest + 1), key=lambda number: (rank[number], number))
        found_parts.append(ids[start:end])
        start = end
    return [*found_parts, ids[start:]]


def separators(texts: Sequence[str]) -> list[str]:
    """Return the separator before each text: a space, but nothing between two Chinese or Japanese characters."""
    found, last = [], ""
    for text in texts:
        is_attached = not text or not last or (_UNSPACED.match(last) and _UNSPACED.match(text[0]))
        found.append("" if is_attached else " ")
        last = text[-1:] or last
    return found


def join(texts: Sequence[str], frame: Sequence[str] = ()) -> str:
    """Join the translations of the parts of a line. `frame` is the text before each part and after the last.

    Where parts touch, or are separated by one space, the script of the translation decides whether to write a space.
    """
    return "".join(map(add, spaces(texts, frame), texts)) + "".join(frame[-1:])


def spaces(texts: Sequence[str], frame: Sequence[str] = ()) -> list[str]:
    """Return the text that `join` writes before each part."""
    found = separators(texts)
    return [found[n] if n and text in ("", " ") else text for n, text in enumerate(frame[:-1])] or found

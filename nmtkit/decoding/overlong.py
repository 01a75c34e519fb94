"""Sentences that are too long for the model, in parts that end where sentences, clauses or words do."""

import re
from collections.abc import Sequence
from itertools import accumulate

# Where the text may be parted, the better places last. Scripts that set no spaces end a sentence by the mark alone.
_CLOSING = r"[\"'”’»›)\]}」』）】》〉]*"
_ENDING = r"[.!?…؟۔।॥։።፧፨།။។៕]"  # a run of them is looked at from its beginning only
_PLACES = [
    re.compile(r"(?=\s)"),
    re.compile(rf"[,;:–—،؛፣፤]{_CLOSING}(?=\s)|[、，；：]{_CLOSING}"),
    re.compile(rf"(?<!{_ENDING}){_ENDING}+{_CLOSING}(?=\s)|[。！？｡．]+{_CLOSING}"),
]
_UNSPACED = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")  # Chinese and Japanese


def parts(ids: list[int], surfaces: Sequence[str], longest: int) -> list[list[int]]:
    """`ids` cut into parts of at most `longest`, each as long as its best end allows: that of a sentence, of a clause,
    of a word, of a piece. Nothing is lost; `surfaces` are what each id adds to the text (`Tokenizer.surfaces`)."""
    ends = list(accumulate(map(len, surfaces), initial=0))
    first_at = {end: number for number, end in reversed(list(enumerate(ends)))}  # not between a character's bytes
    merit = [int(first_at[end] == number) for number, end in enumerate(ends)]
    text = "".join(surfaces)
    for better, place in enumerate(_PLACES, 2):
        for found in place.finditer(text):
            if (number := first_at.get(found.end())) is not None:
                merit[number] = better
    found_parts, start = [], 0
    while len(ids) - start > longest:
        end = max(range(start + 1, start + longest + 1), key=lambda number: (merit[number], number))
        found_parts.append(ids[start:end])
        start = end
    return [*found_parts, ids[start:]]


def join(texts: Sequence[str]) -> str:
    """The translation of a sentence whose parts were translated to `texts`."""
    joined = ""
    for text in filter(None, texts):
        space = "" if not joined or (_UNSPACED.match(joined[-1]) and _UNSPACED.match(text[0])) else " "
        joined += space + text
    return joined

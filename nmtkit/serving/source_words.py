"""The words of a source line, as the user wrote them."""

import unicodedata
from collections.abc import Sequence

from nmtkit.text.tokenizer import Tokenizer

_SPACES_AND_CONTROLS = ("Zs", "Zl", "Zp", "Cc", "Cf")


def source_words(line: str, tokens: Sequence[str], source: Tokenizer) -> list[str]:
    """Split a line into the words that alignments refer to. `tokens` are its pieces, without `</s>`.

    Normalization can split and join words, so the line is split where the normalization of its characters does. If this
    gives the wrong number of words, the line is split at spaces, and if this fails too, the normalized line is split.
    """
    counted = "".join(source.surfaces(source.vocab.to_ids(tokens), line)).split()
    candidates = (_split(line, source), line.split())
    return next((words for words in candidates if len(words) == len(counted)), counted)


def _split(line: str, source: Tokenizer) -> list[str]:
    """Split a line where normalization does. A character that becomes several words belongs to each of them."""
    characters = [character for character in dict.fromkeys(line) if not _is_plain(character)]
    alone, with_previous, with_next, with_both = (
        _word_counts([form.format(character) for character in characters], source)
        for form in ("{}", "x{}", "{}x", "x{}x")
    )
    counts = dict(zip(characters, zip(alone, with_previous, with_next, with_both, strict=True), strict=True))
    words = [""]
    for character in line:
        own, after_another, before_another, between = counts.get(character, (1, 1, 1, 1))
        if own == 0:
            if between == 2:  # a separator
                words.append("")
            elif words[-1]:  # deleted
                words[-1] += character
            continue
        words += [""] * (after_another > own)
        words[-1] += character
        words += [character] * (own - 1)
        words += [""] * (before_another > own)
    return [word for word in words if word]


def _is_plain(character: str) -> bool:
    """Whether normalization can neither turn a character into spaces nor delete it."""
    is_visible = unicodedata.category(character) not in _SPACES_AND_CONTROLS
    return is_visible and unicodedata.normalize("NFKC", character) == character


def _word_counts(texts: Sequence[str], source: Tokenizer) -> list[int]:
    return [len("".join(source.surfaces(ids)).split()) for ids in source.encode(texts)]

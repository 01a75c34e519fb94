"""The characters of a line, as the limits of the service count them."""

import unicodedata
from collections import Counter


def count_characters(line: str) -> int:
    """The characters of a line after NFKC normalization, which can turn one character into 18 (U+FDFA).

    Each character is normalized on its own, so marks are not composed with letters.
    """
    if line.isascii():
        return len(line)
    return sum(count * len(unicodedata.normalize("NFKC", character)) for character, count in Counter(line).items())

"""Words that a model knows by themselves, and classes for all others.

    python rare_words.py SIZE TREES... > KNOWN     the SIZE most frequent words of those that come more than once

A word that comes only once in training is its class there, so that training shows what a class stands for.
"""

import re
import sys
from collections import Counter
from collections.abc import Set
from itertools import chain
from pathlib import Path

from trees import read_trees

from nmtkit.errors import NmtkitError

_ENDINGS = re.compile(
    "(ing|ed|tion|sion|ity|ness|ment|able|ible|al|ous|ive|less|ful|ic|ly|est|er|or|ist|ism|ies|es|ss|us|s|y|e)$"
)


def word_class(word: str) -> str:
    """What can be seen of a word: digits, capitals, a hyphen, and an English ending."""
    digits = "-digit" * any(character.isdigit() for character in word)
    capital = "-capital" * word[0].isupper() + "-capitals" * (word.isupper() and len(word) > 1)
    hyphen = "-hyphen" * ("-" in word)
    ending = _ENDINGS.search(word.lower()[2:])  # of a stem with two letters at least
    return f"unknown{digits}{capital}{hyphen}" + (f"-{ending[0]}" if ending else "")


def model_words(words: list[str], known: Set[str]) -> list[str]:
    """The words of a sentence as the model sees them: each itself, in lower case at the beginning, or its class."""
    seen = [word if word in known else word_class(word) for word in words]
    if words and words[0] not in known and words[0].lower() in known:
        seen[0] = words[0].lower()
    return seen


def known_words(size: int, paths: list[Path]) -> list[str]:
    counts = Counter(chain.from_iterable(tree.words for path in paths for tree in read_trees(path)))
    common = sorted((-count, word) for word, count in counts.items() if count > 1)
    return [word for _, word in common[:size]]


if __name__ == "__main__":
    try:
        print(*known_words(int(sys.argv[1]), list(map(Path, sys.argv[2:]))), sep="\n")
    except NmtkitError as error:
        sys.exit(f"error: {error}")

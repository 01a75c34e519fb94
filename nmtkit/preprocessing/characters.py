"""Tables of characters, filled when a character is first seen: several times faster than a pattern for each text."""

from collections.abc import Callable
from typing import TypeVar

V = TypeVar("V")


class CharacterTable(dict[str, V]):
    """Maps each character to the value of a function, which is called once for each distinct character."""

    def __init__(self, function: Callable[[str], V]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, character: str) -> V:
        value = self[character] = self._function(character)
        return value


def count_in(table: CharacterTable[bool], text: str) -> int:
    """The number of characters of a text that are true in the table."""
    return sum(map(table.__getitem__, text))

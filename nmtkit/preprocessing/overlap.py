"""Finds training lines that also occur in test files (--exclude-overlap), by hashes of their normal form."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmtkit.errors import UserError
from nmtkit.preprocessing.dedup import hash_text, normal_form
from nmtkit.text.reading import COMPRESSED, read_lines


@dataclass(frozen=True)
class Overlap:
    """The hashes of the lines of test files, for each side; about 100 bytes of memory a line."""

    source: frozenset[bytes]
    target: frozenset[bytes]

    @classmethod
    def read(cls, files: Sequence[Path], languages: tuple[str, str]) -> "Overlap":
        """Read test files, such as test.en or test.de.gz. Their suffix tells the language.

        Raises UserError for another language, or if a file cannot be read.
        """
        hashes: dict[str, set[bytes]] = {language: set() for language in languages}
        for path in files:
            name = path.name.removesuffix(path.suffix) if path.suffix in COMPRESSED else path.name
            language = next((one for one in languages if name.endswith(f".{one}")), None)
            if language is None:
                suffixes = " or ".join(f".{one}" for one in languages)
                raise UserError(f"--exclude-overlap {path}: the name must end with the language, {suffixes}")
            hashes[language].update(_key(line) for line in read_lines(path) if line.strip())
        return cls(*(frozenset(hashes[language]) for language in languages))

    def contains_side(self, source: str, target: str) -> bool:
        """Whether the source or the target is a line of a test file in its language."""
        return (bool(self.source) and _key(source) in self.source) or (
            bool(self.target) and _key(target) in self.target
        )


def _key(line: str) -> bytes:
    return hash_text(normal_form(line).encode())

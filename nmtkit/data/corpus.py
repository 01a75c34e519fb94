"""A dataset folder: what nmt-preprocess writes and the other stages read. `docs/formats.md` describes it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmtkit.checksum import sha256
from nmtkit.data.binary import REMEDY, TokenFile
from nmtkit.data.description import (
    DESCRIPTION,
    Description,
    model_name,
    read_description,
    split_stem,
    vocabulary_name,
)
from nmtkit.data.lines import MOST_NAMED, LineNumbers, dropped_path
from nmtkit.errors import UserError
from nmtkit.tokenizer import SPACE, Tokenizer, make_tokenizer
from nmtkit.vocab import Vocabulary
from nmtkit.wording import counted

ALWAYS_VERIFIED = 1 << 30  #: datasets below this many bytes have their checksums compared whenever they are opened
_BLOCK = 1 << 20  # sentence pairs looked through at a time


@dataclass(frozen=True)
class Split:
    """The sentence pairs of a split: `source[i]` and `target[i]` belong together, `lines` knows where they stood."""

    name: str
    source: TokenFile
    target: TokenFile
    lines: LineNumbers

    def __len__(self) -> int:
        return len(self.source)

    def longest(self) -> int:
        """Tokens of the longest sentence of either side."""
        blocks = (slice(begin, begin + _BLOCK) for begin in range(0, len(self), _BLOCK))
        return max(int(side.lengths[block].max()) for block in blocks for side in (self.source, self.target))

    def check_lengths(self, option: str, limit: int, instead: str) -> None:
        """UserError where a pair has a side of more tokens than an option allows; it names the first lines."""
        count, longest, first = 0, 0, list[int]()
        for begin in range(0, len(self), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            lengths = np.maximum(self.source.lengths[block], self.target.lengths[block])
            longest = max(longest, int(lengths.max()))
            too_long = begin + np.flatnonzero(lengths > limit)
            count += len(too_long)
            first += too_long[: MOST_NAMED + 1 - len(first)].tolist()
        if count:
            raise UserError(
                f"{option} {limit}: too small for {counted(count, 'pair')} of {len(self)} in split '{self.name}', such "
                f"as {self.lines.name(first)}: give at least {longest}, or {instead}"
            )


class Dataset:
    """An opened dataset. `source` and `target` are the same object when the vocabulary is joined."""

    def __init__(self, folder: Path, description: Description) -> None:
        self.folder = folder
        self.source_language, self.target_language = description.languages
        self.joined = description.joined
        self.rows = {row.name: row for row in description.splits}
        self._files, self._kind = description.files, description.tokenizer
        self.source = self._read_tokenizer(None if self.joined else self.source_language)
        self.target = self.source if self.joined else self._read_tokenizer(self.target_language)
        for language, tokenizer in zip(description.languages, (self.source, self.target), strict=True):
            if len(tokenizer.vocab) != description.vocabulary[language]:
                raise UserError(f"{folder / DESCRIPTION}: the vocabulary of {language} has another size; {REMEDY}")

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> "Dataset":
        """Open a dataset and check that it is whole.

        Sizes are always compared with those in dataset.json; checksums when the whole dataset is smaller than
        1 GiB, and with `verify` above that. Raises UserError that names the file that is missing or wrong.
        """
        description = read_description(folder)
        _check_files(folder, description, verify)
        return cls(folder, description)

    def checksums(self, split: str | None = None) -> dict[str, str]:
        """The SHA-256 of each file, of a split or of all the dataset: whether two of them have the same text there."""
        files = self._files.items()
        return {name: facts.sha256 for name, facts in files if split is None or name.startswith(f"{split}.")}

    @property
    def split_names(self) -> list[str]:
        return list(self.rows)

    def split(self, name: str) -> Split:
        """The split of that name. Raises UserError, naming those there are, when there is none."""
        if name not in self.rows:
            raise UserError(f"{self.folder} has no split {name!r}, only {', '.join(self.rows)}")
        row = self.rows[name]
        source, target = (
            TokenFile(split_stem(self.folder, name, language), len(tokenizer.vocab))
            for language, tokenizer in self._sides
        )
        for what, stored, described in (
            ("sentences", (len(source), len(target)), (row.sentences, row.sentences)),
            ("tokens", (source.tokens, target.tokens), tuple(row.tokens[language] for language, _ in self._sides)),
        ):
            if stored != described:
                raise UserError(
                    f"{self.folder / DESCRIPTION}: the {what} of split {name} differ from those stored; {REMEDY}"
                )
        lines = LineNumbers(len(source), row.corpora, dropped_path(self.folder, name))
        return Split(name, source, target, lines)

    @property
    def _sides(self) -> tuple[tuple[str, Tokenizer], tuple[str, Tokenizer]]:
        return (self.source_language, self.source), (self.target_language, self.target)

    def _read_tokenizer(self, language: str | None) -> Tokenizer:
        vocabulary = self.folder / vocabulary_name(language)
        model = b"" if self._kind == SPACE else (self.folder / model_name(language)).read_bytes()
        try:
            return make_tokenizer(self._kind, Vocabulary.from_bytes(vocabulary.read_bytes()), model)
        except UserError as error:
            raise UserError(f"{vocabulary}: {error}; {REMEDY}") from error


def write_tokenizer(folder: Path, tokenizer: Tokenizer, language: str | None) -> None:
    """Write the vocabulary, and the SentencePiece model if there is one; `language` is None for a joined one."""
    (folder / vocabulary_name(language)).write_bytes(tokenizer.vocab.to_bytes())
    if tokenizer.kind != SPACE:
        (folder / model_name(language)).write_bytes(tokenizer.model)


def _check_files(folder: Path, description: Description, verify: bool) -> None:
    """Raise UserError at the first file that is missing, or has another size or content than was written."""
    for name, facts in description.files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing; {REMEDY}")
        if path.stat().st_size != facts.bytes:
            raise UserError(f"{path}: {path.stat().st_size} bytes instead of {facts.bytes}; {REMEDY}")
    if verify or sum(facts.bytes for facts in description.files.values()) < ALWAYS_VERIFIED:
        for name, facts in description.files.items():
            if sha256(folder / name, facts.bytes) != facts.sha256:
                raise UserError(f"{folder / name}: damaged, the checksum is wrong; {REMEDY}")

"""The dataset folder, which nmt-preprocess writes and other commands read: see `docs/reference/dataset.md`."""

from dataclasses import dataclass
from pathlib import Path

from nmtkit.data.binary import REMEDY
from nmtkit.data.description import Description, read_description, tokenizer_files
from nmtkit.data.sentences import Sentences
from nmtkit.errors import UserError
from nmtkit.storage.files import sha256
from nmtkit.text.tokenizer import Tokenizer, restore_tokenizers, shares_vocabulary

ALWAYS_VERIFY_BELOW = 1 << 30  #: bytes; checksums of smaller datasets are verified whenever they are opened
_PAIRS_PER_READ = 1 << 20


@dataclass(frozen=True)
class Split:
    """The sentence pairs `source[i]`, `target[i]` of a split."""

    name: str
    source: Sentences
    target: Sentences

    def __len__(self) -> int:
        return len(self.source)

    def longest(self) -> int:
        """The number of tokens of the longest sentence on either side."""
        slices = (slice(begin, begin + _PAIRS_PER_READ) for begin in range(0, len(self), _PAIRS_PER_READ))
        return max(int(side.lengths[pairs].max()) for pairs in slices for side in (self.source, self.target))

    def check_lengths(self, option: str, limit: int, instead: str) -> None:
        """Raise UserError if a sentence has more tokens than `limit`, the value of `option`. Suggests `instead`."""
        if len(self) and (longest := self.longest()) > limit:
            raise UserError(
                f"{option} {limit} is too small for split '{self.name}', whose longest sentence has {longest} tokens: "
                f"give at least {longest}, or {instead}"
            )


class Dataset:
    """An open dataset. If `joined`, `source` and `target` share a vocabulary, and may be the same tokenizer. Every
    source line begins with `source_tag`, which is empty without a tag."""

    def __init__(self, folder: Path, description: Description) -> None:
        self.folder = folder
        self.languages = self.source_language, self.target_language = description.languages
        self.joined, self.source_tag = description.joined, description.source_tag
        self.summaries = {summary.name: summary for summary in description.splits}
        self._description = description
        kinds = description.tokenizer, description.tokenizer
        self.source, self.target = read_tokenizers(folder, kinds, description.joined, description.languages)

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> "Dataset":
        """Open a dataset and verify the sizes of its files, and if it is smaller than 1 GiB or with `verify` their
        checksums. Raises UserError with the file's name if one is missing or wrong."""
        description = read_description(folder)
        _check_files(folder, description, verify)
        return cls(folder, description)

    def checksums(self, split: str | None = None) -> dict[str, str]:
        """Return the SHA-256 of each file of a split, or of the whole dataset."""
        files = self._description.files.items()
        return {name: record.sha256 for name, record in files if split is None or name.startswith(f"{split}.")}

    @property
    def split_names(self) -> list[str]:
        return list(self.summaries)

    def split(self, name: str) -> Split:
        """Open a split. Raises UserError if there is no split with this name."""
        if name not in self.summaries:
            raise UserError(f"{self.folder} has no split {name!r}, only {', '.join(self.summaries)}")
        source, target = (
            Sentences(self.summaries[name].stems(self.folder, side), len(tokenizer.vocab))
            for side, tokenizer in zip(self._description.sides, (self.source, self.target), strict=True)
        )
        return Split(name, source, target)


def read_tokenizers(
    folder: Path, kinds: tuple[str, str], joined: bool, languages: tuple[str, str]
) -> tuple[Tokenizer, Tokenizer]:
    """Return both sides' tokenizers from the files of `write_tokenizers`. Raises UserError for a damaged file."""
    try:
        names = tokenizer_files(kinds, joined, languages)
        return restore_tokenizers(kinds, names, lambda name: (folder / name).read_bytes())
    except UserError as error:
        raise UserError(f"{folder}: {error}; {REMEDY}") from error


def write_tokenizers(folder: Path, languages: tuple[str, str], source: Tokenizer, target: Tokenizer) -> None:
    """Write the vocabularies, and the models if any, under the names of `tokenizer_files`."""
    files = tokenizer_files((source.kind, target.kind), shares_vocabulary(source, target), languages)
    for tokenizer, stored in zip((source, target), files, strict=True):
        (folder / stored.vocabulary).write_bytes(tokenizer.vocab.to_bytes())
        if stored.model is not None:
            (folder / stored.model).write_bytes(tokenizer.model)


def _check_files(folder: Path, description: Description, verify: bool) -> None:
    for name, record in description.files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing; {REMEDY}")
        if path.stat().st_size != record.bytes:
            raise UserError(f"{path} has {path.stat().st_size} bytes instead of {record.bytes}; {REMEDY}")
    if verify or sum(record.bytes for record in description.files.values()) < ALWAYS_VERIFY_BELOW:
        for name, record in description.files.items():
            if sha256(folder / name, record.bytes) != record.sha256:
                raise UserError(f"{folder / name} is damaged: its checksum does not match; {REMEDY}")

"""A dataset folder: what nmt-preprocess writes and the other stages read. `docs/formats.md` describes it."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit.checksum import sha256
from nmtkit.data.binary import REMEDY, TokenFile
from nmtkit.data.lines import MOST_NAMED, LineNumbers, dropped_path
from nmtkit.errors import UserError
from nmtkit.tokenizer import SPACE, Tokenizer, make_tokenizer
from nmtkit.version import __version__
from nmtkit.vocab import Vocabulary
from nmtkit.wording import counted

DESCRIPTION = "dataset.json"
FORMAT = "nmtkit dataset"
VERSION = 2
ALWAYS_VERIFIED = 1 << 30  #: datasets below this many bytes have their checksums compared whenever they are opened
_BLOCK = 1 << 20  # sentence pairs looked through at a time

# A dataset may be replaced by a new one; a folder that holds anything else may not.
_OWN_FILE = re.compile(
    r"dataset\.json|vocab(\..+)?\.txt|spm(\..+)?\.model"
    r"|(train|valid\d*|test\d*)\.(dropped|.+\.(bin|idx))"
)


def vocabulary_name(language: str | None) -> str:
    """The vocabulary's file; `language` is None for a joined one."""
    return "vocab.txt" if language is None else f"vocab.{language}.txt"


def model_name(language: str | None) -> str:
    """The SentencePiece model's file; `language` is None for a joined one."""
    return "spm.model" if language is None else f"spm.{language}.model"


def split_stem(folder: Path, split: str, language: str) -> Path:
    """The token file and the index of one side of a split, without their endings."""
    return folder / f"{split}.{language}"


def is_dataset_file(name: str) -> bool:
    """Whether a dataset may have a file of this name."""
    return _OWN_FILE.fullmatch(name) is not None


def may_replace(folder: Path) -> bool:
    """Whether a folder is a dataset and nothing but a dataset."""
    names = {path.name for path in folder.iterdir()}
    return DESCRIPTION in names and all(map(is_dataset_file, names))


@dataclass(frozen=True)
class SplitRow:
    """What dataset.json says of a split. Tokens and unknown tokens stand by language; tokens count each EOS."""

    name: str
    sentences: int
    tokens: dict[str, int]
    unknown: dict[str, int]
    dropped: dict[str, int]  #: sentence pairs left out, by reason
    corpora: list[tuple[str, int]]  #: the texts that it was made from, in order: prefix of the files, lines


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

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        self.folder = folder
        self.source_language: str = description["source_language"]
        self.target_language: str = description["target_language"]
        self.joined: bool = description["joined"]
        self.rows = {row["name"]: SplitRow(**row) for row in description["splits"]}
        self._files: dict[str, dict[str, Any]] = description["files"]
        self._kind: str = description["tokenizer"]
        self.source = self._read_tokenizer(None if self.joined else self.source_language)
        self.target = self.source if self.joined else self._read_tokenizer(self.target_language)

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> "Dataset":
        """Open a dataset and check that it is whole.

        Sizes are always compared with those in dataset.json; checksums when the whole dataset is smaller than
        1 GiB, and with `verify` above that. Raises UserError that names the file that is missing or wrong.
        """
        path = folder / DESCRIPTION
        description = _read_description(path)
        try:
            _check_files(folder, description["files"], verify)
            return cls(folder, description)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); {REMEDY}") from error

    def checksums(self, split: str | None = None) -> dict[str, str]:
        """The SHA-256 of each file, of a split or of all the dataset: whether two of them have the same text there."""
        files = self._files.items()
        return {name: facts["sha256"] for name, facts in files if split is None or name.startswith(f"{split}.")}

    @property
    def split_names(self) -> list[str]:
        return list(self.rows)

    def split(self, name: str) -> Split:
        """The split of that name. Raises UserError, naming those there are, when there is none."""
        if name not in self.rows:
            raise UserError(f"{self.folder} has no split {name!r}, only {', '.join(self.rows)}")
        source, target = (
            TokenFile(split_stem(self.folder, name, language))
            for language in (self.source_language, self.target_language)
        )
        if not len(source) == len(target) == self.rows[name].sentences:
            raise UserError(f"{self.folder / DESCRIPTION}: the sentences of split {name} differ; {REMEDY}")
        lines = LineNumbers(len(source), self.rows[name].corpora, dropped_path(self.folder, name))
        return Split(name, source, target, lines)

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


def write_description(
    folder: Path, languages: tuple[str, str], source: Tokenizer, target: Tokenizer, rows: Iterable[SplitRow]
) -> None:
    """Write dataset.json over the finished files of a dataset: it is what makes the folder one."""
    names = sorted(path.name for path in folder.iterdir())
    description = {
        "format": FORMAT,
        "version": VERSION,
        "writer": f"nmtkit {__version__}",
        "source_language": languages[0],
        "target_language": languages[1],
        "tokenizer": source.kind,
        "joined": source is target,
        "vocabulary": {language: len(side.vocab) for language, side in zip(languages, (source, target), strict=True)},
        "splits": [asdict(row) for row in rows],
        "files": {name: _facts(folder / name) for name in names},
    }
    description["sha256"] = _checksum(description)
    text = json.dumps(description, indent=2, ensure_ascii=False)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def _facts(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"bytes": size, "sha256": sha256(path, size)}


def _read_description(path: Path) -> dict[str, Any]:
    """The content of dataset.json, once its format, version and own checksum are found right."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: not a dataset; make one with nmt-preprocess") from error
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error}); {REMEDY}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UserError(f"{path}: not the description of an nmtkit dataset; {REMEDY}")
    if description.get("version") != VERSION:
        raise UserError(
            f"{path}: version {description.get('version')} of the format, this nmtkit reads version {VERSION}; {REMEDY}"
        )
    if description.pop("sha256", None) != _checksum(description):
        raise UserError(f"{path}: damaged, the checksum is wrong; {REMEDY}")
    return description


def _check_files(folder: Path, files: Mapping[str, Mapping[str, Any]], verify: bool) -> None:
    """Raise UserError at the first file that is missing, or has another size or content than was written."""
    for name, facts in files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing; {REMEDY}")
        if path.stat().st_size != facts["bytes"]:
            raise UserError(f"{path}: {path.stat().st_size} bytes instead of {facts['bytes']}; {REMEDY}")
    if verify or sum(facts["bytes"] for facts in files.values()) < ALWAYS_VERIFIED:
        for name, facts in files.items():
            if sha256(folder / name, facts["bytes"]) != facts["sha256"]:
                raise UserError(f"{folder / name}: damaged, the checksum is wrong; {REMEDY}")


def _checksum(description: Mapping[str, Any]) -> str:
    """Of dataset.json itself: of its values in compact form, keys sorted, without the checksum."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()

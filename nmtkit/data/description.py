"""dataset.json, the description of a dataset folder, which is written last: see `docs/reference/dataset.md`.

Only file names that nmt-preprocess can write are accepted, so readers open only verified files inside the folder.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from nmtkit.data.binary import REMEDY, index_path, token_path
from nmtkit.errors import UserError
from nmtkit.storage.files import sha256, sha256_of_fields
from nmtkit.storage.outputs import DATASET, DATASET_FORMAT, is_dataset
from nmtkit.text.languages import is_direction, side_names
from nmtkit.text.moses_bpe import MOSES_BPE
from nmtkit.text.tokenizer import SPACE, StoredParts, Tokenizer, check_kind, shares_model, shares_vocabulary
from nmtkit.version import __version__
from nmtkit.wording import quoted, shortened

DESCRIPTION, FORMAT = DATASET, DATASET_FORMAT
VERSION = 2
SHARDED_VERSION = 3  #: version of datasets whose splits are stored in shards
_LONGEST_REASON = 300  # characters of a message that quotes values of dataset.json

_SPLIT = r"(train|valid\d*|test\d*)"
TOKENIZER_FILE = r"vocab(\..+)?\.txt|spm(\..+)?\.model|bpe\..+\.json"  #: pattern of names from `tokenizer_files`
# The folder of a killed run is removed only if all its files have such names.
_DATASET_FILE = re.compile(rf"dataset\.json|{TOKENIZER_FILE}|{_SPLIT}\.(dropped|.+\.(bin|idx))")


def tokenizer_files(
    kinds: tuple[str, str], joined: bool, languages: tuple[str, str]
) -> tuple[StoredParts, StoredParts]:
    """Return the names of the tokenizer files of both sides, which share a vocabulary if `joined`."""
    source, target = (
        StoredParts("vocab.txt" if joined else f"vocab.{side}.txt", _model_file(kind, joined, side))
        for kind, side in zip(kinds, side_names(languages), strict=True)
    )
    return source, target


def _model_file(kind: str, joined: bool, side: str) -> str | None:
    if kind == SPACE:
        return None
    stem, suffix = ("bpe", "json") if kind == MOSES_BPE else ("spm", "model")
    return f"{stem}.{suffix}" if shares_model(kind, joined) else f"{stem}.{side}.{suffix}"


def split_stem(folder: Path, split: str, side: str, shard: int | None = None) -> Path:
    """Return the path without suffix of the token file and index for one side of a split or of one of its shards."""
    return folder / (f"{split}.{side}" if shard is None else f"{split}.{shard:05}.{side}")


def dropped_path(folder: Path, split: str) -> Path:
    """Return the path of the numbers of the lines that were dropped from a split, from 0, as uint64."""
    return folder / f"{split}.dropped"


def is_dataset_file(name: str) -> bool:
    """Whether a dataset can contain a file of this name."""
    return _DATASET_FILE.fullmatch(name) is not None


def may_replace(folder: Path) -> bool:
    """Whether a folder is a dataset and contains no other files, according to an intact dataset.json."""
    if not is_dataset(folder):
        return False
    names = {path.name for path in folder.iterdir()}
    try:
        return names <= {DESCRIPTION, *read_description(folder).files}
    except UserError:  # damaged, or a different version
        return all(map(is_dataset_file, names))


@dataclass(frozen=True)
class ShardSummary:
    """The number of sentence pairs in a shard, and of tokens by side, including EOS."""

    sentences: int
    tokens: dict[str, int]


@dataclass(frozen=True)
class SplitSummary:
    """The entry of a split in dataset.json. `tokens` (including EOS) and `unknown` are counts by side."""

    name: str
    sentences: int
    tokens: dict[str, int]
    unknown: dict[str, int]
    dropped: dict[str, int]  #: number of dropped sentence pairs, by reason
    corpora: list[tuple[str, int]]  #: file prefix and number of lines of each corpus, in order
    shards: list[ShardSummary] = field(default_factory=list)  #: in order; empty if the split is not sharded

    def stems(self, folder: Path, side: str) -> list[Path]:
        """Return the paths of the token files of one side, without suffixes."""
        numbers: Iterable[int | None] = range(len(self.shards)) if self.shards else [None]
        return [split_stem(folder, self.name, side, number) for number in numbers]


class FileRecord(NamedTuple):
    """Size in bytes and checksum of a file when it was written."""

    bytes: int
    sha256: str


def record_file(path: Path, known: Mapping[str, FileRecord]) -> FileRecord:
    """Return size and checksum of a file: those in `known` if the size is equal, as files are only appended to."""
    size = path.stat().st_size
    record = known.get(path.name)
    return record if record is not None and record.bytes == size else FileRecord(size, sha256(path, size))


@dataclass(frozen=True)
class Description:
    """The content of dataset.json. `files` are the other files, by name. Sides are named by `side_names`."""

    source_language: str
    target_language: str
    tokenizer: str
    joined: bool
    vocabulary: dict[str, int]  #: number of pieces, by side
    splits: list[SplitSummary]
    files: dict[str, FileRecord]
    source_tag: str = ""  #: tag at the beginning of every source line; empty without one

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_language, self.target_language

    @property
    def sides(self) -> tuple[str, str]:
        return side_names(self.languages)


def write_description(
    folder: Path,
    languages: tuple[str, str],
    source: Tokenizer,
    target: Tokenizer,
    summaries: Iterable[SplitSummary],
    source_tag: str = "",
    known: Mapping[str, FileRecord] = MappingProxyType({}),
) -> None:
    """Write dataset.json for a folder whose other files are complete; `known` is as in `record_file`."""
    names = sorted(path.name for path in folder.iterdir() if is_dataset_file(path.name) and path.name != DESCRIPTION)
    sizes = {name: len(side.vocab) for name, side in zip(side_names(languages), (source, target), strict=True)}
    files = {name: record_file(folder / name, known) for name in names}
    joined = shares_vocabulary(source, target)
    description = Description(*languages, source.kind, joined, sizes, list(summaries), files, source_tag)
    version = SHARDED_VERSION if any(summary.shards for summary in description.splits) else VERSION
    fields: dict[str, Any] = {"format": FORMAT, "version": version, "writer": f"nmtkit {__version__}"}
    fields |= asdict(description)
    if version == VERSION:
        for split in fields["splits"]:
            del split["shards"]
    if not source_tag:
        del fields["source_tag"]  # as in datasets of earlier versions
    fields["files"] = {name: record._asdict() for name, record in files.items()}
    fields["sha256"] = sha256_of_fields(fields)
    text = json.dumps(fields, indent=2, ensure_ascii=False)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def read_description(folder: Path) -> Description:
    """Read the description of a dataset folder. Raises UserError if it is missing or damaged or has another version."""
    path = folder / DESCRIPTION
    fields = _read_fields(path)
    try:
        return _parse(fields)
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = shortened(f"{type(error).__name__}: {error}", _LONGEST_REASON)
        raise UserError(f"{path} is damaged ({reason}); {REMEDY}") from error


def _read_fields(path: Path) -> dict[str, Any]:
    """Read the JSON object, and verify its format, version and checksum. Raises UserError."""
    if path.parent.is_file():
        raise UserError(f"{path.parent} is a file: give the folder of a dataset")
    try:
        fields = json.loads(path.read_bytes())
        checksum = sha256_of_fields(fields) if isinstance(fields, dict) else ""
    except OSError as error:
        reason = f"{path.name}: {error.strerror}"
        raise UserError(f"{path.parent} is not a dataset ({reason}): make one with nmt-preprocess") from error
    except (ValueError, UserError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); {REMEDY}") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise UserError(f"{path} is not the description of an nmtkit dataset; {REMEDY}")
    version = fields.get("version")
    if version not in (VERSION, SHARDED_VERSION):
        readable = f"versions {VERSION} and {SHARDED_VERSION}"
        raise UserError(f"{path} has format version {quoted(version)}, this nmtkit reads {readable}; {REMEDY}")
    if fields.get("sha256") != checksum:
        raise UserError(f"{path} is damaged: its checksum does not match; {REMEDY}")
    return fields


def _parse(fields: Mapping[str, Any]) -> Description:
    """Parse the fields. Raises UserError, KeyError, TypeError, ValueError or AttributeError if a value is invalid."""
    languages = fields["source_language"], fields["target_language"]
    if not is_direction(*languages):
        raise ValueError(f"{languages[0]!r} and {languages[1]!r} are not two languages")
    check_kind(fields["tokenizer"])
    description = Description(
        *languages,
        fields["tokenizer"],
        fields["joined"],
        fields["vocabulary"],
        [_parse_summary(summary) for summary in fields["splits"]],
        {name: FileRecord(**record) for name, record in fields["files"].items()},
        fields.get("source_tag", ""),
    )
    _check_names(description)
    return description


def _parse_summary(summary: Mapping[str, Any]) -> SplitSummary:
    if not re.fullmatch(_SPLIT, summary["name"]):
        raise ValueError(f"{summary['name']!r} is not the name of a split")
    shards = [ShardSummary(**shard) for shard in summary.get("shards", ())]
    return SplitSummary(**{**summary, "shards": shards})


def _check_names(description: Description) -> None:
    """Raise ValueError unless `files` lists exactly the files of the dataset. Lists of dropped lines are optional."""
    kind = description.tokenizer
    parts = tokenizer_files((kind, kind), description.joined, description.languages)
    expected = {name for stored in parts for name in stored if name is not None}
    for summary in description.splits:
        stems = [stem for side in description.sides for stem in summary.stems(Path(), side)]
        expected |= {path.name for stem in stems for path in (token_path(stem), index_path(stem))}
    optional = {dropped_path(Path(), summary.name).name for summary in description.splits}
    for name in description.files:
        if name not in expected | optional:
            raise ValueError(f"{name!r} is not a file of this dataset")
    for name in sorted(expected - description.files.keys()):
        raise ValueError(f"lists no file {name}")

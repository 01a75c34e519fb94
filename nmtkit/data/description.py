"""dataset.json, the description of a dataset folder: written last, and checked value by value when it is read.

`docs/formats.md` describes it. Names of files and splits in it are those that nmt-preprocess writes, so that no reader
leaves the folder or opens a file that was not checked.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nmtkit.checksum import sha256
from nmtkit.data.binary import REMEDY, index_path, token_path
from nmtkit.data.lines import dropped_path
from nmtkit.errors import UserError
from nmtkit.text import is_language, parse_json, read_bytes
from nmtkit.tokenizer import SPACE, Tokenizer, check_kind
from nmtkit.version import __version__

DESCRIPTION = "dataset.json"
FORMAT = "nmtkit dataset"
VERSION = 2
_LARGEST = 1 << 24  # bytes of dataset.json

_SPLIT = r"(train|valid\d*|test\d*)"
# A dataset may be replaced by a new one; a folder that holds anything else may not.
_OWN_FILE = re.compile(rf"dataset\.json|vocab(\..+)?\.txt|spm(\..+)?\.model|{_SPLIT}\.(dropped|.+\.(bin|idx))")


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
class SplitSummary:
    """What dataset.json says of a split. Tokens and unknown tokens stand by language; tokens count each EOS."""

    name: str
    sentences: int
    tokens: dict[str, int]
    unknown: dict[str, int]
    dropped: dict[str, int]  #: sentence pairs left out, by reason
    corpora: list[tuple[str, int]]  #: the texts that it was made from, in order: prefix of the files, lines


class FileFacts(NamedTuple):
    """Size and checksum of a file as it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Description:
    """The content of dataset.json; `files` are all other files of the folder, by name."""

    source_language: str
    target_language: str
    tokenizer: str
    joined: bool
    vocabulary: dict[str, int]  #: entries, by language
    splits: list[SplitSummary]
    files: dict[str, FileFacts]

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_language, self.target_language


def write_description(
    folder: Path, languages: tuple[str, str], source: Tokenizer, target: Tokenizer, rows: Iterable[SplitSummary]
) -> None:
    """Write dataset.json over the finished files of a dataset: it is what makes the folder one."""
    names = sorted(path.name for path in folder.iterdir())
    sizes = {language: len(side.vocab) for language, side in zip(languages, (source, target), strict=True)}
    files = {name: _facts(folder / name) for name in names}
    description = Description(*languages, source.kind, source is target, sizes, list(rows), files)
    fields: dict[str, Any] = {"format": FORMAT, "version": VERSION, "writer": f"nmtkit {__version__}"}
    fields |= asdict(description)
    fields["files"] = {name: facts._asdict() for name, facts in files.items()}
    fields["sha256"] = _checksum(fields)
    text = json.dumps(fields, indent=2, ensure_ascii=False)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def _facts(path: Path) -> FileFacts:
    size = path.stat().st_size
    return FileFacts(size, sha256(path, size))


def read_description(folder: Path) -> Description:
    """The description of a dataset folder. Raises UserError where it is missing, damaged, or of another version."""
    path = folder / DESCRIPTION
    fields = _read_fields(path)
    try:
        description = _parse(fields)
    except UserError as error:
        raise UserError(f"{path}: {error}; {REMEDY}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error}); {REMEDY}") from error
    return description


def _read_fields(path: Path) -> dict[str, Any]:
    """The JSON object, once its format, version and own checksum are found right."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a file: not a dataset; make one with nmt-preprocess")
    try:
        fields = parse_json(read_bytes(path, _LARGEST).decode())
        checksum = (
            _checksum({key: fields[key] for key in fields if key != "sha256"}) if isinstance(fields, dict) else ""
        )
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}: not a dataset; make one with nmt-preprocess") from error
    except (ValueError, UserError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error}); {REMEDY}") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise UserError(f"{path}: not the description of an nmtkit dataset; {REMEDY}")
    if fields.get("version") != VERSION:
        version = fields.get("version")
        raise UserError(f"{path}: version {version} of the format, this nmtkit reads version {VERSION}; {REMEDY}")
    if fields.get("sha256") != checksum:
        raise UserError(f"{path}: damaged, the checksum is wrong; {REMEDY}")
    return fields


def _checksum(fields: Mapping[str, Any]) -> str:
    """Of dataset.json itself: of its values in compact form, keys sorted, without the checksum."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _parse(fields: Mapping[str, Any]) -> Description:
    """The description that these fields are. Raises an error for each value that nmt-preprocess does not write."""
    languages = fields["source_language"], fields["target_language"]
    if not all(map(is_language, languages)) or languages[0] == languages[1]:
        raise UserError(f"{languages[0]!r} and {languages[1]!r} are not two languages")
    check_kind(fields["tokenizer"])
    if not isinstance(fields["joined"], bool) or not isinstance(fields["splits"], list) or not fields["splits"]:
        raise ValueError("'joined' or 'splits' is not what it should be")
    description = Description(
        *languages,
        fields["tokenizer"],
        fields["joined"],
        {language: _count(fields["vocabulary"][language]) for language in languages},
        [_parse_row(row, languages) for row in fields["splits"]],
        {name: FileFacts(_count(facts["bytes"]), _text(facts["sha256"])) for name, facts in fields["files"].items()},
    )
    _check_names(description)
    return description


def _parse_row(row: Mapping[str, Any], languages: tuple[str, str]) -> SplitSummary:
    if not re.fullmatch(_SPLIT, row["name"]):
        raise ValueError(f"{row['name']!r} is not the name of a split")
    if not row["sentences"]:
        raise ValueError(f"split {row['name']} has no sentences")
    return SplitSummary(
        row["name"],
        _count(row["sentences"]),
        {language: _count(row["tokens"][language]) for language in languages},
        {language: _count(row["unknown"][language]) for language in languages},
        {reason: _count(pairs) for reason, pairs in row["dropped"].items()},
        [(_text(prefix), _count(lines)) for prefix, lines in row["corpora"]],
    )


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is not a count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not a text")
    return value


def _check_names(description: Description) -> None:
    """Raise UserError unless `files` are exactly those of such a dataset; lines left out need not have a file."""
    sides = (None,) if description.joined else description.languages
    expected = {vocabulary_name(side) for side in sides}
    if description.tokenizer != SPACE:
        expected |= {model_name(side) for side in sides}
    for row in description.splits:
        stems = [split_stem(Path(), row.name, language) for language in description.languages]
        expected |= {path.name for stem in stems for path in (token_path(stem), index_path(stem))}
    may_miss = {dropped_path(Path(), row.name).name for row in description.splits}
    for name in description.files:
        if name not in expected | may_miss:
            raise UserError(f"{name!r} is not a file of this dataset")
    for name in sorted(expected - description.files.keys()):
        raise UserError(f"lists no file {name}")

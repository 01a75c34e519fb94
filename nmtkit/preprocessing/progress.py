"""The progress of a run with --shard-size, saved after each shard, so that the same command resumes a killed run.

Progress is first saved after the first pass, when the folder contains the tokenizers and the marks of the pairs. Each
save records the checksums of all files, and the resumed run verifies them.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

from nmtkit.console.log import logger
from nmtkit.data.description import FileRecord, record_file
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.encoded import CorpusCounts, EncodedSplit
from nmtkit.storage.atomic import fsync, staged_file
from nmtkit.storage.files import sha256
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.version import __version__
from nmtkit.wording import counted

PROGRESS_FILE = "progress.json"  #: temporary file in the dataset folder
_WITHOUT_EFFECT = ("destdir", "workers", "report")  # options that do not change the files of the dataset


@dataclass
class SavedProgress:
    """The progress of a run, identified by `task`. `pairs` counts the sentence pairs of each split. All `splits` except
    the last are complete. `files` are the files in the folder at the last save, except empty ones."""

    task: str
    pairs: dict[str, int]
    splits: list[EncodedSplit] = field(default_factory=list)
    files: dict[str, FileRecord] = field(default_factory=dict)

    def describe(self) -> str:
        """Describe the complete shards, for messages."""
        encoded = {split.name: len(split.shards) for split in self.splits}
        shards = ", ".join(f"{counted(number, 'shard')} of {name}" for name, number in encoded.items())
        return shards or "the first pass"

    def split(self, name: str, prefixes: Iterable[str]) -> EncodedSplit:
        """Return the split of this name as far as it is encoded. `prefixes` are the file prefixes of its corpora."""
        for split in self.splits:
            if split.name == name:
                return split
        self.splits.append(EncodedSplit(name, [CorpusCounts(prefix) for prefix in prefixes]))
        return self.splits[-1]

    def save(self, folder: Path) -> None:
        """Flush and record the files in a folder, then write the progress. Does not read unchanged files again."""
        known = self.files
        self.files = {
            path.name: record_file(path, known)
            for path in sorted(folder.iterdir())
            if path.name != PROGRESS_FILE and path.stat().st_size
        }
        for name, record in self.files.items():
            if record != known.get(name):
                fsync(folder / name)
        fsync(folder)
        splits = [asdict(split) for split in self.splits]
        fields = {"task": self.task, "pairs": self.pairs, "splits": splits, "files": self.files}
        with staged_file(folder / PROGRESS_FILE) as file:
            file.write(json.dumps(fields, default=np.ndarray.tolist).encode())

    @classmethod
    def load(cls, folder: Path, task: str) -> "SavedProgress | None":
        """Read the progress in a folder, but not its other files. Returns None without progress of this task, and warns
        if there is other or damaged progress."""
        try:
            fields = json.loads((folder / PROGRESS_FILE).read_bytes())
            splits = [EncodedSplit.from_dict(split) for split in fields["splits"]]
            files = {name: FileRecord(*file) for name, file in fields["files"].items()}
            progress = cls(fields["task"], fields["pairs"], splits, files)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            _warn_starting_over(f"is damaged ({PROGRESS_FILE})")
            return None
        if progress.task != task:
            _warn_starting_over("has different text, options or versions")
            return None
        return progress

    @classmethod
    def resume(cls, folder: Path, task: str) -> "SavedProgress | None":
        """Read the progress in a folder, verify its files, and remove everything written since. If a file is damaged or
        missing, warns, empties the folder, and returns None."""
        progress = cls.load(folder, task)
        records = progress.files if progress is not None else {}
        for name, record in records.items():
            path = folder / name
            if not path.is_file() or sha256(path, record.bytes) != record.sha256:  # without bytes appended since
                _warn_starting_over(f"is damaged ({name})")
                progress, records = None, {}
                break
        for path in folder.iterdir():
            if path.name in records:
                if path.stat().st_size > records[path.name].bytes:
                    os.truncate(path, records[path.name].bytes)
            elif progress is None or path.name != PROGRESS_FILE:
                path.unlink()
        return progress


def _warn_starting_over(reason: str) -> None:
    logger.warning("starting over: the unfinished dataset %s", reason)


def identify_task(
    files: FilesConfig,
    vocabulary: VocabularyConfig,
    cleaning: CleaningConfig,
    paths: Iterable[Path],
    reused: Sequence[Tokenizer] | None,
) -> str:
    """Compute a checksum of everything that determines the dataset: options, texts (`paths`), reused tokenizers."""
    options = {name: value for name, value in files.to_dict().items() if name not in _WITHOUT_EFFECT}
    tokenizers = [
        hashlib.sha256(content).hexdigest() for one in reused or () for content in (one.vocab.to_bytes(), one.model)
    ]
    programs = [__version__, version("sentencepiece")]
    read = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    parts = [programs, options, vocabulary.to_dict(), cleaning.to_dict(), read, tokenizers]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()

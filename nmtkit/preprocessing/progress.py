"""The progress of a run with --shard-size, saved after each shard, so that the same command can resume a killed run.

The first pass is over when progress is first saved: the folder then has the tokenizers and the marks of the pairs.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from nmtkit.atomic_io import fsync_folder, staged_file
from nmtkit.log import logger
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.encoded import CorpusCounts, EncodedSplit
from nmtkit.tokenizer import Tokenizer
from nmtkit.version import __version__
from nmtkit.wording import counted

PROGRESS_FILE = "progress.json"  #: temporary file in the dataset folder
_WITHOUT_EFFECT = ("destdir", "workers", "report")  # on the files of the dataset


@dataclass
class Progress:
    """The progress of a run. `task` identifies its text and options, `pairs` are the sentence pairs of each split.

    All `splits` but the last are complete.
    """

    task: str
    pairs: dict[str, int]
    splits: list[EncodedSplit] = field(default_factory=list)

    def __str__(self) -> str:
        encoded = {split.name: len(split.shards) for split in self.splits}
        shards = ", ".join(f"{counted(number, 'shard')} of {name}" for name, number in encoded.items())
        return shards or "the first pass"

    def split(self, name: str, prefixes: Iterable[str]) -> EncodedSplit:
        """The split of this name, as far as it is encoded. `prefixes` are those of its corpora."""
        for split in self.splits:
            if split.name == name:
                return split
        self.splits.append(EncodedSplit(name, [CorpusCounts(prefix) for prefix in prefixes]))
        return self.splits[-1]

    def save(self, folder: Path) -> None:
        """Flush the files of a folder to disk, then write the progress into it."""
        fsync_folder(folder)
        fields = {"task": self.task, "pairs": self.pairs, "splits": [split.to_dict() for split in self.splits]}
        with staged_file(folder / PROGRESS_FILE) as file:
            file.write(json.dumps(fields).encode())

    @classmethod
    def load(cls, folder: Path, task: str) -> "Progress | None":
        """Read the progress of a folder. None, with a warning, if it is that of another task or damaged.

        None without a warning if there is none.
        """
        try:
            fields = json.loads((folder / PROGRESS_FILE).read_bytes())
            splits = [EncodedSplit.from_dict(split) for split in fields["splits"]]
            progress = cls(fields["task"], fields["pairs"], splits)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            progress = None
        if progress is None or progress.task != task:
            logger.warning("starting over: the unfinished dataset is damaged, or its text, options or versions differ")
            return None
        return progress


def identify_task(
    files: FilesConfig,
    vocabulary: VocabularyConfig,
    cleaning: CleaningConfig,
    versions: Mapping[Path, tuple[int, ...]],
    reused: Sequence[Tokenizer] | None,
) -> str:
    """A checksum of everything that determines the bytes of the dataset.

    `versions` are those of all files that are read; `reused` are the tokenizers, if none are learned.
    """
    options = {name: value for name, value in files.to_dict().items() if name not in _WITHOUT_EFFECT}
    tokenizers = [
        hashlib.sha256(content).hexdigest() for one in reused or () for content in (one.vocab.to_bytes(), one.model)
    ]
    programs = [__version__, version("sentencepiece")]
    read = [(str(path), *found) for path, found in versions.items()]
    parts = [programs, options, vocabulary.to_dict(), cleaning.to_dict(), read, tokenizers]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()

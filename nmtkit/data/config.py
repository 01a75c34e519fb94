"""The options of commands that read a dataset."""

from dataclasses import dataclass
from typing import ClassVar

from nmtkit.config import Config, option


@dataclass(frozen=True)
class DatasetConfig(Config):
    heading: ClassVar[str] = "Dataset"

    verify: bool = option(
        False, help="Compare the checksums of a dataset of 1 GiB and more too; those of a smaller one always are."
    )

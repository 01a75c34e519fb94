"""The options of commands that read a dataset."""

from dataclasses import dataclass
from typing import ClassVar

from nmtkit.config import Config, option


@dataclass(frozen=True)
class DatasetConfig(Config):
    heading: ClassVar[str] = "Dataset"

    verify: bool = option(
        False, help="Also check the checksums of a dataset of 1 GiB or more; smaller ones are always checked."
    )

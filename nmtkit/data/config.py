"""The options of commands that read a dataset."""

from dataclasses import dataclass
from typing import ClassVar

from nmtkit.config import Config, option


@dataclass(frozen=True)
class DatasetConfig(Config):
    heading: ClassVar[str] = "Dataset"

    verify: bool = option(
        False, help="Also verify checksums of datasets of 1 GiB or more. Smaller datasets are always verified."
    )

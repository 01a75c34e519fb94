"""Writes the shortlist of a checkpoint, learned from a dataset."""

from pathlib import Path

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.config import ExportConfig
from nmtkit.conversion.lexical import learn_shortlist
from nmtkit.decoding.inputs import open_dataset
from nmtkit.errors import UserError
from nmtkit.inference.shortlist import MAGIC
from nmtkit.storage.atomic import staged_file
from nmtkit.text.reading import is_regular_file


def _check_replaceable(output: Path) -> None:
    """Raise UserError for an existing file that is not a shortlist."""
    if output.exists() and not (is_regular_file(output) and _begins_with(output, MAGIC)):
        raise UserError(f"{output} exists and is not a shortlist: use another --output, or remove it")


def export_shortlist(checkpoint: Checkpoint, path: Path, output: Path, config: ExportConfig) -> None:
    """Write the shortlist of the checkpoint that was loaded from `path`.

    Raises UserError if the output exists and is not a shortlist, or the dataset of `config` does not fit the
    checkpoint; RunError if writing fails.
    """
    assert config.dataset is not None
    _check_replaceable(output)
    dataset = open_dataset(config.dataset, checkpoint, path)
    shortlist = learn_shortlist(dataset, config.translations, config.frequent)
    with staged_file(output) as file:
        shortlist.write(file)


def _begins_with(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start

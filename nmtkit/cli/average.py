"""nmt-average: averages checkpoints."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import click

from nmtkit.cli.command import command
from nmtkit.cli.config_file import config_file_in_use
from nmtkit.cli.options import PathName, options, output_option, prefer_command_line
from nmtkit.config import Config, as_flags, option
from nmtkit.console.log import LogConfig, configure, logger
from nmtkit.errors import UserError
from nmtkit.model.config import WeightsConfig
from nmtkit.storage.outputs import check_output_file
from nmtkit.text.reading import check_readable


@dataclass(frozen=True)
class AverageConfig(Config):
    heading: ClassVar[str] = "Which checkpoints"

    last: int | None = option(None, min=1, help="Average the newest N of the checkpoints that --keep-last counts.")
    best: int | None = option(
        None,
        min=1,
        help="Average the best N checkpoints of a folder: by validation loss, or by BLEU if the run used "
        "--valid-bleu. Of equal checkpoints, the older one is preferred.",
    )
    until: int | None = option(
        None, min=0, metavar="UPDATE", help="Use only checkpoints of the folder up to this update."
    )
    trim_vocabulary: tuple[Path, ...] = option(
        (),
        metavar="FILE",
        help="Keep only the pieces that this text uses, and single characters: smaller and faster. Repeat for the "
        "texts of all languages.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last is not None and self.best is not None:
            raise UserError("--last and --best are mutually exclusive: use one of them")


@command("nmt-average")
@click.argument("checkpoints", nargs=-1, required=True, type=PathName())
@output_option("FILE", "Checkpoint to write. An existing file is replaced only if it is a checkpoint.")
@options(
    lambda values: prefer_command_line(values, "last", "best"),
    config=AverageConfig,
    choice=WeightsConfig,
    log=LogConfig,
)
def main(
    checkpoints: tuple[Path, ...], output: Path, config: AverageConfig, choice: WeightsConfig, log: LogConfig
) -> None:
    """Average the weights of CHECKPOINTS: files, or one training folder with --last or --best.

    \b
    nmt-average checkpoints/en-de --last 5 --output averaged.pt
    nmt-average checkpoints/en-de --best 5 --until 100000 --output averaged.pt
    nmt-average a.pt b.pt c.pt --output averaged.pt

    The result is a checkpoint for nmt-generate, without optimizer state. The training run may still be running.
    Weights are summed in float64. Weights that are not finite are rejected.
    """
    configure(log)
    folder = _folder(checkpoints, config)
    check_output_file(output, (*checkpoints, *config.trim_vocabulary, config_file_in_use()))
    for path in config.trim_vocabulary:
        check_readable(path)

    from nmtkit.checkpoint import check_replaceable, save_checkpoint
    from nmtkit.training import averaging

    check_replaceable(output)
    paths, count = list(checkpoints), config.last or config.best
    if folder is not None and count is not None:
        select = averaging.last_checkpoints if config.last is not None else averaging.best_checkpoints
        average, paths = averaging.average_run(partial(select, folder, count, config.until), choice.weights)
    else:
        average = averaging.average_checkpoints(paths, choice.weights)
    if config.trim_vocabulary:
        average = averaging.trim_vocabulary(average, config.trim_vocabulary)
    save_checkpoint(output, average)
    logger.info("wrote %s, the average of %s", output, ", ".join(averaging.relative_names(paths)))
    logger.info("translate with it: nmt-generate %s", as_flags({"checkpoint": output, "input": "FILE"}))


def _folder(checkpoints: tuple[Path, ...], config: AverageConfig) -> Path | None:
    """Return the folder to choose checkpoints from; None if files are given. Raises UserError for bad combinations."""
    for path in checkpoints:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder: give checkpoints, or the folder of a training run")
    folders = [path for path in checkpoints if path.is_dir()]
    chosen = config.last is not None or config.best is not None
    if not folders:
        if chosen or config.until is not None:
            raise UserError("--last, --best and --until select from a folder, but files are given: give a folder")
        return None
    if len(checkpoints) > 1:
        from nmtkit.checkpoint import checkpoint_in

        raise UserError(f"{folders[0]} is a folder, and must be the only argument: {checkpoint_in(folders[0])}")
    if not chosen:
        raise UserError(f"{folders[0]} is a folder: select checkpoints with --last N or --best N")
    return folders[0]

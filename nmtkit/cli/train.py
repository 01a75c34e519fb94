"""nmt-train: dataset to checkpoints."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import Choice, ConfigOption, PathName, given, in_file, options, refuse_idle
from nmtkit.log import LogConfig, configure, logger
from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS
from nmtkit.training.config import CheckpointConfig, TrainingOptions


def apply_preset(values: dict[str, Any]) -> None:
    """Set what --arch says, where the user has not said otherwise."""
    preset = PRESETS[values.pop("arch")]
    values |= {name: value for name, value in preset.items() if not given(name)}


def refuse_idle_options(values: dict[str, Any]) -> None:
    """An option that nothing reads is a mistake that would cost a night."""
    schedule = values["lr_schedule"]
    if schedule == "paper":
        refuse_idle(["lr"], "with --lr-schedule paper: take --lr-scale, or another schedule")
    else:
        refuse_idle(["lr_scale"], f"with --lr-schedule {schedule}: take --lr")
    if values["positions"] != "learned":
        refuse_idle(["max_positions"], "but with --positions learned")
    if not values["valid_bleu"]:
        refuse_idle(["valid_beam"], "without --valid-bleu")


@command("nmt-train")
@click.argument("dataset", type=PathName(), metavar="DATASET")
@click.option(
    "--arch",
    cls=ConfigOption,
    heading=TransformerConfig.heading,
    type=Choice(list(PRESETS)),
    default="transformer_base",
    show_default=True,
    metavar="NAME",
    help="Named settings: transformer_base, _big, _small, _tiny, or a row of the paper's Table 3 (table3_…).",
)
@options(
    apply_preset,
    refuse_idle_options,
    **TrainingOptions.groups(),
    log=LogConfig,
)
def main(dataset: Path, log: LogConfig, **groups: Any) -> None:
    """Train a Transformer on DATASET, a folder made by nmt-preprocess.

    Started again with the same --save-dir, a run goes on from its newest checkpoint and ends with the weights that it
    would have had without the stop.
    """
    configure(log, is_main=os.environ.get("RANK", "0") == "0")
    groups["checkpoints"] = _without_board_of_another_run(groups["checkpoints"])
    from nmtkit.training.trainer import train  # torch: not for --help

    train(dataset, TrainingOptions(**groups))


def _without_board_of_another_run(checkpoints: CheckpointConfig) -> CheckpointConfig:
    """Options taken over from the run of another folder name that run's TensorBoard, which this one must not touch."""
    board, run = in_file("tensorboard"), in_file("save_dir")
    is_inherited = board is not None and run is not None and checkpoints.tensorboard == Path(board)
    if not is_inherited or checkpoints.save_dir.absolute() == Path(run).absolute():
        return checkpoints
    logger.warning("--tensorboard %s is of the run in %s and left to it: give this run a folder of its own", board, run)
    return replace(checkpoints, tensorboard=None)

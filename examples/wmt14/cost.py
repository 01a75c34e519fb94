"""Compares the cost of a training with the paper's; make prints it below the scores of nmt-score.

    python cost.py SAVE_DIR PAIR SIZE

SAVE_DIR is the folder of the checkpoints.
"""

from pathlib import Path

import click
import paper
import torch

from nmtkit.checkpoint import read_progress
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.model.flops import rates_of, table2_flops
from nmtkit.model.presets import PRESETS
from nmtkit.storage.run_files import LAST

_ROW = "{:<60} {:>16} {:>10}"


def rows(progress: dict[str, float], pair: str, size: str) -> list[tuple[str, str, str]]:
    """Table rows with the cost of this training and of the paper's, by the paper's method and as counted operations.

    The number of devices is a mean over the time of the training, which may have been resumed on others.
    """
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    hours, rates, published = progress["minutes"] / 60, rates_of(device), paper.TRAININGS[size]
    devices = round(progress.get("device_minutes", 0) / progress["minutes"], 1)
    if devices < 1:  # the training began with a version that did not count them
        count, as_in_paper = "?", "devices not known"
    else:
        count = f"{devices:g}"
        as_in_paper = f"{table2_flops(3600 * hours, devices, rates.single * 1e12):.2g}" if rates else "rate not known"
    model = PRESETS[published.arch].model_config()
    counted = paper.counted_flops(model, paper.VOCABULARY[pair], published.updates, paper.BATCH_TOKENS)
    here = f"here: {progress['update']} updates in {hours:.2g} h on {count} × {device}"
    return [
        ("Cost of the training, floating-point operations", "as in Table 2", "counted"),
        (here, as_in_paper, f"{progress['flops']:.2g}"),
        (
            f"the paper: {published.updates} updates in {published.hours:g} h on {paper.GPUS} × {paper.GPU}",
            *(f"{published.flops:.2g}", f"{counted:.2g}"),
        ),
    ]


@command("cost.py")
@click.argument("save_dir", type=PathName())
@click.argument("pair", type=click.Choice(tuple(paper.VOCABULARY)))
@click.argument("size", type=click.Choice(tuple(paper.TRAININGS)))
def main(save_dir: Path, pair: str, size: str) -> None:
    """Print the cost of the training in SAVE_DIR and of the paper's."""
    kind = "after compound splitting" if pair == "en-de" else "tokenized"
    print(f"The paper's BLEU of its {size} model, {kind}: {paper.TRAININGS[size].bleu[pair]}\n")
    for row in rows(read_progress(save_dir / LAST), pair, size):
        print(_ROW.format(*row))


if __name__ == "__main__":
    main()

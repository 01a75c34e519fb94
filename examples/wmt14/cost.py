"""Compares the cost of a training run with the paper's.

python -m cost SAVE_DIR en-de base
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import paper
import torch

from nmtkit.checkpoint import read_progress
from nmtkit.model.presets import PRESETS
from nmtkit.training.cost import rates_of


def rows(progress: Mapping[str, float], pair: str, size: str) -> list[tuple[str, str, str]]:
    """The cost of this run and of the paper's, by the paper's method and as counted operations.

    The number of devices is the mean over the time of the run, which may have been resumed on a different number.
    """
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    hours, rates, published = progress["minutes"] / 60, rates_of(device), paper.TRAININGS[size]
    devices = round(progress["device_minutes"] / progress["minutes"], 1)
    by_rate = f"{3600 * hours * devices * rates.single * 1e12:.2g}" if rates else "rate unknown"
    model = PRESETS[published.arch].model_config()
    counted = paper.counted_flops(model, paper.VOCABULARY[pair], published.updates, paper.BATCH_TOKENS)
    here = f"here: {progress['update']} updates in {hours:.2g} h on {devices:g} × {device}"
    theirs = f"the paper: {published.updates} updates in {published.hours:g} h on {paper.GPUS} × {paper.GPU}"
    return [
        ("Cost of the training, floating-point operations", "as in Table 2", "counted"),
        (here, by_rate, f"{progress['flops']:.2g}"),
        (theirs, f"{published.flops:.2g}", f"{counted:.2g}"),
    ]


def main(save_dir: Path, pair: str, size: str) -> None:
    kind = "after compound splitting" if pair == "en-de" else "tokenized"
    print(f"The paper's BLEU of its {size} model, {kind}: {paper.TRAININGS[size].bleu[pair]}\n")
    for row in rows(read_progress(save_dir / "checkpoint_last.pt"), pair, size):
        print("{:<60} {:>16} {:>10}".format(*row))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""Prints the results of trained rows of Table 3 as CSV, one line per row and seed.

    python -m results seed-1/base seed-2/base seed-1/c_n2 > results.csv

`settings` is a checksum of the options and data that all rows share. Rows are comparable only if it is equal.
"""

import csv
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from report import LAST, read_bleu

from nmtkit.checkpoint import load_checkpoint
from nmtkit.model.config import TransformerConfig

COLUMNS = ("row", "seed", "updates", "perplexity", "bleu", "sizes", "parameters", "minutes", "operations", "settings")


def result(folder: Path) -> list[object]:
    """The line of a run."""
    trained = load_checkpoint(folder / "checkpoints" / LAST)
    progress, model = trained.progress, trained.model_config
    assert isinstance(model, TransformerConfig)
    if progress["valid_ppl"] is None:
        sys.exit(f"{folder}: training has diverged: change LR_SCALE or WARMUP, or omit the row")
    options = progress["options"]
    own = ("seed", "label_smoothing")
    shared = {**options["batches"], **options["optimizer"], "data": progress["validation_data"]}
    settings = json.dumps({name: value for name, value in shared.items() if name not in own}, sort_keys=True)
    sizes = (model.encoder_layers, model.d_model, model.d_ff, model.heads, model.key_size, model.value_size)
    return [
        *(
            folder.name,
            options["batches"]["seed"],
            progress["update"],
            f"{progress['valid_ppl']:.4f}",
            read_bleu(folder),
        ),
        *(", ".join(map(str, sizes)), sum(weights.size for weights in trained.weights.values())),
        *(f"{progress['minutes']:.1f}", f"{progress['flops']:.4g}", hashlib.sha256(settings.encode()).hexdigest()[:8]),
    ]


def main(folders: Iterable[Path]) -> None:
    csv.writer(sys.stdout).writerows([COLUMNS, *map(result, folders)])


if __name__ == "__main__":
    main(map(Path, sys.argv[1:]))

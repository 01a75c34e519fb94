"""The result of one row of Table 3 with one seed: a JSON file that outlives the training.

    PYTHONPATH=.. python result.py work/seed-1/base --output work/seed-1/base.json

The folder has the trained row and its name. The result names the seed, the command, the machine and the date.
"""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_origin

import click
import html_report
import scores

from nmtkit.checkpoint import load_checkpoint
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.storage.atomic import staged_file
from nmtkit.storage.run_files import LAST


@dataclass(frozen=True)
class Result:
    """A trained row with one seed. Perplexity and BLEU are of the development set."""

    row: str
    seed: int
    updates: int
    settings: dict[str, Any]  # of the training and its data, which all rows share
    model: dict[str, Any]  # its options
    parameters: int
    minutes: float
    processor_minutes: float
    flops: int  # by the model's own count
    perplexity: float
    bleu: float
    command: str
    machine: dict[str, str]  # that measured this result, with its date

    @classmethod
    def of(cls, folder: Path) -> "Result":
        """The result in a row's folder. Raises UserError if the row is not complete."""
        trained = load_checkpoint(scores.training_file(folder, LAST))
        progress = trained.progress
        if progress["valid_ppl"] is None:
            raise UserError(
                f"{folder}: the training has diverged, since its perplexity is not finite: change LR_SCALE or "
                "WARMUP, or leave the row out"
            )
        options = progress["options"]
        return cls(
            row=folder.name,
            seed=options["batches"]["seed"],
            updates=progress["update"],
            settings={
                **{name: value for name, value in options["batches"].items() if name != "seed"},
                **{name: value for name, value in options["optimizer"].items() if name != "label_smoothing"},
                "validation_data": progress["validation_data"],
            },
            model=trained.model_config.to_dict(),
            parameters=sum(weights.numel() for weights in trained.weights.values()),
            minutes=progress["minutes"],
            processor_minutes=progress["processor_minutes"],
            flops=progress["flops"],
            perplexity=progress["valid_ppl"],
            bleu=scores.read_bleu(folder).value,
            command=" ".join((folder / "train.command").read_text(encoding="utf-8").split()),
            machine=html_report.machine_facts(),
        )

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Read the result of the row that a file is named after. Raises UserError if the file has something else."""
        try:
            result = cls(**json.loads(path.read_bytes()))
            is_valid = result._has_types() and result.row == path.stem
            is_valid = is_valid and 0 < result.perplexity < math.inf and math.isfinite(result.bleu)
        except (ValueError, TypeError, RecursionError):
            is_valid = False
        if not is_valid:
            raise UserError(f"{path} is not a result of the row {path.stem}: remove it, and call make again")
        return result

    def _has_types(self) -> bool:
        kinds = ((getattr(self, field.name), field.type) for field in fields(self))
        return all(isinstance(value, get_origin(kind) or kind) for value, kind in kinds)  # type: ignore[arg-type]


@command("result.py")
@click.argument("folder", type=PathName())
@click.option("--output", required=True, type=PathName(), metavar="FILE", help="The JSON file to write.")
def main(folder: Path, output: Path) -> None:
    """Write the result of the row in FOLDER."""
    result = Result.of(folder)
    with staged_file(output) as file:
        file.write(json.dumps(asdict(result), ensure_ascii=False, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()

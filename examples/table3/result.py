"""The result of one row of Table 3 with one seed: a JSON file that outlives the training.

    PYTHONPATH=.. python result.py work/seed-1/base --output work/seed-1/base.json

The folder has the trained row. The result names the seed, the command, the machine and the date.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import html_report
import scores

from nmtkit.atomic_io import staged_file
from nmtkit.checkpoint import load_checkpoint
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.run_files import LAST


@dataclass(frozen=True)
class Result:
    """A trained row with one seed. Perplexity and BLEU are of the development set."""

    model: dict[str, Any]  # its options
    parameters: int
    updates: int
    seed: int
    minutes: float
    processor_minutes: float
    flops: float  # by the model's own count
    perplexity: float
    bleu: float
    command: str
    machine: dict[str, str]  # that measured this result, with its date

    @classmethod
    def of(cls, folder: Path) -> "Result":
        """The result in a row's folder. Raises UserError if the row is not complete."""
        trained = load_checkpoint(folder / "checkpoints" / LAST)
        progress = trained.progress
        return cls(
            model=trained.model_config.to_dict(),
            parameters=sum(weights.numel() for weights in trained.weights.values()),
            updates=progress["update"],
            seed=progress["options"]["batches"]["seed"],
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
        """Read a result. Raises UserError if the file is none."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path} is not a result of Table 3: remove it, and run make table3") from error


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

"""Reports scores, cost and translations of the finished runs of an experiment, one for each seed, as Markdown.

    python examples/report.py work/seed-1 work/seed-2 --source test.en.gz --reference test.de.gz > report.md

The folder of a run contains `checkpoints`, the save folder of nmt-train; `translation.LANG`, the translation of the
test set; and `scores.txt`, the output of nmt-generate.
"""

import argparse
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nmtkit.checkpoint import read_progress
from nmtkit.errors import UserError
from nmtkit.text.reading import read_lines

EXAMPLES = 10  # translations shown
LAST = "checkpoint_last.pt"


def read_scores(folder: Path) -> dict[str, float]:
    """The scores of a run by their signature. Exits with a message if there are none."""
    path = folder / "scores.txt"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    scores = {name: float(score) for name, score in re.findall(r"^(\w+\|\S+) = (\d+\.\d+)", text, re.MULTILINE)}
    return scores or sys.exit(f"{path} has no scores: remove it, and run the recipe again")


def read_bleu(folder: Path) -> float:
    """The BLEU of a run."""
    return next(score for name, score in read_scores(folder).items() if name.startswith("BLEU"))


def read_speed(folder: Path) -> float:
    """The sentences per second of the translation of a run's test set, as nmt-generate reported it."""
    found = re.search(r"sentences/s ([\d.]+)", (folder / "scores.txt").read_text(encoding="utf-8"))
    return (
        float(found[1]) if found else sys.exit(f"{folder}/scores.txt has no speed: remove it, and run the recipe again")
    )


def progress_of(folder: Path) -> dict[str, Any]:
    """The training progress of a run."""
    return dict(read_progress(folder / "checkpoints" / LAST))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean, with the sample's standard deviation if there are several values."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def report(folders: Sequence[Path], source: Path, reference: Path) -> str:
    """The report. Raises UserError if a file of a run is missing."""
    scores = [read_scores(folder) for folder in folders]
    names = list(scores[0])
    rows = [[folder.name, *(f"{own[name]:.2f}" for name in names)] for folder, own in zip(folders, scores, strict=True)]
    if len(folders) > 1:
        rows.append(["mean ± standard deviation", *(spread([own[name] for own in scores]) for name in names)])
    costs = []
    for folder in folders:
        progress = progress_of(folder)
        minutes = f"{progress['minutes']:.1f}", f"{progress.get('processor_minutes', 0):.1f}"
        costs.append([folder.name, f"{progress['update']:,}", *minutes, f"{progress['flops']:.2g}"])
    (translation,) = folders[0].glob("translation.??")
    texts = list(zip(*(read_lines(path) for path in (source, reference, translation)), strict=True))
    shown = texts[:: -(-len(texts) // EXAMPLES)]
    parts = [
        table(["run", *(name.partition("|")[0] for name in names)], rows),
        "\n".join(f"`{name}`  " for name in names),
        table(["run", "updates", "minutes", "processor minutes", "operations"], costs),
        table(["source", "reference", f"translation, {folders[0].name}"], shown),
    ]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--source", required=True, type=Path, help="source side of the test set")
    parser.add_argument("--reference", required=True, type=Path, help="target side of the test set")
    arguments = parser.parse_args()
    try:
        print(report(arguments.runs, arguments.source, arguments.reference))
    except (UserError, OSError, ValueError) as error:
        sys.exit(f"report.py: {error}")


if __name__ == "__main__":
    main()

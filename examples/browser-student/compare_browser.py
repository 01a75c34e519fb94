"""Compares a teacher with its students in several programs, as Markdown.

python -m compare_browser seed-1/measures.json seed-2/measures.json > report.md
"""

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from report import spread, table

HEADER = ("system", "BLEU", "chrF", "− teacher, BLEU", "sentences per second", "× teacher", "MB")
NOTE = (
    "± is the standard deviation over the seeds of students. Speed: sentences "
    "of the test set per second of processor time on one thread, tokenization included; best of three turns, mean "
    "over seeds. The browser's engine runs in node. Size: the files of the model, in the browser with vocabulary and "
    "shortlist."
)


def report(measures: list[list[dict[str, Any]]]) -> str:
    """A table of the results of measure_browser.py for each seed; the first system is the teacher."""
    columns = list(zip(*measures, strict=True))  # a system in all seeds
    scores, speeds = [[one["bleu"] for one in several] for several in columns], []
    teacher = scores[0][0]  # every seed has the same teacher
    rows = []
    for several, bleu in zip(columns, scores, strict=True):
        is_teacher = bleu is scores[0]
        speeds.append(mean(one["speed"] for one in several))
        rows.append(
            [
                several[0]["system"],
                f"{teacher:.2f}" if is_teacher else spread(bleu),
                f"{mean(one['chrf'] for one in several):.2f}",
                "" if is_teacher else f"{mean(bleu) - teacher:+.2f}",
                *(f"{speeds[-1]:.0f}", f"{speeds[-1] / speeds[0]:.1f}", f"{several[0]['megabytes']:.1f}"),
            ]
        )
    return f"{table(HEADER, rows)}\n\n{NOTE}"


if __name__ == "__main__":
    print(report([json.loads(Path(name).read_bytes()) for name in sys.argv[1:]]))

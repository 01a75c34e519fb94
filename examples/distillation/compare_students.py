"""Compares teachers with their students, as Markdown.

python -m compare_students multi30k/seed-1/measures.json multi30k/seed-2/measures.json > report.md
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from compare import Spread
from measure import STUDENT, TEACHER, Setting
from report import table

HEADER = (
    *("model", "search", "precision", "BLEU", "− teacher", "sentences per second", "× teacher"),
    *("parameters, 10⁶", "int8, MB"),
)
NOTE = (
    "± is half of a 95 % interval over seeds, whose spread is pooled over the rows. Speed: sentences of the test set "
    "per second of processor time on one thread, tokenization included; median of three turns, mean over seeds. The "
    "plain model has the student's size and was trained on the references instead of the teacher's translations."
)


def report(measures: Sequence[Sequence[dict[str, Any]]]) -> str:
    """A table of the results of measure.py for each seed, and a comparison of the student with its teacher."""
    results: dict[Setting, list[dict[str, Any]]] = {}
    for one in (one for measured in measures for one in measured):
        setting = Setting(one["model"], one["beam"], one["precision"], one["shortlist"])
        results.setdefault(setting, []).append(one)
    scores = {setting: [one["bleu"] for one in several] for setting, several in results.items()}
    speeds = {setting: mean(one["speed"] for one in several) for setting, several in results.items()}
    spread, rows = Spread.of(scores.values()), []
    for setting, several in results.items():
        gain = spread.difference(scores[setting], scores[TEACHER])
        search = "greedy" if setting.beam == 1 else f"beam {setting.beam}"
        rows.append(
            [
                *(setting.model, f"{search}, shortlist" if setting.shortlist else search, setting.precision),
                *(spread.mean(scores[setting]).shown(2), "" if setting == TEACHER else gain.shown(2, "+")),
                *(f"{speeds[setting]:.0f}", f"{speeds[setting] / speeds[TEACHER]:.1f}"),
                *(f"{several[0]['parameters'] / 1e6:.2f}", f"{several[0]['int8_megabytes']:.1f}"),
            ]
        )
    above, times = spread.difference(scores[STUDENT], scores[TEACHER]).mean, speeds[STUDENT] / speeds[TEACHER]
    summary = f"The greedy student with a shortlist is {times:.1f} times as fast as its teacher, at {above:+.2f} BLEU."
    return "\n\n".join([table(HEADER, rows), summary, NOTE])


if __name__ == "__main__":
    print(report([json.loads(Path(name).read_bytes()) for name in sys.argv[1:]]))

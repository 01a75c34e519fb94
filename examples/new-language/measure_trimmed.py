"""Compares a model with its trimmed versions: pieces, file size, speed and outputs, as a table in Markdown.

python -m measure_trimmed text/test.en averaged.pt trimmed.pt
"""

import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

from report import table

from nmtkit import Translator
from nmtkit.text.reading import read_lines

TURNS = 3  # models alternate, so that a change of the machine's load affects all of them


def main(text: Path, first: Path, *others: Path) -> None:
    lines = list(read_lines(text))
    load = partial(Translator.from_checkpoint, source_lang="en", target_lang="xx", precision="fp32", threads=1)
    models = {path: load(path) for path in (first, *others)}
    seconds: dict[Path, list[float]] = {path: [] for path in models}
    outputs, rows = {}, []
    for path, model in [*models.items()] * TURNS:
        start = time.process_time()
        outputs[path, 4] = model.translate(lines, beam=4)
        seconds[path].append(time.process_time() - start)
    for path, model in models.items():
        outputs[path, 1] = model.translate(lines, beam=1)
        megabytes, speed = path.stat().st_size / 1e6, len(lines) / median(seconds[path])
        same = [str(sum(map(str.__eq__, outputs[path, beam], outputs[first, beam]))) for beam in (1, 4)]
        rows.append([str(path), str(len(model.target.vocab)), f"{megabytes:.1f}", f"{speed:.0f}", *same])
    same_outputs = f"same outputs of {len(lines)}"
    head = ["model", "pieces", "MB", "sentences per second", f"{same_outputs}, greedy", f"{same_outputs}, beam 4"]
    print(table(head, rows))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

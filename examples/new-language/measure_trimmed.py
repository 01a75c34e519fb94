"""Compares a model with its trimmed versions: pieces, file size, speed and outputs, as a table in Markdown.

python -m measure_trimmed text/test.en averaged.pt trimmed.pt
"""

import sys
import time
from pathlib import Path
from statistics import median

from report import table

from nmtkit import Translator
from nmtkit.text.reading import read_lines

TURNS = 3  # models alternate, so that a change of the machine's load affects all of them


def main(text: Path, first: Path, *others: Path) -> None:
    lines = list(read_lines(text))
    options = {"source_lang": "en", "target_lang": "xx", "precision": "fp32", "threads": 1}
    models = {path: Translator.from_checkpoint(path, **options) for path in (first, *others)}
    turns: list[dict[Path, float]] = [{} for _ in range(TURNS)]
    same, rows = dict.fromkeys(models, 0), []
    expected = models[first].translate(lines, beam=4)
    for seconds in turns:
        for path, model in models.items():
            start = time.process_time()
            found = model.translate(lines, beam=4)
            seconds[path] = time.process_time() - start
            same[path] = sum(map(str.__eq__, found, expected))
    for path, model in models.items():
        megabytes, speed = path.stat().st_size / 1e6, len(lines) / median(turn[path] for turn in turns)
        rows.append([str(path), str(len(model.target.vocab)), f"{megabytes:.1f}", f"{speed:.0f}", str(same[path])])
    print(table(["model", "pieces", "MB", "sentences per second", f"same outputs of {len(lines)}"], rows))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

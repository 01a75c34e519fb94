"""Writes n-best lists as parallel text, a pair for each translation.

    python -m pairs nbest.jsonl train.en train.de

The lists are the output of `nmt-generate --format jsonl`.
"""

import json
import sys
from pathlib import Path

from nmtkit.text.reading import read_lines


def main(lists: Path, source: Path, target: Path) -> None:
    """Write both sides, without empty translations."""
    with source.open("w", encoding="utf-8") as sources, target.open("w", encoding="utf-8") as targets:
        for line in read_lines(lists):
            row = json.loads(line)
            for text in (hypothesis["text"] for hypothesis in row["hypotheses"]):
                if text.strip():
                    sources.write(f"{row['source']}\n")
                    targets.write(f"{text}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

"""Prints the alignment of each line's pieces in Pharaoh format, for `nmt-train --guided-alignment`.

    nmt-generate --score train.de --input train.en --alignment --format jsonl … | python -m align_pieces > train.align

Each piece of the target is aligned with the piece of the source that gets most of its attention.
"""

import json
import sys
from typing import Any


def links(row: dict[str, Any]) -> str:
    attention = row["hypotheses"][0].get("attention", [])[:-1]  # without </s>, also in each row
    best = (max(range(len(shares) - 1), key=shares.__getitem__) for shares in attention)
    return " ".join(f"{source}-{target}" for target, source in enumerate(best))


if __name__ == "__main__":
    for line in sys.stdin:
        print(links(json.loads(line)))

"""Length generalization of models: perplexity and BLEU by sentence length, as a Markdown table.

    python -m by_length SOURCE TARGET LANGUAGE LONGEST NAME=FOLDER …

SOURCE and TARGET are parallel text files, LANGUAGE is the language of TARGET, LONGEST the maximum number of tokens per
side in training. Each FOLDER contains the `averaged.pt` of a model.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from report import progress_of, table

from nmtkit import Translator
from nmtkit.decoding.requests import Request
from nmtkit.scoring.bleu import bleu
from nmtkit.text.reading import read_lines

STEPS = (1.0, 1.25, 1.5, 2.0)  # upper bounds of the length ranges, relative to LONGEST


class Pair(NamedTuple):
    """A sentence pair with the output of a model."""

    length: int  # tokens of the longer side
    reference: str
    translation: str
    log_probabilities: list[float]  # of the reference's tokens with </s>


def pairs(checkpoint: Path, sources: Sequence[str], references: Sequence[str]) -> list[Pair]:
    """Translate the sources and score the references with the model of a checkpoint."""
    translator = Translator.from_checkpoint(checkpoint, precision="fp32")
    translations = translator.translate(sources, beam=4)
    requests = [Request(source, target=reference) for source, reference in zip(sources, references, strict=True)]
    log_probabilities = [list(scored.candidates[0].token_log_probs) for scored in translator.stream(requests)]
    source_ids = translator.source.encode(sources)
    lengths = [max(len(ids), len(own) - 1) for ids, own in zip(source_ids, log_probabilities, strict=True)]
    return list(map(Pair, lengths, references, translations, log_probabilities))


def perplexity(some: Sequence[Pair]) -> float:
    total = sum(sum(pair.log_probabilities) for pair in some)
    return math.exp(-total / sum(len(pair.log_probabilities) for pair in some))


def ranges(longest: int) -> list[tuple[int, float]]:
    """The inclusive range of lengths of each row; the last one has no upper bound."""
    ends = [round(step * longest) for step in STEPS]
    return [*zip([1, *(end + 1 for end in ends)], [*ends, math.inf], strict=True)]


def by_length(models: dict[str, list[Pair]], language: str, longest: int) -> str:
    """The table."""
    rows = []
    for first, last in ranges(longest):
        chosen = [[pair for pair in some if first <= pair.length <= last] for some in models.values()]
        if not chosen[0]:
            continue
        scores = [
            bleu([pair.translation for pair in some], [pair.reference for pair in some], language) for some in chosen
        ]
        label = f"{first}–{'' if last == math.inf else last}"
        values = [f"{perplexity(some):.1f}" for some in chosen], [f"{score.value:.1f}" for score in scores]
        rows.append([label, str(len(chosen[0])), *values[0], *values[1]])
    header = ["tokens", "pairs", *(f"perplexity, {name}" for name in models), *(f"BLEU, {name}" for name in models)]
    return table(header, rows)


def main(source: str, target: str, language: str, longest: str, *models: str) -> None:
    folders = {name: Path(folder) for name, _, folder in (model.partition("=") for model in models)}
    if len(updates := {progress_of(folder)["update"] for folder in folders.values()}) > 1:
        sys.exit(f"the models have different numbers of updates: use UPDATES={max(updates)} or more")
    sides = [list(read_lines(Path(path))) for path in (source, target)]
    print(
        by_length(
            {name: pairs(folder / "averaged.pt", *sides) for name, folder in folders.items()}, language, int(longest)
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

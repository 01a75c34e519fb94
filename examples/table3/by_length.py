"""Length generalization of models: perplexity and BLEU by sentence length, as a Markdown table.

    python by_length.py SOURCE TARGET LANGUAGE LONGEST NAME=FOLDER …

SOURCE and TARGET are parallel text files. LANGUAGE is the language of TARGET. LONGEST is the maximum number of tokens
per side in training. Each FOLDER has the `averaged.pt` of a model and its `checkpoints`.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
from variations import check_updates

from nmtkit import Translator
from nmtkit.checkpoint import read_progress
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.decoding.requests import Request
from nmtkit.errors import UserError
from nmtkit.scoring.bleu import bleu
from nmtkit.storage.run_files import LAST
from nmtkit.text.reading import read_lines

STEPS = (1.0, 1.25, 1.5, 2.0)  # upper bounds of the length ranges, relative to LONGEST


class Pair(NamedTuple):
    """A sentence pair with the output of a model for it."""

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


def ranges(longest: int) -> list[tuple[int, int | None]]:
    """The inclusive range of lengths of each row; the last one has no upper bound."""
    ends = [round(step * longest) for step in STEPS]
    return [*zip([1, *(end + 1 for end in ends)], [*ends, None], strict=True)]


def print_table(source: Path, target: Path, language: str, longest: int, checkpoints: dict[str, Path]) -> None:
    sources, references = (list(read_lines(path)) for path in (source, target))
    models = {name: pairs(checkpoint, sources, references) for name, checkpoint in checkpoints.items()}
    print(f"| tokens | pairs | {' | '.join(f'perplexity, {name}' for name in models)}", end=" | ")
    print(f"{' | '.join(f'BLEU, {name}' for name in models)} |")
    print("|---" * (2 + 2 * len(models)) + "|")
    for first, last in ranges(longest):
        chosen = {
            name: [pair for pair in some if pair.length >= first and (last is None or pair.length <= last)]
            for name, some in models.items()
        }
        count = len(next(iter(chosen.values())))
        if not count:
            continue
        cells = [f"{perplexity(some):.1f}" for some in chosen.values()]
        for some in chosen.values():
            score = bleu([pair.translation for pair in some], [pair.reference for pair in some], language)
            cells.append(f"{score.value:.1f}")
        print(f"| {first}–{last or ''} | {count} | {' | '.join(cells)} |")


@command("by_length.py")
@click.argument("source", type=PathName())
@click.argument("target", type=PathName())
@click.argument("language")
@click.argument("longest", type=click.IntRange(min=1))
@click.argument("models", metavar="NAME=FOLDER...", nargs=-1, required=True)
def main(source: Path, target: Path, language: str, longest: int, models: tuple[str, ...]) -> None:
    """Print perplexity and BLEU by sentence length, with a column for each model."""
    named = [model.rpartition("=") for model in models]
    if not all(name for name, _, _ in named):
        raise UserError(f"a NAME=FOLDER is expected for each model, not {' '.join(models)}")
    folders = {name: Path(folder) for name, _, folder in named}
    check_updates({name: [read_progress(folder / "checkpoints" / LAST)["update"]] for name, folder in folders.items()})
    print_table(source, target, language, longest, {name: folder / "averaged.pt" for name, folder in folders.items()})


if __name__ == "__main__":
    main()

"""Scores translations against references, for --sacrebleu and --tokenized-bleu."""

from collections.abc import Sequence

from nmtkit.console.log import logger, write_result
from nmtkit.console.terminal import Table
from nmtkit.decoding.config import EvaluationConfig
from nmtkit.decoding.inputs import Input, SplitInput
from nmtkit.errors import UserError
from nmtkit.text.languages import SEVERAL
from nmtkit.text.reading import read_lines
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.wording import counted


def read_references(config: EvaluationConfig, source: Input, target: Tokenizer) -> list[str] | None:
    """Return the references: the lines of a file, or the target side of a split; None if no score is requested.

    Raises UserError if file and input have different numbers of lines, as far as the input can be counted.
    """
    if not config.is_wanted:
        return None
    if config.reference is not None:
        references = list(read_lines(config.reference))
        _check_length(config, len(references), source.count())
        return references
    if isinstance(source, SplitInput):
        return source.references(target)
    raise UserError("--sacrebleu and --tokenized-bleu need --reference FILE, or a DATASET as input")


def report_scores(config: EvaluationConfig, texts: Sequence[str], references: Sequence[str], language: str) -> None:
    """Print the requested scores of texts in `language` on stderr. Raises UserError if the lengths differ."""
    _check_length(config, len(references), len(texts))
    if not texts:
        logger.warning("the input has no lines: there is nothing to score")
        return
    if language == SEVERAL and config.sacrebleu:
        logger.warning("BLEU is for text with spaces between words: for other text, give its language by --target-lang")
    from nmtkit.scoring.bleu import bleu, chrf, tokenized_bleu, warn_of_subwords  # sacreBLEU takes long to import

    scores = []
    if config.sacrebleu:
        warn_of_subwords("the translation", texts)
        warn_of_subwords("the reference", references)
        scores += [bleu(texts, references, language), chrf(texts, references)]
    if config.tokenized_bleu:
        scores.append(tokenized_bleu(texts, references))
    rows = [(score.signature.partition("|")[0], f"{score.value:.2f}") for score in scores]
    write_result(Table("scores", rows, ("metric", "score")), [score.text for score in scores])


def _check_length(config: EvaluationConfig, references: int, lines: int | None) -> None:
    if lines is not None and references != lines:
        raise UserError(f"--reference {config.reference} has {counted(references, 'line')}, the input has {lines}")

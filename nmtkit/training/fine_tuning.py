"""Fine-tuning: initial weights from a checkpoint, and frozen parameters."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from torch import Tensor, nn

from nmtkit.archive import as_user_errors
from nmtkit.checkpoint import Checkpoint, check_finite, load_checkpoint
from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.model.config import ModelConfig, model_differences
from nmtkit.tokenizer import tokenizer_differences


def given_weights(path: Path, config: ModelConfig, dataset: Dataset) -> dict[str, Tensor]:
    """The initial weights that a checkpoint gives a new run on `dataset`: its moving average if it has one.

    Raises UserError, naming the first difference, for a checkpoint of another model or other vocabularies, and for
    weights that are not finite.
    """
    checkpoint = load_checkpoint(path)
    with as_user_errors(path):
        check_finite(checkpoint.chosen())
    for difference in model_differences(config, checkpoint.model_config, but_for=config.free_options):
        raise UserError(f"--init-from {path}: {difference}: give the options that it was trained with")
    for difference in vocabulary_differences(checkpoint, dataset):
        raise UserError(
            f"--init-from {path}: {difference}, as {dataset.folder} has: preprocess with --vocab-from {path}"
        )
    return checkpoint.chosen()


def vocabulary_differences(given: Checkpoint, dataset: Dataset) -> Iterator[str]:
    """The differences of a checkpoint's vocabularies and tokenizers from a dataset's, in words."""
    yield from tokenizer_differences("source", dataset.source, given.source)
    yield from tokenizer_differences("target", dataset.target, given.target)


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude the parameters whose names match a shell-style pattern from training.

    A shared matrix matches by each of its names. Raises UserError where a pattern matches nothing, or no trained
    parameter is left.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        matching = [name for name in parameters if fnmatchcase(name, pattern)]
        if not matching:
            examples = {name.partition(".")[0]: name for name in reversed(parameters)}
            raise UserError(f"--freeze {pattern}: no parameter matches; some names are {', '.join(examples.values())}")
        for name in matching:
            parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise UserError(f"--freeze {' --freeze '.join(patterns)}: nothing is left to train")

"""Training that begins with given weights, or leaves a part of them as they are."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from torch import Tensor, nn

from nmtkit.archive import as_user_errors
from nmtkit.checkpoint import Checkpoint, check_finite, load_checkpoint
from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.model.config import DROPOUTS, TransformerConfig, model_differences
from nmtkit.tokenizer import tokenizer_differences

# What may change between two trainings of the same weights: no parameter's shape or meaning depends on it.
FREE_OPTIONS = DROPOUTS | {"attention_window"}


def given_weights(path: Path, config: TransformerConfig, dataset: Dataset) -> dict[str, Tensor]:
    """The weights in a checkpoint with which a new run on `dataset` can begin: its moving average if it has one.

    Raises UserError, naming the first difference, where they were trained for another model or other vocabularies, and
    where they are not finite.
    """
    checkpoint = load_checkpoint(path)
    with as_user_errors(path):
        check_finite(checkpoint.chosen())
    for difference in model_differences(config, checkpoint.model_config, but_for=FREE_OPTIONS):
        raise UserError(f"--init-from {path}: {difference}: give the options that it was trained with")
    for difference in vocabulary_differences(checkpoint, dataset):
        raise UserError(
            f"--init-from {path}: {difference}, as {dataset.folder} has: "
            "preprocess with --vocab-from the dataset that it was trained on"
        )
    return checkpoint.chosen()


def vocabulary_differences(given: Checkpoint, dataset: Dataset) -> Iterator[str]:
    """What the vocabularies and tokenizers of a checkpoint have otherwise than those of a dataset, in words."""
    yield from tokenizer_differences("source", dataset.source, given.source)
    yield from tokenizer_differences("target", dataset.target, given.target)


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Take the parameters whose names match a shell-style pattern out of the training.

    A matrix that is shared answers to each of its names. Raises UserError where a pattern matches nothing, or where
    nothing is left to train.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        matching = [name for name in parameters if fnmatchcase(name, pattern)]
        if not matching:
            examples = {name.partition(".")[0]: name for name in reversed(parameters)}
            raise UserError(f"--freeze {pattern}: no parameter is called so; some are {', '.join(examples.values())}")
        for name in matching:
            parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise UserError(f"--freeze {' --freeze '.join(patterns)}: nothing is left to train")

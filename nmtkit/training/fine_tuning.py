"""Fine-tuning: initial weights from a checkpoint, added vocabulary pieces, and frozen parameters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from nmtkit.checkpoint import Weights, load_checkpoint
from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.model.config import model_differences
from nmtkit.model.lora import matching
from nmtkit.model.parameters import check_finite
from nmtkit.model.translation_model import TranslationModel
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.tokenizer import Tokenizer, tokenizer_differences
from nmtkit.text.user_symbols import add_symbols


def initial_weights(path: Path, model: TranslationModel, dataset: Dataset) -> tuple[Weights, dict[str, Any]]:
    """Return initial weights (…) for a run by parameter name, and the `search` of their checkpoint.

    They are the checkpoint's moving average, if any. Low-rank additions, and rows of pieces that --user-symbol has
    added, keep their values in `model`. Raises UserError if it does not fit, or if an added row is not trained.
    """
    checkpoint, config = load_checkpoint(path), model.config
    with as_user_errors(path):
        check_finite(checkpoint.chosen())
    for difference in model_differences(config, checkpoint.model_config, but_for=config.free_options):
        raise UserError(f"--init-from {path}: {difference}: give the options that it was trained with")
    own, given = (dataset.source, dataset.target), (checkpoint.source, checkpoint.target)
    if any(tokenizer_differences(own, _with_symbols_of(dataset, given))):
        for difference in tokenizer_differences(own, given):
            raise UserError(
                f"--init-from {path}: {difference}, as in {dataset.folder}: preprocess with --vocab-from {path}"
            )
    initial = as_arrays(collect_weights(model))
    weights = dict(initial)
    for name, weight in checkpoint.chosen().items():
        added = initial[name][len(weight) :]
        weights[name] = np.concatenate((weight, added)) if len(added) else weight
    untrained = [
        name
        for name, parameter in model.named_parameters()
        if len(parameter) > len(checkpoint.chosen().get(name, parameter)) and not parameter.requires_grad
    ]
    if untrained:
        raise UserError(
            f"--init-from {path}: {dataset.folder} has more pieces, but the run does not train {', '.join(untrained)}: "
            "omit --lora-rank, and the --freeze that matches it"
        )
    return weights, checkpoint.search


def _with_symbols_of(dataset: Dataset, given: tuple[Tokenizer, Tokenizer]) -> tuple[Tokenizer, Tokenizer]:
    """Add the dataset's additional pieces to `given` as user symbols; return them unchanged if that is impossible."""
    try:
        return add_symbols(given, dataset.source.vocab.pieces[len(given[0].vocab) :])
    except UserError:
        return given


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude the parameters whose names match a shell-style pattern from training.

    A shared matrix matches by each of its names. Raises UserError if a pattern matches nothing, or all are frozen.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in matching(parameters, patterns, "--freeze"):
        parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise UserError(f"--freeze {' --freeze '.join(patterns)}: nothing is left to train")

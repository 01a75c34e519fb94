"""The optimizers: Adam (§5.3), Muon for hidden matrices with Adam for the rest, and schedule-free Adam."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nmtkit.errors import UserError
from nmtkit.model.attention import StackedLinear
from nmtkit.training.config import OptimizerConfig

#: Names of an optimizer's tensors for each parameter, by its class.
STATES = {
    "AdamW": ("step", "exp_avg", "exp_avg_sq"),
    "Muon": ("momentum_buffer",),
    "AdamWScheduleFree": ("z", "exp_avg_sq"),
}
_SUMS = ("k", "weight_sum", "lr_max")  # of schedule-free Adam, for all parameters


class Muon(torch.optim.Muon):
    """Muon (Jordan et al. 2024) with updates as large as Adam's (Liu et al. 2025), for each projection of a
    `StackedLinear`."""

    def __init__(self, matrices: Mapping[nn.Parameter, tuple[int, ...]], weight_decay: float) -> None:
        """`matrices` maps each parameter (outputs, inputs) to the output widths of its projections."""
        super().__init__(list(matrices), weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self.widths = matrices

    def _init_group(self, group: Any, *lists: list[Tensor]) -> bool:
        """Collect matrices, gradients and momentum of a step. torch updates their projections in place."""
        whole: tuple[list[Any], ...] = ([], [], [])
        has_complex: bool = super()._init_group(group, *whole)
        for matrix, *others in zip(*whole, strict=True):
            for tensor, collected in zip((matrix, *others), lists, strict=True):
                collected.extend(torch.split(tensor, list(self.widths[matrix])))
        return has_complex


class Optimizers:
    """Several optimizers, each of different parameters."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizers:
    """Create the optimizer of the options for the trained parameters. Adam is fused: one pass over memory. Raises
    UserError for a missing package."""
    adam: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.adam_beta1, config.adam_beta2),
        "eps": config.adam_eps,
        "weight_decay": config.weight_decay,
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.optimizer == "schedule-free":
        try:
            from schedulefree import AdamWScheduleFree
        except ImportError as error:
            raise UserError("--optimizer schedule-free needs a package: pip install schedulefree") from error
        schedule_free = AdamWScheduleFree(trained, **adam)
        schedule_free.train()
        return Optimizers(schedule_free)
    matrices = _hidden_matrices(model) if config.optimizer == "muon" else {}
    rest = [parameter for parameter in trained if parameter not in matrices]
    parts: list[torch.optim.Optimizer] = [Muon(matrices, config.weight_decay)] if matrices else []
    return Optimizers(*parts, *([torch.optim.AdamW(rest, fused=True, **adam)] if rest else []))


def _hidden_matrices(model: Any) -> dict[nn.Parameter, tuple[int, ...]]:
    """Find the trained matrices of the layers, without embeddings and output, with the widths of their projections."""
    widths = {module.weight: module.widths for module in model.modules() if isinstance(module, StackedLinear)}
    parameters = (parameter for layer in model.layers() for parameter in layer.parameters())
    return {each: widths.get(each, (len(each),)) for each in parameters if each.requires_grad and each.ndim == 2}


def schedule_free_sums(optimizer: Optimizers) -> dict[str, float]:
    """Return the numbers that schedule-free Adam keeps for all parameters; empty for other optimizers."""
    (group, *_) = optimizer.param_groups
    return {name: group[name] for name in _SUMS if name in group}

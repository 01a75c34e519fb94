"""Low-rank adaptation (LoRA): frozen weight matrices with trained low-rank additions (Hu et al. 2021, section 4.1).

A matrix W (outputs, inputs) becomes W + s·B·A with B (outputs, R), A (R, inputs) and s = --lora-alpha / R. A matrix of
several projections, such as queries, keys and values, has one addition for each.
"""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.errors import UserError
from nmtkit.model.attention import StackedLinear
from nmtkit.model.lora_config import LoraConfig
from nmtkit.model.translation_model import TranslationModel


class LowRankLinear(nn.Linear):
    """Computes x·(W + s·B·A)ᵀ + b as x·Wᵀ + b + s·(x·Aᵀ)·Bᵀ, so the frozen W needs no gradient.

    `lora_a` and `lora_b` contain one matrix for each projection of `linear`, whose parameters are shared. A is uniform
    in ±1/√inputs, and B is 0, so the outputs initially equal those of `linear`.
    """

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = scale
        widths = linear.widths if isinstance(linear, StackedLinear) else (linear.out_features,)
        new = linear.weight.new_empty
        self.lora_a = nn.ParameterList(new(rank, linear.in_features) for _ in widths)
        self.lora_b = nn.ParameterList(new(width, rank) for width in widths)
        for a, b in zip(self.lora_a, self.lora_b, strict=True):
            nn.init.uniform_(a, -(linear.in_features**-0.5), linear.in_features**-0.5)
            nn.init.zeros_(b)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (…, inputs) to (…, outputs)."""
        additions = [F.linear(F.linear(x, a) * self.scale, b) for a, b in zip(self.lora_a, self.lora_b, strict=True)]
        return super().forward(x) + torch.cat(additions, dim=-1)


def add_low_rank(model: TranslationModel, config: LoraConfig) -> None:
    """Freeze a model, and replace the linear layers of the target matrices by `LowRankLinear`.

    The output matrix cannot be a target, because the loss reads it directly. Raises UserError, with examples of names,
    if a pattern of `config` matches nothing.
    """
    linears = {
        f"{name}.weight": name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.weight is not model.output_matrix
    }
    if not linears:
        raise UserError(f"--lora-rank: the architecture {model.config.arch} has no linear layers to adapt: omit it")
    targets = matching(linears, config.targets, "--lora-targets")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    trained = matching(parameters, config.lora_train, "--lora-train")
    model.requires_grad_(False)
    for name in trained:
        parameters[name].requires_grad_(True)
    for target in targets:
        parent, _, child = linears[target].rpartition(".")
        linear = getattr(model.get_submodule(parent), child)
        setattr(model.get_submodule(parent), child, LowRankLinear(linear, config.lora_rank, config.scale))


def matching(names: Collection[str], patterns: Sequence[str], flag: str) -> list[str]:
    """List the names that match any shell-style pattern of an option. Raises UserError if a pattern matches nothing."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            examples = {name.partition(".")[0]: name for name in reversed(list(names))}
            raise UserError(f"{flag} {pattern}: no parameter matches; some names are {', '.join(examples.values())}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]

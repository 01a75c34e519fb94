"""Adam (§5.3) and the learning rate, which is a pure function of the update: nothing about it needs saving."""

import math

import torch
from torch import Tensor, nn

from nmtkit.training.config import OptimizerConfig


def learning_rate(update: int, config: OptimizerConfig, d_model: int, max_updates: int) -> float:
    """The learning rate of an update, counted from 1."""
    warmup = config.warmup_updates
    if config.lr_schedule == "paper":
        return config.lr_scale * float(d_model**-0.5 * min(update**-0.5, update * warmup**-1.5))
    if update < warmup:
        return config.lr * update / warmup
    left = max(0.0, (max_updates - update) / max(1, max_updates - warmup))  # 1 after the warm-up, 0 at the end
    falling = {
        "inverse-sqrt": math.sqrt(warmup / update),
        "linear": left,
        "cosine": 0.5 - 0.5 * math.cos(math.pi * left),
        "constant": 1.0,
    }
    return config.lr * falling[config.lr_schedule]


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Adam over all parameters, in torch's fused form: one pass over memory instead of one an operation."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.lr,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Adam's moments and step counts by the names of the parameters, for a checkpoint."""
    return {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`; without tensors the optimizer starts afresh."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        kind, _, name = key.partition(".")
        parameter = parameters[name]
        optimizer.state[parameter][kind] = value.clone().to(parameter.device)

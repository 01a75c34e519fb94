"""Adam (§5.3) and the learning rate, a pure function of the update number that needs no saved state."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmtkit.errors import UserError
from nmtkit.training.config import OptimizerConfig

ENDING_SCHEDULES = ("linear", "cosine")  #: they reach 0 one update after --max-updates, so every rate depends on it
SCHEDULE_VERSION = 2  #: version of `learning_rate`; version 1 reached 0 at the last update


def learning_rate(update: int, config: OptimizerConfig, d_model: int, max_updates: int) -> float:
    """Compute the learning rate of an update, counted from 1 (§5.3)."""
    warmup = config.warmup_updates
    if config.lr_schedule == "paper":
        return config.lr_scale * float(d_model**-0.5 * min(update**-0.5, update * warmup**-1.5))
    if update < warmup:
        return config.lr * update / warmup
    end = max_updates + 1
    left = max(0, end - update) / max(1, end - warmup)  # 1 at the end of the warm-up, above 0 at the last update
    falling = {
        "inverse-sqrt": math.sqrt(warmup / update),
        "linear": left,
        "cosine": math.sin(math.pi / 2 * left) ** 2,  # (1 - cos(π · left)) / 2, precise near 0
        "constant": 1.0,
    }
    return config.lr * falling[config.lr_schedule]


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Create Adam for the trained parameters, in torch's fused form: one pass over memory for all operations."""
    return torch.optim.AdamW(
        [parameter for _, parameter in _trained(model)],
        lr=config.lr,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def take_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    learning_rate: float,
    clip_norm: float = 0.0,
) -> Tensor:
    """Take one optimizer step, after clipping the gradient's norm to `clip_norm` (0: no clipping).

    Returns the norm before clipping, a scalar on the device. If it is not finite, only the loss scale changes: the
    fused optimizer decides this on the device, so the host does not wait for a GPU.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    scaler.unscale_(optimizer)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    total_norm = nn.utils.get_total_norm(gradients)
    if clip_norm:
        nn.utils.clip_grads_with_norm_(model.parameters(), clip_norm, total_norm)
    fused: Any = optimizer
    fused.grad_scale, fused.found_inf = None, (~total_norm.isfinite()).float()
    optimizer.step()
    scaler.update()
    return total_norm


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return Adam's moments, in the shapes of the parameters, and step counts, scalars, by parameter name."""
    names = [name for name, _ in _trained(model)]
    state = optimizer.state_dict()["state"]
    return {f"{kind}.{names[i]}": value for i, values in sorted(state.items()) for kind, value in values.items()}


def check_optimizer(
    tensors: Mapping[str, NDArray[np.float32]], parameters: Mapping[str, NDArray[np.float32]], updates: int
) -> None:
    """Raise UserError with the first problem unless these are Adam's arrays for some of the parameters.

    Moments have the shapes (…) of parameters, step counts are scalars of at most `updates`.
    """
    for name in sorted({key.partition(".")[2] for key in tensors}):
        if name not in parameters:
            raise UserError(f"the optimizer's state does not fit the model: {name} is unknown")
        for kind, shape in (("step", ()), ("exp_avg", parameters[name].shape), ("exp_avg_sq", parameters[name].shape)):
            tensor = tensors.get(f"{kind}.{name}")
            if tensor is None or tensor.shape != shape or tensor.dtype != np.float32:
                raise UserError(f"the optimizer's state does not fit the model: {kind}.{name}")
            if not np.isfinite(tensor).all() or (kind == "step" and tensor > updates):
                raise UserError(f"the optimizer's state has invalid values in {kind}.{name}")


def load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Load moments (…) and scalar step counts from `optimizer_tensors`. Parameters without them start from zero."""
    numbers = {name: number for number, (name, _) in enumerate(_trained(model))}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors:
        kind, _, name = key.partition(".")
        if name in numbers:  # otherwise it is frozen now
            state.setdefault(numbers[name], {})[kind] = value.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]

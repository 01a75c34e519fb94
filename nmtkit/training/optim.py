"""The learning rate, the optimizers with their steps, and their state in checkpoints.

The optimizers are Adam (§5.3), Muon for hidden matrices with Adam for the rest, and schedule-free Adam.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nmtkit.errors import UserError
from nmtkit.machine.precision import resolve_precision
from nmtkit.model.attention import StackedLinear
from nmtkit.training.config import OptimizerConfig

#: They reach 0 one update after --max-updates, so every rate depends on it.
ENDING_SCHEDULES = ("linear", "cosine", "wsd")
SCHEDULE_VERSION = 2  #: version of `learning_rate`; version 1 reached 0 at the last update
#: Names of an optimizer's tensors for each parameter, by its class.
STATES = {
    "AdamW": ("step", "exp_avg", "exp_avg_sq"),
    "Muon": ("momentum_buffer",),
    "AdamWScheduleFree": ("z", "exp_avg_sq"),
}
_SUMS = ("k", "weight_sum", "lr_max")  # of schedule-free Adam, for all parameters


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
        "wsd": min(1.0, max(0, end - update) / (config.decay_updates or -(-max_updates // 5))),
    }
    return config.lr * falling[config.lr_schedule]


class Muon(torch.optim.Muon):
    """Muon (Jordan et al. 2024) of each projection, with updates as large as Adam's (Liu et al. 2025).

    torch's class multiplies in bf16, which takes a CPU without bf16 instructions 30 to 60 times as long as fp32.
    """

    def __init__(self, matrices: Mapping[nn.Parameter, tuple[int, ...]], weight_decay: float) -> None:
        """`matrices` maps each parameter (outputs, inputs) to the output widths of its projections."""
        super().__init__(list(matrices), weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self.widths = matrices

    def step(self, closure: Any = None) -> Any:
        """Update the matrices, with products in bf16 if the device multiplies it fast, else in fp32."""
        is_fast = resolve_precision("auto", next(iter(self.widths)).device) == torch.bfloat16
        own: Any = super()
        with nullcontext() if is_fast else _WithoutBf16():
            return own.step(closure)

    def _init_group(self, group: Any, *lists: list[Tensor]) -> bool:
        """Collect matrices, gradients and momentum of a step. torch updates their projections in place."""
        whole: tuple[list[Any], ...] = ([], [], [])
        has_complex: bool = super()._init_group(group, *whole)
        for matrix, *others in zip(*whole, strict=True):
            for tensor, collected in zip((matrix, *others), lists, strict=True):
                collected.extend(torch.split(tensor, list(self.widths[matrix])))
        return has_complex


class _WithoutBf16(TorchFunctionMode):
    """Within this context, tensors that would be cast to bf16 keep their dtype."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0].clone() if function is Tensor.bfloat16 else function(*args, **(kwargs or {}))


class Optimizers:
    """Several optimizers, each of different parameters."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizers:
    """Create the optimizer of the trained parameters. Adam is fused: one pass over memory. Raises UserError."""
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


def take_step(
    model: nn.Module, optimizer: Optimizers, scaler: torch.amp.GradScaler, learning_rate: float, clip_norm: float = 0.0
) -> Tensor:
    """Take one optimizer step, after clipping the gradient's norm to `clip_norm` (0: no clipping).

    Returns the norm before clipping, a scalar on the device. If it is not finite, only the loss scale changes: fused
    Adam decides this on the device, so the host does not wait for a GPU. For other optimizers it waits.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    scaler.unscale_(cast(Any, optimizer))  # only its groups are used
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    total_norm = nn.utils.get_total_norm(gradients)
    if clip_norm:
        nn.utils.clip_grads_with_norm_(model.parameters(), clip_norm, total_norm)
    is_finite = total_norm.isfinite()
    for part in optimizer.parts:
        if isinstance(part, torch.optim.AdamW):
            fused: Any = part
            fused.grad_scale, fused.found_inf = None, (~is_finite).float()
            part.step()
        elif is_finite:
            part.step()
    scaler.update()
    return total_norm


def optimizer_tensors(optimizer: Optimizers, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's tensors, scalars or in the shape of a parameter, named by `STATES` and the parameter."""
    tensors: dict[str, Tensor] = {}
    for name, parameter, part in _trained(optimizer, model):
        tensors |= {f"{kind}.{name}": value for kind, value in part.state.get(parameter, {}).items()}
    return tensors


def schedule_free_sums(optimizer: Optimizers) -> dict[str, float]:
    """Return the numbers that schedule-free Adam keeps for all parameters; empty for other optimizers."""
    (group, *_) = optimizer.param_groups
    return {name: group[name] for name in _SUMS if name in group}


def check_optimizer(tensors: Mapping[str, NDArray[np.float32]], weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Raise UserError if arrays of `optimizer_tensors` do not fit the weights: fused kernels trust their shapes."""
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        if tensor.shape != (() if kind == "step" else weights[name].shape) or tensor.dtype != np.float32:
            raise UserError(f"the optimizer's state does not fit the model: {key}")


def load_optimizer(optimizer: Optimizers, model: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Load tensors (…) from `optimizer_tensors`. Parameters without a complete state start from zero."""
    given = dict(tensors)
    for name, parameter, part in _trained(optimizer, model):
        keys = {kind: f"{kind}.{name}" for kind in STATES[type(part).__name__]}
        if given.keys() >= set(keys.values()):
            part.state[parameter] = {kind: given[key].to(parameter.device, copy=True) for kind, key in keys.items()}


def _trained(optimizer: Optimizers, model: nn.Module) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer]]:
    owners = {each: part for part in optimizer.parts for group in part.param_groups for each in group["params"]}
    for name, parameter in model.named_parameters():
        if parameter in owners:
            yield name, parameter, owners[parameter]

"""A GPU that is not there: its tensors lie in main memory under a mark, and may not meet those of the CPU.

It shows, on any machine, that code for GPUs never mixes devices, and that its own ways give what the CPU's give. It
shows nothing of kernels, of memory or of speed.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
_TAKES_BOTH = "torch.Tensor.copy_"
_INDEXED = ("torch.Tensor.__getitem__", "torch.Tensor.__setitem__")  # a GPU's tensor takes indices of both


class PretendedGpu(TorchFunctionMode):
    """Within it `cuda` is a device. A tensor without a mark, such as autograd makes, may meet any other."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = resolve_name(function) or "", dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        places = {_place(tensor) for tensor in tensors if tensor.dim() or _place(tensor) == GPU} - {None}
        if name in ("torch.Tensor.device.__get__", "torch.Tensor.is_cuda.__get__") and GPU in places:
            return GPU if "device" in name else True
        if name == "torch.Tensor.numpy" and GPU in places:
            raise TypeError("numpy cannot read the memory of a GPU")
        if name == "torch.Tensor.cpu":
            return _moved(args[0], CPU)
        if name == "torch.Tensor.to":
            return self._to(function, args, kwargs)
        target = kwargs.pop("device", None)
        if target is not None:
            kwargs["device"] = CPU
        may_mix = name == _TAKES_BOTH or (name in _INDEXED and _place(args[0]) == GPU)
        if len(places) > 1 and not may_mix:
            raise RuntimeError(f"{name} of tensors on {[_place(tensor) for tensor in tensors]}")
        result = function(*args, **kwargs)
        if name == "torch.Tensor.data.__set__":
            _mark([args[0]], _place(args[1]))
        elif not any(result is tensor for tensor in tensors):
            _mark(
                tree_leaves(result),
                _device(target) or (GPU if GPU in places else CPU if places or not tensors else None),
            )
        return result

    def _to(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """`Tensor.to` any mixture of a device, a format, and another tensor."""
        tensor, *rest = args
        target = _device(kwargs.pop("device", None))
        for number, argument in enumerate(rest):
            if isinstance(argument, str | torch.device):
                target, rest[number] = _device(argument), CPU
            elif isinstance(argument, Tensor):
                target = _place(argument)
        return _moved(function(tensor, *(rest or [CPU]), **kwargs), target or _place(tensor))


def _place(tensor: Tensor) -> torch.device | None:
    return tensor.__dict__.get("_pretended")


def _mark(tensors: Iterable[Any], place: torch.device | None) -> None:
    for tensor in tensors:
        if isinstance(tensor, Tensor) and place is not None:
            tensor.__dict__["_pretended"] = place


def _moved(tensor: Tensor, place: torch.device | None) -> Tensor:
    """The tensor itself if it is there already, or else another one."""
    if _place(tensor) != place:
        with torch._C.DisableTorchFunction():
            tensor = tensor.clone()
    _mark([tensor], place)
    return tensor


def _device(name: str | torch.device | None) -> torch.device | None:
    if name is None:
        return None
    return GPU if torch.device(name).type == "cuda" else CPU


def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[Any]:
    """The device, with what `torch.cuda` says of it: it is there, knows no bf16, and each question about its memory
    finds a little more taken."""
    taken = iter(range(1 << 20, 1 << 40, 1 << 20))
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "is_bf16_supported": lambda including_emulation=True: False,
        "get_device_name": lambda device=None: "Pretended",
        "memory_allocated": lambda device=None: next(taken),
        "max_memory_allocated": lambda device=None: next(taken),
        "mem_get_info": lambda device=None: (1 << 33, 1 << 33),
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed_all": lambda seed: None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    for check in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        # a torch that is built for GPUs asks its driver here
        monkeypatch.setattr(torch.optim.Optimizer, check, lambda optimizer: None, raising=False)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: _moved(tensor, CPU))  # also in the loader's threads
    return PretendedGpu()

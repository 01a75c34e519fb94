"""A fake GPU: its tensors are in main memory, are marked, and cannot be combined with CPU tensors.

It tests, on any machine, that code for GPUs never mixes devices and gives the same results as on the CPU. It does not
test kernels, memory or speed.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _foreach_utils
from torch.utils._pytree import tree_leaves

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
_TAKES_BOTH = "torch.Tensor.copy_"
_WAITS = {  # the host waits for a GPU: numbers for Python, sizes that depend on values, copies from memory not pinned
    *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "equal", "is_nonzero"),
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
}
_INDEXED = ("torch.Tensor.__getitem__", "torch.Tensor.__setitem__")  # a GPU tensor accepts indices from both devices


class FakeGpu(TorchFunctionMode):
    """Makes `cuda` a device within its context. Unmarked tensors, such as those of autograd, combine with any other.

    `waits` has the names of functions for which the host would have waited for the GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = resolve_name(function) or "", dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {_device_of(tensor) for tensor in tensors if tensor.dim() or _device_of(tensor) == GPU} - {None}
        if name in ("torch.Tensor.device.__get__", "torch.Tensor.is_cuda.__get__") and GPU in devices:
            return GPU if "device" in name else True
        if GPU in devices and (name.rpartition(".")[2] in _WAITS or _selects(name, args)):
            self.waits.append(name)
        if name == "torch.Tensor.numpy" and GPU in devices:
            raise TypeError("numpy cannot read the memory of a GPU")
        if name == "torch.Tensor.cpu":
            self._note_copy(name, args[0], CPU)
            return _moved(args[0], CPU)
        if name == "torch.Tensor.to":
            return self._to(function, args, kwargs)
        target = kwargs.pop("device", None)
        if target is not None:
            kwargs["device"] = CPU
            if name in ("torch.tensor", "torch.as_tensor") and _device(target) == GPU:
                self.waits.append(name)
        may_mix = name == _TAKES_BOTH or (name in _INDEXED and _device_of(args[0]) == GPU)
        if len(devices) > 1 and not may_mix:
            raise RuntimeError(f"{name} of tensors on {[_device_of(tensor) for tensor in tensors]}")
        result = function(*args, **kwargs)
        if name == "torch.Tensor.data.__set__":
            _mark([args[0]], _device_of(args[1]))
        elif not any(result is tensor for tensor in tensors):
            _mark(
                tree_leaves(result),
                _device(target) or (GPU if GPU in devices else CPU if devices or not tensors else None),
            )
        return result

    def _to(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """`Tensor.to` with any combination of a device, a dtype and another tensor."""
        tensor, *rest = args
        target = _device(kwargs.pop("device", None))
        for number, argument in enumerate(rest):
            if isinstance(argument, str | torch.device):
                target, rest[number] = _device(argument), CPU
            elif isinstance(argument, Tensor):
                target = _device_of(argument)
        if not kwargs.get("non_blocking"):
            self._note_copy("torch.Tensor.to", tensor, target)
        converted: Tensor = function(tensor, *(rest or [CPU]), **kwargs)
        if converted is not tensor:
            _mark([converted], target or _device_of(tensor))
            return converted
        return _moved(tensor, target or _device_of(tensor))

    def _note_copy(self, name: str, tensor: Tensor, target: torch.device | None) -> None:
        if target is not None and {_device_of(tensor), target} == {CPU, GPU}:
            self.waits.append(name)


def _selects(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a function reads the elements of a tensor at the True positions of a mask."""
    index = args[1] if name == "torch.Tensor.__getitem__" else None
    return any(isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(index))


class _Event:
    """An event of the fake GPU, which is never behind."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


def _device_of(tensor: Tensor) -> torch.device | None:
    return tensor.__dict__.get("_fake_device")


def _mark(tensors: Iterable[Any], device: torch.device | None) -> None:
    for tensor in tensors:
        if isinstance(tensor, Tensor) and device is not None:
            tensor.__dict__["_fake_device"] = device


def _moved(tensor: Tensor, device: torch.device | None) -> Tensor:
    """The tensor itself if it is on that device already, otherwise a copy."""
    if _device_of(tensor) != device:
        with torch._C.DisableTorchFunction():
            tensor = tensor.clone()
    _mark([tensor], device)
    return tensor


def _device(name: str | torch.device | None) -> torch.device | None:
    if name is None:
        return None
    return GPU if torch.device(name).type == "cuda" else CPU


def _grouped(lists: Any) -> dict[tuple[torch.device | None, torch.dtype], Any]:
    """As torch's function, with the fake devices as keys."""
    groups = _foreach_utils._group_tensors_by_device_and_dtype(lists)
    return {(_device_of(group[0][0][0]), dtype): group for (_, dtype), group in groups.items()}  # type: ignore[arg-type]


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda kind, *arguments, **options: function("cpu", *arguments, **options)


def fake_gpu(
    monkeypatch: pytest.MonkeyPatch, bf16: bool = False, loss_kernel: bool = False
) -> AbstractContextManager[FakeGpu]:
    """The fake device, with `torch.cuda` patched to report it: with growing memory use, and bf16 only if asked for.

    Autocast on it is that of the CPU. Only with `loss_kernel` is Triton used, where it is installed.
    """
    if not loss_kernel:
        for module in ("nmtkit.training.loss", "nmtkit.inference.torch_inference"):
            monkeypatch.setattr(f"{module}.loss_kernel_on", lambda device: None)
    import_module("torch._dynamo")  # it remembers torch's functions, which must not be the patched ones
    allocated = iter(range(1 << 20, 1 << 40, 1 << 20))
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "is_bf16_supported": lambda including_emulation=True: bf16,
        "get_device_name": lambda device=None: "Fake GPU",
        "memory_allocated": lambda device=None: next(allocated),
        "max_memory_allocated": lambda device=None: next(allocated),
        "mem_get_info": lambda device=None: (1 << 33, 1 << 33),
        "memory_reserved": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed_all": lambda seed: None,
        "Event": _Event,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    for function in ("autocast", "is_autocast_enabled", "get_autocast_dtype"):
        monkeypatch.setattr(torch, function, _on_cpu(getattr(torch, function)))
    monkeypatch.setattr(clip_grad, "_group_tensors_by_device_and_dtype", _grouped)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # these settings are restored after the test
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(variable, "")  # restored afterwards, also if it was not set
        monkeypatch.delenv(variable)
    for check in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        # in a CUDA build of torch these query the driver
        monkeypatch.setattr(torch.optim.Optimizer, check, lambda optimizer: None, raising=False)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: _moved(tensor, CPU))  # also in the loader's threads
    return FakeGpu()

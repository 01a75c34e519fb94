"""Counts the operators that compute something: each of them is at least one kernel on a GPU, which moves bytes."""

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_PASSES = {"aten::topk": 4}  # over its tensors; radix selection takes a pass for each few bits, and one to collect


class OperatorCounts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators by name within its context, but for views.

    `bytes` sums the sizes of their tensors, inputs and outputs, times the passes over them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        if operator.namespace == "aten" and not operator.is_view:
            self.counts[operator.name()] += 1
            tensors = {id(leaf): leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)}
            passes = _PASSES.get(operator.name(), 1)
            self.bytes += passes * sum(tensor.nbytes for tensor in tensors.values())
        return result

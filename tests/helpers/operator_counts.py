"""Counts the operators that compute something: each of them is at least one kernel on a GPU."""

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorCounts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators by name within its context, but for views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.namespace == "aten" and not operator.is_view:
            self.counts[operator.name()] += 1
        return operator(*args, **(kwargs or {}))

"""nmt-train with an injected fault: faulty_train.py FAULT RANK UPDATE [OPTIONS OF NMT-TRAIN]...

The fault occurs on one rank in one update, and again whenever that update is repeated.
`forward` and `backward` run out of memory in that pass, for micro-batches of more than two sentence pairs.
`die` kills the process, but not after a restart by torchrun.
"""

import os
import signal
import sys
from typing import Any

import torch
from torch import Tensor

from nmtkit.cli.train import main
from nmtkit.training.gradient import UpdateGradient

fault, rank, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
original = UpdateGradient._backward


def fail(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory (a test's)")


def backward(self: UpdateGradient, update: int, piece: Any, *arguments: Any) -> Tensor:
    if update != number or self.ranks.rank != rank:
        return original(self, update, piece, *arguments)
    if fault == "die" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    hooks: list[Any] = []
    if fault == "forward" and len(piece.batch.src) > 2:
        hooks.append(self.loss.register_forward_pre_hook(fail))
    if fault == "backward" and len(piece.batch.src) > 2:
        # the gradients of the first layer come last, when others have been accumulated and reduced over ranks
        first_layer = next(iter(self.loss.model.layers()))
        hooks += [parameter.register_hook(fail) for parameter in first_layer.parameters()]  # type: ignore[no-untyped-call]
    try:
        return original(self, update, piece, *arguments)
    finally:
        for hook in hooks:
            hook.remove()


UpdateGradient._backward = backward  # type: ignore[method-assign, assignment]
main(sys.argv[4:])

"""Loads the GPU kernel of the loss if it runs on this machine.

torch for GPUs includes Triton, which also needs a C compiler and a supported GPU.
"""

import functools
from importlib import import_module
from typing import Any

import torch

from nmtkit.console.log import logger
from nmtkit.text.vocabulary import EOS
from nmtkit.wording import first_line


@functools.cache
def loss_kernel_on(device: torch.device) -> Any:
    """Import the module `loss_kernel`, which is slow, and try it on one row. Returns None on a CPU, or if it cannot
    run."""
    if device.type != "cuda":
        return None
    try:
        kernel = import_module("nmtkit.model.loss_kernel")
        kernel.cross_entropy_(torch.zeros(1, 8, device=device), torch.full((1,), EOS, device=device), 0.0, True)
    except Exception as error:
        logger.info("the loss is computed without Triton, which is slower: %s", first_line(error))
        return None
    return kernel

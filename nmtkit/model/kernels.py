"""Loads the kernel of the loss where it runs.

Triton comes with torch for GPUs, but also needs a C compiler and a GPU that it supports.
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
    """The module `loss_kernel`, tried on a row; None on a CPU, and where it cannot run.

    It is imported here, because the import of Triton takes long.
    """
    if device.type != "cuda":
        return None
    try:
        kernel = import_module("nmtkit.model.loss_kernel")
        kernel.cross_entropy_(torch.zeros(1, 8, device=device), torch.full((1,), EOS, device=device), 0.0, True)
    except Exception as error:
        logger.info("the loss is computed without Triton, which is slower: %s", first_line(error))
        return None
    return kernel

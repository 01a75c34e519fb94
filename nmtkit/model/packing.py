"""Packed sentences: one after the other in a single row of tokens, without padding between them.

Only attention knows where a sentence begins; every other operator treats each token alone. On a GPU, one kernel of
torch computes the attention of all sentences. Elsewhere they are padded for attention only, which gives the same
results more slowly.

Letters: N sentences, T tokens of a side, L tokens of the longest sentence, H heads.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.log import logger
from nmtkit.model.config import ModelConfig, TransformerConfig

Kernel = Callable[..., Any]  #: torch's `varlen_attn`

_WIDEST = 256  # of a head, for the kernel


@dataclass(frozen=True)
class Packing:
    """Where the sentences of one side begin. The filler at the end counts as a sentence."""

    starts: Tensor  # (N + 1,) int32: the first token of each sentence, then T
    slots: Tensor  # (T,) sentence · L + position: the place of each token among padded sentences
    positions: Tensor  # (T,) the position of each token in its sentence; arbitrary in the filler
    longest: int  # L, the filler included
    span: int  # greater than all positions
    kernel: Kernel | None  # computes the attention; None to pad for it

    @classmethod
    def of(cls, lengths: Tensor, tokens: int, longest: int, filler: int, kernel: Kernel | None) -> "Packing":
        """The packing of T = `tokens`: sentences with `lengths` (N - 1,), at most `longest`, then `filler` tokens.

        Nothing is read from the device of the lengths.
        """
        widest = max(longest, filler)
        ends = F.pad(lengths.cumsum(0, dtype=torch.int32), (0, 1), value=tokens)  # (N,)
        starts = F.pad(ends, (1, 0))
        every = torch.arange(tokens, device=lengths.device, dtype=torch.int32)
        sentences = torch.searchsorted(ends, every, right=True)
        positions = every - starts.index_select(0, sentences)
        return cls(starts, sentences * widest + positions, positions % longest, widest, longest, kernel)

    @property
    def mask(self) -> Tensor:
        """(N, 1, 1, L): True for the tokens of each padded sentence."""
        lengths = self.starts.diff().unsqueeze(1)
        return (torch.arange(self.longest, device=lengths.device) < lengths)[:, None, None, :]

    def pad(self, x: Tensor) -> Tensor:
        """x (T, D) to (N, L, D), with zeros after each sentence."""
        rows = x.new_zeros((self.starts.size(0) - 1) * self.longest, x.size(1)).index_copy(0, self.slots, x)
        return rows.view(-1, self.longest, x.size(1))

    def pack(self, x: Tensor) -> Tensor:
        """The inverse of `pad`: x (N, L, D) to (T, D)."""
        return x.flatten(0, 1).index_select(0, self.slots)


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, queries: Packing, keys: Packing, window: tuple[int, int] = (-1, -1)
) -> Tensor:
    """softmax(Q·Kᵀ / √d_k)·V within each sentence, for q (T, H, K), k and v (S, H, K), by the kernel: (T, H·K).

    `window` is how far a token attends to the left and to the right, -1 without a limit; (-1, 0) is causal.
    """
    assert queries.kernel is not None
    lengths = queries.starts, keys.starts, queries.longest, keys.longest
    heads: Tensor = queries.kernel(q, k, v, *lengths, window_size=window)
    return heads.flatten(1)


def kernel_for(config: ModelConfig, precision: torch.dtype, device: torch.device) -> Kernel | None:
    """Torch's kernel for the attention of packed sentences in a model of these options; None if there is none.

    It needs a GPU and 16 bits, heads with keys as wide as values, and no dropout of attention weights.
    """
    if device.type != "cuda" or not isinstance(config, TransformerConfig) or config.attention_dropout:
        return None
    has_sizes = config.key_size == config.value_size <= _WIDEST and config.key_size % 8 == 0
    return _kernel_on(device, precision) if has_sizes else None


@functools.cache
def _kernel_on(device: torch.device, precision: torch.dtype) -> Kernel | None:
    """The kernel if it runs on a GPU, forward and backward: tried on a tiny tensor.

    It is imported here, because its import takes more than a second.
    """
    if precision not in (torch.bfloat16, torch.float16):
        return None
    try:
        kernel: Kernel = import_module("torch.nn.attention.varlen").varlen_attn  # from torch 2.10 on
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.zeros(1, 1, 8, dtype=precision, device=device, requires_grad=True)
            packing = Packing.of(torch.zeros(0, dtype=torch.int64, device=device), 1, 1, 1, kernel)
            torch.autograd.backward(attend_packed(x, x, x, packing, packing).sum())
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        logger.info("sentences are not packed, because torch's kernel for their attention does not run: %s", reason)
        return None
    return kernel

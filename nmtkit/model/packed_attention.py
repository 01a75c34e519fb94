"""Attention of packed sentences, which follow each other in a single row of tokens without padding.

Only attention depends on where a sentence begins; all other operators treat each token alone. On a GPU, one torch
kernel computes the attention of all sentences. On a CPU, nmtkit's kernel does so for short sentences. Otherwise, they
are padded in groups of similar length, with equal results.

Letters: N sentences, including the filler, T tokens of a side, H heads.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.console.log import logger
from nmtkit.model import native_operators
from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.short_attention import MAX_KEYS
from nmtkit.wording import first_line

Kernel = Callable[..., Any]  #: `attend_sentences`, or torch's `varlen_attn` with the same arguments

_WIDEST = 256  # head width that the kernels support
_CAUSAL = (-1, 0)  # window


class PackedSide(NamedTuple):
    """The sentences of one side. A filler at the end counts as a sentence."""

    lengths: Tensor  # (N - 1,) without the filler's
    tokens: int  # of all sentences, without the filler
    longest: int  # tokens of the longest of them
    filler: int  # tokens of the filler, at least 1


@dataclass(frozen=True)
class Padding:
    """Maps the tokens of one side to their slots in sentences that are padded in groups."""

    slots: Tensor  # (T,) the slot of each token; slots of the first group come first
    masks: tuple[Tensor, ...]  # for each group (sentences, 1, 1, longest): True for tokens

    @classmethod
    def of(cls, side: PackedSide, groups: Tensor) -> "Padding":
        """Pad each group to its longest sentence. `groups` (N,) has the group number of each sentence, without gaps."""
        lengths = F.pad(side.lengths, (0, 1), value=side.filler)
        counts = groups.bincount()
        longest = torch.zeros_like(counts).scatter_reduce(0, groups, lengths, "amax")
        order = groups.argsort(stable=True)
        widths = longest[groups[order]]
        begins = torch.empty_like(lengths).scatter(0, order, widths.cumsum(0) - widths)  # (N,) slots
        shifts = begins - (lengths.cumsum(0) - lengths)
        positions = torch.arange(side.tokens + side.filler, device=lengths.device)
        slots = positions + shifts.repeat_interleave(lengths)
        grouped = torch.split(lengths[order], counts.tolist())
        masks = (positions[:width] < each.unsqueeze(1) for each, width in zip(grouped, longest.tolist(), strict=True))
        return cls(slots, tuple(mask[:, None, None, :] for mask in masks))

    def pad(self, x: Tensor) -> list[Tensor]:
        """Pad x (T, D) to (sentences, longest, D) for each group, with zeros after each sentence."""
        sizes = [mask.numel() for mask in self.masks]
        rows = x.new_zeros(sum(sizes), x.size(1)).index_copy(0, self.slots, x)
        groups = zip(torch.split(rows, sizes), self.masks, strict=True)
        return [part.view(mask.size(0), mask.size(3), -1) for part, mask in groups]

    def pack(self, groups: Iterable[Tensor]) -> Tensor:
        """Undo `pad`: join the groups (sentences, longest, D) to (T, D) without padding."""
        return torch.cat([group.flatten(0, 1) for group in groups]).index_select(0, self.slots)


@dataclass(frozen=True)
class Packing:
    """The beginnings of the sentences of one side, and the kernel or padding that computes their attention."""

    starts: Tensor  # (N + 1,) int32: the first token of each sentence, then T
    positions: Tensor  # (T,) position of each token in its sentence; arbitrary, below `span`, in the filler
    longest: int  # tokens of the longest sentence, the filler included
    span: int  # greater than all positions
    attention: Kernel | Padding | None  # None for short sentences, whose kernel needs no padding

    @classmethod
    def of(cls, side: PackedSide, attention: Kernel | Padding | None) -> "Packing":
        """Create the packing of one side without waiting for the GPU."""
        tokens = side.tokens + side.filler
        ends = F.pad(side.lengths.cumsum(0, dtype=torch.int32), (0, 1), value=tokens)  # (N,)
        starts = F.pad(ends, (1, 0))
        every = torch.arange(tokens, device=ends.device, dtype=torch.int32)
        positions = every - starts.index_select(0, torch.searchsorted(ends, every, right=True))
        longest = max(side.longest, side.filler)
        return cls(starts, positions % side.longest, longest, side.longest, attention)


def pack_sides(
    source: PackedSide, target: PackedSide, kernel: Kernel | None, short: bool = False
) -> tuple[Packing, Packing]:
    """Return the packings of both sides. They use `kernel` if given, or nmtkit's kernel if the sentences are `short`.

    Without a kernel, sentence pairs are padded in groups, by the length of their longer side rounded up to a power of
    two. A side therefore has at most twice as many slots as both sides have tokens, regardless of lengths.
    """
    if kernel is not None or short:
        return Packing.of(source, kernel), Packing.of(target, kernel)
    longer = F.pad(torch.maximum(source.lengths, target.lengths), (0, 1), value=max(source.filler, target.filler))
    powers = 2 ** torch.arange(32, device=longer.device)
    _, groups = torch.unique(torch.bucketize(longer, powers), return_inverse=True)
    return Packing.of(source, Padding.of(source, groups)), Packing.of(target, Padding.of(target, groups))


def attend_packed(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, queries: Packing, keys: Packing, window: tuple[int, int] = (-1, -1)
) -> Tensor:
    """Compute softmax(Q·Kᵀ / √d_k)·V (T, H·K) within each sentence, using the kernel.

    q is (T, H, K), k and v are (S, H, K). `window` is the number of tokens that each token attends to on its left and
    right, or -1 without a limit; (-1, 0) is causal.
    """
    lengths = queries.starts, keys.starts, queries.longest, keys.longest
    heads: Tensor = kernel(q, k, v, *lengths, window_size=window)
    return heads.flatten(1)


def attend_sentences(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    key_starts: Tensor,
    longest: int,
    longest_key: int,
    window_size: tuple[int, int],
) -> Tensor:
    """Compute attention (T, H, K) within each sentence, using the kernel with the smallest tiles.

    q is (T, H, K), k and v are (S, H, K), and starts (N + 1,) is as in `Packing`. `window_size` is full or causal.
    torch's `varlen_attn` wastes more work beyond the end of short sentences, and sums the gradient of long sentences in
    any order, so its bits differ between runs.
    """
    rows = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    arguments = *rows, None, starts, key_starts, longest, longest_key, 0.0, int(window_size == _CAUSAL), True
    heads: Tensor = torch.ops.aten._efficient_attention_forward(*arguments)[0]
    return heads.squeeze(0)


def _varlen_attn() -> Kernel:
    """Import torch's `varlen_attn`, only when needed, because the import takes more than a second."""
    kernel: Kernel = import_module("torch.nn.attention.varlen").varlen_attn  # from torch 2.10 on
    return kernel


def kernel_for(config: ModelConfig, precision: torch.dtype, device: torch.device) -> Kernel | None:
    """Find a kernel for the attention of packed sentences; None if there is none. It needs a GPU and 16 bits, heads
    with keys as wide as values, and no dropout on attention weights."""
    if device.type != "cuda" or not isinstance(config, TransformerConfig) or config.attention_dropout:
        return None
    has_sizes = config.key_size == config.value_size <= _WIDEST and config.key_size % 8 == 0
    return _kernel_on(device, precision, config.attention_window is not None) if has_sizes else None


def attends_short(config: ModelConfig, matrix: Tensor, precision: torch.dtype, longest: int) -> bool:
    """Whether `attend_short` supports a model with this output matrix (W, D), and is fastest at this length."""
    if not isinstance(config, TransformerConfig) or config.attention_dropout or config.attention_window is not None:
        return False
    is_fastest = longest <= MAX_KEYS and precision in (torch.float32, torch.bfloat16)
    return is_fastest and native_operators.serves(matrix)


@functools.cache
def _kernel_on(device: torch.device, precision: torch.dtype, windowed: bool) -> Kernel | None:
    """Find the first kernel that runs on a GPU, forward and backward, by trying each on a tiny tensor."""
    if precision not in (torch.bfloat16, torch.float16):
        return None
    reason = ""
    for find in (_varlen_attn,) if windowed else (lambda: attend_sentences, _varlen_attn):
        try:
            kernel = find()
            with torch.inference_mode(False), torch.enable_grad():
                x = torch.zeros(1, 1, 8, dtype=precision, device=device, requires_grad=True)
                side = PackedSide(torch.zeros(0, dtype=torch.int64, device=device), tokens=0, longest=1, filler=1)
                packing = Packing.of(side, kernel)
                torch.autograd.backward(attend_packed(kernel, x, x, x, packing, packing, _CAUSAL).sum())
        except Exception as error:
            reason = first_line(error)
        else:
            return kernel
    logger.info("sentences are not packed, because torch's attention kernels do not run: %s", reason)
    return None

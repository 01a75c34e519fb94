"""The gradient of one update: of all its micro-batches, shared out over the ranks, summed, divided once by its tokens.

Ranks take over whole micro-batches; everything else about an update, its sentences, its micro-batches and their masks
of dropout, is the same for any number of ranks. So runs on different numbers differ only in the rounding of sums.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from nmtkit.data.batch import Batch
from nmtkit.errors import RunError
from nmtkit.log import logger
from nmtkit.model.memory import is_out_of_memory
from nmtkit.model.protocol import TranslationModel
from nmtkit.training.loss import batch_loss
from nmtkit.training.mixed_precision import autocast
from nmtkit.training.ranks import Ranks
from nmtkit.vocab import BOS, EOS


class MicroBatchLoss(nn.Module):
    """Model and loss in one module: DistributedDataParallel begins at `forward`, and the loss projects by itself."""

    def __init__(self, model: TranslationModel, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return batch_loss(self.model, batch, self.smoothing)


class MemoryLimits:
    """How much a micro-batch may hold, as learned from running out of memory.

    Sentences are told apart by the power of two that their length reaches; `by_length` maps it, as text for JSON, to
    the most tokens, of both sides and with padding, that a micro-batch of such sentences may have.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens  # of a side, padded; passed only by what is not planned, as sampled subwords are
        self.by_length: dict[str, int] = {}

    def __str__(self) -> str:
        limits = sorted(self.by_length.items(), key=lambda item: int(item[0]))
        return ", ".join(f"{limit} tokens for sentences of up to {length}" for length, limit in limits)

    def cut(self, batch: Batch) -> Iterator[Batch]:
        """The batch, in parts of about the same size that keep `max_tokens` and the limit for its length."""
        rows = len(batch.src)
        parts = -(-rows // max(1, self.max_tokens // max(batch.src.size(1), batch.tgt_out.size(1))))
        if limit := self.by_length.get(_length_class(batch)):
            parts = max(parts, -(-rows // max(1, limit * rows // batch.padded_tokens)))
        size = -(-rows // parts)
        for begin in range(0, rows, size):
            yield batch.rows(slice(begin, begin + size)) if size < rows else batch

    def lower(self, batch: Batch) -> str | None:
        """Halve what a micro-batch of such sentences may hold; returns what to complain of if it holds but one."""
        self.by_length[_length_class(batch)] = batch.padded_tokens // 2
        if len(batch.src) > 1:
            return None
        return (
            f"out of memory for one sentence pair of {batch.src.size(1)} and {batch.tgt_out.size(1)} tokens: "
            "preprocess with a smaller --max-length, or train a smaller model"
        )

    def merge(self, learned: dict[str, int]) -> None:
        """Take over what another rank has learned."""
        for length, limit in learned.items():
            self.by_length[length] = min(limit, self.by_length.get(length, limit))


def _length_class(batch: Batch) -> str:
    return str(1 << (max(batch.src.size(1), batch.tgt_out.size(1)) - 1).bit_length())


@dataclass(frozen=True)
class _Piece:
    """What is computed at once: part `part` of micro-batch `number`. A `weight` of 0 only takes part in the sum."""

    number: int
    part: int
    batch: Batch
    weight: float = 1.0


class UpdateGradient:
    """Computes gradients of updates into the `.grad` of a model's parameters, the same on every rank."""

    def __init__(
        self,
        model: TranslationModel,
        ranks: Ranks,
        precision: torch.dtype,
        scaler: torch.amp.GradScaler,
        smoothing: float,
        seed: int,
        max_tokens: int,
    ) -> None:
        self.ranks, self.precision, self.scaler, self.seed = ranks, precision, scaler, seed
        self.limits = MemoryLimits(max_tokens)
        self.times_out_of_memory = 0
        self.after_first_part: Callable[[int], None] | None = None  # of the next update, with how many there are
        self.loss = MicroBatchLoss(model, smoothing)
        self._attempt: Batch  # what was computed last
        self._wrapped: DistributedDataParallel | None = None
        self._bucket_sizes: dict[int, int] = {}  # how torch cuts the gradient for its sum over ranks
        self._buckets_summed = 0
        self._wrap()

    def compute(
        self, update: int, share: Sequence[tuple[int, Batch]], tokens: int, votes: Sequence[float]
    ) -> list[float]:
        """The gradient of the mean loss per target token, of which the update has `tokens` on all ranks.

        `share` are this rank's micro-batches with their numbers in the update; there may be none. Returns the sums
        over all ranks of loss, negative log-likelihood and each of the `votes`.

        If a rank runs out of memory, all begin the update anew, with smaller micro-batches of sentences that long.
        Raises RunError where a single sentence pair does not fit.
        """
        while True:
            out_of_memory = False
            loss = nll = 0.0
            try:
                loss, nll = self._accumulate(update, share, tokens)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                out_of_memory = True
            if out_of_memory:  # not above: while an exception is handled, its traceback holds on to the tensors
                self._sum_without_me()
            *totals, failed = self.ranks.sum([loss, nll, *votes, out_of_memory])
            if not failed:
                return totals
            self._agree_on_limits(update, out_of_memory)
            self._wrap()

    def not_finite(self, update: int, number: int, batch: Batch, tokens: int) -> list[int]:
        """The sentence pairs (rows) of a micro-batch that have no finite gradient, each taken alone.

        `tokens` are those of the whole update: divided by less, a gradient that loss scaling has raised overflows.
        """
        found: list[int] = []
        begin = 0
        for part, piece in enumerate(self.limits.cut(batch)):
            if not self._norm(update, _Piece(number, part, piece), tokens) < torch.inf:
                for row in range(len(piece.src)):
                    alone = _Piece(number, part, piece.rows(slice(row, row + 1)))
                    if not self._norm(update, alone, tokens) < torch.inf:
                        found.append(begin + row)
            begin += len(piece.src)
        return found

    def _norm(self, update: int, piece: _Piece, tokens: int) -> float:
        self.loss.zero_grad(set_to_none=True)
        self._backward(update, piece, tokens, self.loss)
        gradients = [parameter.grad for parameter in self.loss.parameters() if parameter.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def _accumulate(self, update: int, share: Sequence[tuple[int, Batch]], tokens: int) -> tuple[float, float]:
        """Forward and backward of this rank's share. The sum over ranks begins within the last backward."""
        self.loss.train()
        self.loss.zero_grad(set_to_none=True)
        self._buckets_summed = 0
        pieces = [
            _Piece(number, part, batch)
            for number, micro_batch in share
            for part, batch in enumerate(self.limits.cut(micro_batch))
        ]
        *before, last = pieces or [_IDLE]
        sums = torch.zeros(2, device=self.ranks.device)
        for piece in before:
            with self._wrapped.no_sync() if self._wrapped else nullcontext():
                sums += self._backward(update, piece, tokens, self._wrapped or self.loss)
            if self.after_first_part is not None:
                self.after_first_part(len(pieces))
                self.after_first_part = None
        self.after_first_part = None  # of an update of one part it comes too late, and for the next one it is not meant
        sums += self._backward(update, last, tokens, self._wrapped or self.loss)
        loss, nll = sums.tolist()
        return loss, nll

    def _backward(self, update: int, piece: _Piece, tokens: int, module: nn.Module) -> Tensor:
        """Forward and backward of one piece; returns its sums (loss, nll)."""
        self._attempt = piece.batch
        self._seed(update, piece)
        with autocast(self.ranks.device, self.precision):
            loss, nll = module(piece.batch.to(self.ranks.device))
        self.scaler.scale(loss * (piece.weight / tokens)).backward()
        return torch.stack((loss.detach(), nll)) * piece.weight

    def _seed(self, update: int, piece: _Piece) -> None:
        """Make the masks of dropout a function of the run's seed and the piece's own numbers."""
        sequence = np.random.SeedSequence((self.seed, update, piece.number, piece.part))
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))

    def _wrap(self) -> None:
        """Let torch sum the gradients of the ranks, from a clean state."""
        self.loss.zero_grad(set_to_none=True)
        if self.ranks.size == 1:
            return
        self._wrapped = None
        gc.collect()  # the old one's hooks go with it
        # Tables of positions are the same on all ranks as far as they reach.
        tables = [name for name, _ in self.loss.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.loss, tables)  # type: ignore[no-untyped-call]
        self._wrapped = DistributedDataParallel(self.loss, gradient_as_bucket_view=True)
        self._wrapped.register_comm_hook(None, self._sum_bucket)
        for _ in range(2):  # torch settles its buckets in the second pass; who fails later must know them
            self._bucket_sizes.clear()
            self._accumulate(0, (), 1)

    def _sum_bucket(
        self,
        _: None,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """A plain sum over ranks: the loss has been divided by the tokens of all of them already."""
        gradient = bucket.buffer()
        self._bucket_sizes[bucket.index()] = gradient.numel()
        self._buckets_summed += 1
        summed = distributed.all_reduce(gradient, async_op=True).get_future()
        return cast("torch.futures.Future[Tensor]", summed.then(lambda future: future.value()[0]))

    def _sum_without_me(self) -> None:
        """Add nothing to what is left of the sum over ranks: the others wait for it."""
        for bucket in range(self._buckets_summed, len(self._bucket_sizes)):
            distributed.all_reduce(torch.zeros(self._bucket_sizes[bucket], device=self.ranks.device))

    def _agree_on_limits(self, update: int, out_of_memory: bool) -> None:
        """After some rank ran out of memory: smaller micro-batches of that length on all of them."""
        complaint = None
        if out_of_memory:
            complaint = self.limits.lower(self._attempt)
            if self.ranks.device.type == "cuda":
                torch.cuda.empty_cache()
        for limits, complained in self.ranks.gather((self.limits.by_length, complaint)):
            if complained:
                raise self.ranks.shared(RunError(complained))
            self.limits.merge(limits)
        self.times_out_of_memory += 1
        logger.warning("update %d: out of memory; trying again within %s", update, self.limits)


# One empty sentence, for a rank without a micro-batch: it takes part in the sum and adds nothing.
_IDLE = _Piece(0, 0, Batch.unpadded(torch.tensor([[EOS]]), torch.tensor([[BOS]]), torch.tensor([[EOS]])), weight=0.0)

"""The rows of a batch during a search, and the sentence of each.

A row is an open hypothesis. Each row belongs to a sentence, and the rows of a sentence are adjacent. Their number may
change at each step, so data about the source is stored once for each sentence.

Letters: R rows, B sentences.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

FILLED = 0.75  #: share of sentences that still have rows, above which compacting the source is not worth a copy


class SentenceRows:
    """The rows of `sentences` sentences, initially one for each."""

    def __init__(self, sentences: int, device: torch.device) -> None:
        self.sentences = sentences
        self._sentence_of_row = torch.arange(sentences, device=device)  # (R,)
        self._widest = 1  # most rows of one sentence
        self._slots: Tensor | None = None  # (R,) sentence · widest + number in it; None if all have `widest` rows

    def by_sentence(self, x: Tensor) -> Tensor:
        """Arrange rows (R, D) by sentence (B, widest, D), padded with zeros."""
        if self._slots is not None:
            x = x.new_zeros(self.sentences * self._widest, x.size(1)).index_copy_(0, self._slots, x)
        return x.view(-1, self._widest, x.size(1))

    def by_row(self, x: Tensor) -> Tensor:
        """Arrange x (B, widest, D) by row (R, D): the inverse of `by_sentence`."""
        x = x.flatten(0, 1)
        return x if self._slots is None else x.index_select(0, self._slots)

    def is_unchanged(self, origins: Tensor) -> bool:
        """Whether a reordering by origins (R',) would leave all rows in their places."""
        rows = self._sentence_of_row.numel()
        return origins.numel() == rows and torch.equal(origins, torch.arange(rows, device=origins.device))

    def widen(self, width: int) -> None:
        """Give every sentence `width` rows, as `RowState.reorder_fixed` does."""
        if self._widest != width or self._slots is not None:
            sentences = torch.arange(self.sentences, device=self._sentence_of_row.device)
            self._sentence_of_row = sentences.repeat_interleave(width, output_size=self.sentences * width)
            self._widest, self._slots = width, None

    def reorder(self, origins: Tensor) -> Tensor | None:
        """Reorder like `InferenceState.reorder`. Returns the numbers of the sentences to keep; None to keep all."""
        self._sentence_of_row = self._sentence_of_row[origins]
        present, numbers, counts = torch.unique_consecutive(
            self._sentence_of_row, return_inverse=True, return_counts=True
        )
        is_sparse = present.numel() <= FILLED * self.sentences
        if is_sparse:
            self._sentence_of_row, self.sentences = numbers, present.numel()
        self._widest = int(counts.max())
        self._slots = None
        if origins.numel() < self.sentences * self._widest:
            first = (counts.cumsum(0) - counts)[numbers]  # the first row of each row's sentence
            within = torch.arange(origins.numel(), device=origins.device) - first
            self._slots = self._sentence_of_row * self._widest + within
        return present if is_sparse else None


class RowState(ABC):
    """The state of a decoder in tensors, with data about the source by sentence, and all else by row."""

    rows: SentenceRows

    def reorder(self, origins: Tensor) -> None:
        """Set row i to the former row `origins[i]`, for origins (R,), see `InferenceState.reorder`."""
        if self.rows.is_unchanged(origins):
            return
        self._reorder_rows(origins)
        if (kept := self.rows.reorder(origins)) is not None:
            self._keep_sentences(kept)

    def reorder_fixed(self, origins: Tensor, width: int) -> None:
        """Reorder like `reorder`, by origins (sentences · width,), without waiting for the GPU. Every sentence then has
        `width` rows."""
        self._reorder_rows(origins)
        self.rows.widen(width)

    @abstractmethod
    def _reorder_rows(self, origins: Tensor) -> None: ...

    @abstractmethod
    def _keep_sentences(self, sentences: Tensor) -> None: ...

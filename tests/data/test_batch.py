"""Collating: rows of ids become the tensors of a batch."""

from pathlib import Path

import numpy as np
import torch

from nmtkit.data.batch import collate
from nmtkit.data.binary import TokenFileWriter
from nmtkit.data.corpus import Split
from nmtkit.data.padding import pad
from nmtkit.data.sentences import Sentences
from nmtkit.text.vocabulary import BOS, EOS, PAD


def make_split(folder: Path, source: list[list[int]], target: list[list[int]]) -> Split:
    for name, side in (("s", source), ("t", target)):
        with TokenFileWriter(folder / name, 100) as file:
            file.write(np.concatenate(side).astype(np.uint16), np.array([len(ids) for ids in side], np.int32))
    return Split("train", Sentences([folder / "s"], 100), Sentences([folder / "t"], 100))


def test_a_batch_has_padded_pairs_and_a_shifted_target(tmp_path: Path) -> None:
    split = make_split(tmp_path, [[5, 6, EOS], [EOS], [7, EOS]], [[8, EOS], [9, 10, 11, EOS], [EOS]])
    batch = collate(split, np.array([2, 0, 1]))
    assert batch.src.tolist() == [[7, EOS, PAD], [5, 6, EOS], [EOS, PAD, PAD]]
    assert batch.tgt_out.tolist() == [[EOS, PAD, PAD, PAD], [8, EOS, PAD, PAD], [9, 10, 11, EOS]]
    assert batch.tgt_in.tolist() == [[BOS, PAD, PAD, PAD], [BOS, 8, PAD, PAD], [BOS, 9, 10, 11]]
    assert (batch.source_tokens, batch.target_tokens, batch.padded_tokens) == (6, 7, 9 + 12)
    assert (batch.source_lengths.tolist(), batch.target_lengths.tolist()) == ([2, 3, 1], [1, 2, 4])
    assert int((batch.tgt_in != PAD).sum()) == batch.target_tokens
    some = batch.rows(torch.tensor([1, 2]))
    assert (some.source_lengths.tolist(), some.target_lengths.tolist(), some.target_tokens) == ([3, 1], [2, 4], 6)
    assert {t.dtype for t in (batch.src, batch.tgt_in, batch.tgt_out)} == {torch.int64}


def test_rows_are_padded_to_the_longest_and_their_lengths_returned() -> None:
    rows, lengths = pad([[4, 5], [6], []])
    assert rows.tolist() == [[4, 5], [6, PAD], [PAD, PAD]]
    assert lengths.tolist() == [2, 1, 0]

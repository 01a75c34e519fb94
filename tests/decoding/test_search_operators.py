"""The number of operators of a search step on a GPU, which the host has to launch one by one."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fake_gpu import GPU, fake_gpu
from operator_counts import OperatorCounts

from nmtkit.checkpoint import Checkpoint
from nmtkit.data.batch import pad
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.fixed_search import fixed_search
from nmtkit.decoding.search import search
from nmtkit.inference.backends import torch_backend
from nmtkit.vocab import EOS


def count_operators(find: Callable[..., Any], checkpoint: Checkpoint, steps: int) -> Counter[str]:
    """Count the operators of a beam search of that many steps on the fake GPU."""
    model = torch_backend(checkpoint.build_model().to(GPU))
    src, lengths = (tensor.to(GPU) for tensor in pad([[5, 9, 7, 30, EOS], [12, EOS]]))
    config = SearchConfig(beam=4, max_len_a=0.0, max_len_b=steps, min_len=steps)
    with OperatorCounts() as counted:
        find(model, src, lengths, config)
    counts: Counter[str] = counted.counts
    return counts


@pytest.mark.parametrize(("find", "step"), [(search, 80), (fixed_search, 67)])
def test_a_step_of_beam_search_and_a_layer_of_it_have_at_most_so_many_operators(
    find: Callable[..., Any],
    step: int,
    make_checkpoint: Callable[..., Checkpoint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoints = [make_checkpoint(decoder_layers=layers) for layers in (1, 2)]
    with fake_gpu(monkeypatch):
        shallow, deep = (
            count_operators(find, checkpoint, 14) - count_operators(find, checkpoint, 10) for checkpoint in checkpoints
        )
    assert shallow.total() <= 4 * step, shallow
    assert (layer := deep - shallow).total() <= 4 * 20, layer

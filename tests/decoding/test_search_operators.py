"""The operators of a search step on a GPU, which the host has to launch one by one, and the bytes that they move."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import GPU, fake_gpu
from operator_counts import OperatorCounts

from nmtkit.checkpoint import Checkpoint
from nmtkit.data.padding import pad
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.fixed_search import fixed_search
from nmtkit.decoding.search import search
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.protocol import InferenceModel
from nmtkit.inference.torch_backend import fixed_model
from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.text.vocabulary import EOS


def find_fixed(model: InferenceModel, *arguments: Any) -> Any:
    return fixed_search(fixed_model(model), *arguments)


def count_operators(find: Callable[..., Any], checkpoint: Checkpoint, steps: int) -> Counter[str]:
    """Count the operators of a beam search of that many steps on the fake GPU."""
    model = torch_backend(checkpoint.build_model().to(GPU))
    src, lengths = pad([[5, 9, 7, 30, EOS], [12, EOS]])
    config = SearchConfig(beam=4, max_len_a=0.0, max_len_b=steps, min_len=steps)
    with OperatorCounts() as counted:
        find(model, src, lengths, config)
    counts: Counter[str] = counted.counts
    return counts


@pytest.mark.parametrize(("find", "step"), [(search, 45), (find_fixed, 67)])
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


ROWS, WIDTH = 64, 32  # open hypotheses, and the width of keys and of values


def count_bytes(vocabulary: int, steps: int) -> int:
    """Count the bytes of the last four of that many steps of a beam search in bf16 on the fake GPU."""
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=WIDTH, d_ff=64, heads=2)
    model = torch_backend(make_model(config, vocabulary, vocabulary).eval().to(GPU, torch.bfloat16))
    src, lengths = pad([[5, 9, 7, EOS]] * (ROWS // 4))
    moved = []
    for limit in (steps - 4, steps):
        with OperatorCounts() as counted:
            find_fixed(model, src, lengths, SearchConfig(beam=4, max_len_a=0.0, max_len_b=limit, min_len=limit))
        moved.append(int(counted.bytes))
    return moved[1] - moved[0]


def read_once(logits: torch.Tensor) -> torch.Tensor:
    """Reads the logits as often as the kernel that adds up their exponentials."""
    return logits.amax(1, keepdim=True).float()


def test_a_step_passes_over_the_logits_and_the_cache_at_most_so_many_times(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = SimpleNamespace(log_sum_exp=read_once)
    with fake_gpu(monkeypatch, bf16=True):
        monkeypatch.setattr("nmtkit.inference.torch_inference.loss_kernel_on", lambda device: kernel)
        count_bytes(4000, 12)  # the first search uploads tables that others share
        first = count_bytes(4000, 12)
        of_logits, of_cache = count_bytes(8000, 12) - first, count_bytes(4000, 28) - first
    logits, position = ROWS * 4000 * 2, 2 * ROWS * WIDTH * 2  # bytes of what has been added, in each of the four steps
    assert of_logits < 4 * 7 * logits  # 8 with top-k in one stage, 11 or more with a copy in fp32
    assert of_cache < 4 * 4 * 16 * position  # attention: 1, reordering: 2

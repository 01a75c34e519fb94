"""Batches of sentences of similar lengths."""

from nmtkit.decoding.batched_search import batches_by_tokens
from nmtkit.decoding.config import StreamConfig


def test_a_batch_fills_max_tokens_exactly_and_counts_eos() -> None:
    for max_tokens, sizes in ((20, [4]), (19, [3, 1]), (15, [3, 1]), (4, [1] * 4)):
        assert [len(batch) for batch in batches_by_tokens([4] * 4, max_tokens)] == sizes


def test_batches_group_similar_lengths_within_their_budget() -> None:
    lengths = [3, 0, 9, 4, 4, 30, 0, 1, 9]
    batches = list(batches_by_tokens(lengths, max_tokens=20))
    assert batches == [[5], [2, 8], [3, 4, 0, 7]]
    assert all(len(batch) == 1 or len(batch) * (lengths[batch[0]] + 1) <= 20 for batch in batches)


def test_batches_and_buffer_are_larger_on_a_gpu_unless_they_are_given() -> None:
    assert StreamConfig().sizes_on("cpu") == (4096, 4096)
    assert StreamConfig().sizes_on("cuda") == (32_768, 32_768)
    assert StreamConfig(max_tokens=10, buffer=20).sizes_on("cuda") == (10, 20)

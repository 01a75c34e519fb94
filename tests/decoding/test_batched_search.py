"""Batches of sentences of similar lengths."""

from nmtkit.decoding.batched_search import batches_by_tokens


def test_a_batch_fills_max_tokens_exactly_and_counts_eos() -> None:
    for max_tokens, sizes in ((20, [4]), (19, [3, 1]), (15, [3, 1]), (4, [1] * 4)):
        assert [len(batch) for batch in batches_by_tokens([4] * 4, max_tokens)] == sizes


def test_batches_group_similar_lengths_within_their_budget() -> None:
    lengths = [3, 0, 9, 4, 4, 30, 0, 1, 9]
    batches = list(batches_by_tokens(lengths, max_tokens=20))
    assert batches == [[5], [2, 8], [3, 4, 0, 7]]
    assert all(len(batch) == 1 or len(batch) * (lengths[batch[0]] + 1) <= 20 for batch in batches)

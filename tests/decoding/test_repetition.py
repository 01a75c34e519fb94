"""Outputs that repeat themselves are recognized, marked, and with --repetition-guard searched again."""

from collections.abc import Callable

import pytest

from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import EngineConfig, SearchConfig
from nmtkit.decoding.repetition import repeated_ngram
from nmtkit.decoding.translator import Translator


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ([5, 6, 7], [8, 9, 10], False),
        ([5, 6, 7], [8, 8, 9], False),  # twice in a row is no loop
        ([5, 6, 7], [8, 8, 8, 9], True),
        ([5, 5, 5, 6], [8, 8, 8, 9], False),  # very very very
        ([5, 5, 5, 6], [8] * 5, True),
        ([5, 6, 7], [8, 9, 10, 8, 9, 10, 8, 9, 10], True),
        ([5, 6, 7], [8, 9, 10, 8, 9, 11, 8, 9, 12], False),  # with gaps
        ([5, 6], list(range(8, 23)), True),  # longer than 2·S + 10
        ([5, 6], list(range(8, 22)), False),
    ],
)
def test_a_phrase_is_repeated_if_it_occurs_more_often_in_a_row_than_in_the_source(
    source: list[int], output: list[int], expected: bool
) -> None:
    assert bool(repeated_ngram(source, output)) is expected


def test_the_guard_replaces_only_outputs_that_repeat_themselves(make_checkpoint: Callable[..., Checkpoint]) -> None:
    translator = Translator.of([make_checkpoint()], EngineConfig(device="cpu"))
    words = ["the", "dog", "runs", "on", "street", "a", "cat"]
    lines = [" ".join(words[n:] + words[:n] + words[:4]) for n in range(len(words))]
    plain, guarded = (
        [each.candidates[0] for each in translator.stream(lines, SearchConfig(max_len_b=20, repetition_guard=guard))]
        for guard in (False, True)
    )
    assert any(each.repetitive for each in plain)
    assert sum(bool(each.repetitive) for each in guarded) < sum(bool(each.repetitive) for each in plain)
    assert all(one == other for one, other in zip(plain, guarded, strict=True) if not one.repetitive)

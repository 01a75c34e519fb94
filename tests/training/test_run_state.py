"""When a run has come to its end, and the sums between two log lines."""

import operator

import pytest

from nmtkit.training.config import StopConfig
from nmtkit.training.state import RunState, Window


@pytest.mark.parametrize(
    ("stop", "before", "at"),
    [
        (StopConfig(max_updates=5), RunState(update=4), RunState(update=5)),
        (StopConfig(max_epochs=2), RunState(epoch=2, updates_in_epoch=9), RunState(epoch=3)),
        (StopConfig(max_minutes=1.5), RunState(minutes=1.49), RunState(minutes=1.5)),
        (StopConfig(patience=3), RunState(validations_since_best=2), RunState(validations_since_best=3)),
    ],
)
def test_a_run_ends_at_exactly_the_requested_limit(stop: StopConfig, before: RunState, at: RunState) -> None:
    assert before.reason_to_stop(stop, "valid_loss") is None
    assert "--" in (at.reason_to_stop(stop, "valid_loss") or "")


def test_patience_counts_only_the_validations_that_count_and_any_better_one_restarts_it() -> None:
    state, stop = RunState(), StopConfig(patience=2)
    for value, counts in ((3.0, True), (4.0, True), (4.0, False), (2.0, False), (5.0, False), (5.0, True)):
        state.record_validation({"valid_loss": value}, "valid_loss", operator.lt, counts)
        assert state.is_best == (value in (3.0, 2.0))
        assert state.reason_to_stop(stop, "valid_loss") is None
    state.record_validation({"valid_loss": 5.0}, "valid_loss", operator.lt, True)
    assert "--patience 2" in (state.reason_to_stop(stop, "valid_loss") or "")


def test_at_the_start_of_an_epoch_the_last_update_belongs_to_the_previous_epoch() -> None:
    assert RunState().last_epoch == 1
    assert RunState(epoch=3).last_epoch == 2
    assert RunState(epoch=3, updates_in_epoch=1).last_epoch == 3


def test_a_dataset_without_tokens_has_no_loss() -> None:
    window = Window()
    window.add_losses(["news", "web"], [3.0, 0.0], [2, 0])
    assert window.by_dataset() == {
        "train_news_loss": 1.5,
        "train_news_tokens": 2,
        "train_web_loss": None,
        "train_web_tokens": 0,
    }

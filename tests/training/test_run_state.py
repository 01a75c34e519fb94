"""When a run has come to its end."""

import pytest

from nmtkit.training.config import StopConfig
from nmtkit.training.state import RunState


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


def test_at_the_start_of_an_epoch_the_last_update_belongs_to_the_previous_epoch() -> None:
    assert RunState().last_epoch == 1
    assert RunState(epoch=3).last_epoch == 2
    assert RunState(epoch=3, updates_in_epoch=1).last_epoch == 3

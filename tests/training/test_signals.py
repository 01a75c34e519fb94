"""Signals between two updates."""

import os
import signal
from collections.abc import Iterator

import pytest

from nmtkit.training.signals import Signals


@pytest.fixture
def ignored_sigint() -> Iterator[None]:
    """SIGINT as a shell leaves it to a job in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_ignored_by_the_parent_stays_ignored(ignored_sigint: None) -> None:
    with Signals(second_kills=True, is_main=False) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.stop == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stop == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

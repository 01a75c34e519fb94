"""Signals between two updates."""

import os
import signal
from collections.abc import Iterator

import pytest

from nmtkit.training.interruption import Signals, agreed_stop


@pytest.fixture
def ignored_sigint() -> Iterator[None]:
    """SIGINT as a shell leaves it to a job in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_ranks_that_noted_several_signals_stop_by_the_same_one() -> None:
    assert agreed_stop([0, signal.SIGPIPE, signal.SIGINT]) == signal.SIGINT
    assert agreed_stop([signal.SIGPIPE, signal.SIGTERM, signal.SIGINT]) == signal.SIGTERM
    assert agreed_stop([0, 0]) == 0


def test_a_signal_ignored_by_the_parent_stays_ignored(ignored_sigint: None) -> None:
    with Signals(second_kills=True, is_main=False) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.stop == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stop == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_second_hangup_lets_the_run_save_too(capfd: pytest.CaptureFixture[str]) -> None:
    """A closed terminal sends SIGHUP more than once: a shell sends it to its jobs, then the system."""
    with Signals(second_kills=True, is_main=True) as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signals.stop == signal.SIGHUP
    assert capfd.readouterr().err == "SIGHUP: finishing and saving this update first\n"

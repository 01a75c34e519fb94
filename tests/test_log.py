"""Messages and progress: on stderr only, in the form that was asked for."""

import fcntl
import json
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest
from patience import PATIENCE

from nmtkit import log
from nmtkit.log import LogConfig, Progress, configure, logger, report

NUMBERS = {"update": 1_000_000, "loss": 4.321987, "lr": 0.00012345, "tokens_per_second": 43210.9, "skipped": None}


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Leave logging as a library that nobody configured has it."""
    yield
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    log._style = "off"


def written(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What went to stderr, line by line; nothing may have gone to stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_auto_is_plain_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig())
    logger.info("reading")
    logger.warning("line 3 was cut")
    first, second = written(capsys)
    assert re.fullmatch(r"\d\d:\d\d:\d\d reading", first)
    assert second.endswith(" warning: line 3 was cut")


def test_numbers_are_shown_short_and_absent_ones_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig())
    report("train", NUMBERS)
    (line,) = written(capsys)
    assert line[9:] == "train | update 1,000,000 | loss 4.322 | lr 0.000123 | tokens_per_second 43,211"


def test_json_lines_carry_the_exact_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(log_format="json"))
    report("train", NUMBERS)
    logger.warning("é was\ncut")
    first, second = [json.loads(line) for line in written(capsys)]
    assert {key: first[key] for key in ("event", *NUMBERS)} == {"event": "train", **NUMBERS}
    assert second["event"] == "warning"
    assert second["message"] == "é was\ncut"
    assert first["time"] <= second["time"]


def test_quiet_leaves_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(quiet=True))
    report("train", NUMBERS)
    logger.info("reading")
    logger.error("broken")
    assert [line[9:] for line in written(capsys)] == ["error: broken"]


def test_only_the_main_process_talks(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(), is_main=False)
    logger.info("reading")
    logger.warning("cut")
    with Progress("reading", total=10) as progress:
        progress.advance(5)
    assert written(capsys) == []


def test_progress_elsewhere_is_a_line_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 100.0
    monkeypatch.setattr("nmtkit.log.time.monotonic", lambda: clock)
    configure(LogConfig(log_format="plain"))
    with Progress("reading", total=1000, unit="lines", done=50) as progress:
        for _ in range(40):
            clock += 1
            progress.advance(10)
    lines = [line[9:] for line in written(capsys)]
    assert lines == [f"reading | lines {50 + 100 * n} | of 1000 | per_second 10" for n in (1, 2, 3, 4)]


def test_an_unconfigured_library_keeps_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("reading", total=10) as progress:
        progress.advance(10)
    assert written(capsys) == []


BAR = """
import time
from nmtkit.log import LogConfig, Progress, configure, logger
configure(LogConfig())
with Progress("reading", total=4, unit="lines") as progress:
    for number in range(4):
        time.sleep(0.11)
        progress.advance(note=f"note {number}")
    logger.info("a message beside the bar")
"""


def test_on_a_terminal_there_is_a_bar_on_stderr_and_messages_stand_above_it() -> None:
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    done = subprocess.run(
        [sys.executable, "-c", BAR], stdout=subprocess.PIPE, stderr=its_end, timeout=PATIENCE, check=True
    )
    os.close(its_end)
    shown = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert done.stdout == b""
    assert "reading: 100%" in shown
    assert re.search(r"(\r|\n) *\d\d:\d\d:\d\d a message beside the bar\r\n", shown)

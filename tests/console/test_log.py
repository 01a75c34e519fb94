"""Messages and progress: on stderr only, in the form that was asked for."""

import json
import logging
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENCE
from repository import BIN
from terminals import on_terminal

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.console import log
from nmtkit.console.log import LogConfig, Progress, configure, logger, report, write_error

NUMBERS = {"update": 1_000_000, "loss": 4.321987, "lr": 0.00012345, "tokens_per_second": 43210.9, "skipped": None}


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Leave logging as a library that nobody configured has it."""
    yield
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    log._has_bar, log._config = False, None


def written(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What went to stderr, line by line; nothing may have gone to stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_auto_format_is_plain_if_stderr_is_not_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig())
    logger.info("reading")
    logger.warning("line 3 was cut")
    first, second = written(capsys)
    assert re.fullmatch(r"\d\d:\d\d:\d\d reading", first)
    assert second.endswith(" warning: line 3 was cut")


def test_numbers_are_abbreviated_and_missing_ones_omitted(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_middle_of_a_very_long_message_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(log_format="plain"))
    logger.warning("start %s end", "x" * 1_000_000)
    write_error("nmt-train", f"start {'x' * 1_000_000} end")
    for line in written(capsys):
        assert "start xxx" in line
        assert line.endswith("xxx end")
        assert len(line) < 11_000


def test_an_unconfigured_library_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("reading", total=10) as progress:
        progress.advance(10)
    assert written(capsys) == []


def test_quiet_leaves_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(quiet=True))
    report("train", NUMBERS)
    logger.info("reading")
    logger.error("broken")
    assert [line[9:] for line in written(capsys)] == ["error: broken"]


def test_progress_without_a_terminal_is_a_line_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 100.0
    monkeypatch.setattr("nmtkit.console.log.time.monotonic", lambda: clock)
    configure(LogConfig(log_format="plain"))
    with Progress("reading", total=1000, unit="lines", done=50) as progress:
        for _ in range(40):
            clock += 1
            progress.advance(10)
    lines = [line[9:] for line in written(capsys)]
    assert lines == [f"reading | lines {50 + 100 * n} | of 1000 | per_second 10" for n in (1, 2, 3, 4)]


LOST_READER = """
import threading
from nmtkit.console.log import LogConfig, Progress, configure, logger, on_broken_pipe
configure(LogConfig(log_format="bar"))
with on_broken_pipe(lambda: print("noticed")), Progress("reading", total=4):
    other = threading.Thread(target=logger.info, args=("reading",))
    other.start()
    other.join()
"""


def test_other_threads_can_log_after_a_bar_has_lost_its_reader() -> None:
    reader, stderr = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", LOST_READER], stdout=subprocess.PIPE, stderr=stderr, timeout=PATIENCE)
    os.close(stderr)
    assert set(done.stdout.split()) == {b"noticed"}


BAR = """
import time
from nmtkit.console.log import LogConfig, Progress, configure, logger
configure(LogConfig())
with Progress("reading", total=4, unit="lines") as progress:
    for number in range(4):
        time.sleep(0.11)
        progress.advance(note=f"note {number}")
    logger.info("a message beside the bar")
"""


def test_a_terminal_shows_a_bar_on_stderr_and_messages_on_lines_of_their_own() -> None:
    shown = on_terminal(("-c", BAR))
    assert shown.code == 0
    assert shown.stdout == b""
    assert "reading: 100%" in shown.text
    assert re.search(r"^ *\d\d:\d\d:\d\d a message beside the bar$", shown.text, re.MULTILINE)


# Text from outside

HOSTILE = "e\x1b]0;owned\x07\n12:00:00 done\r\x9b2J\u202en"
SHOWN = r"e\x1b]0;owned\x07\n12:00:00 done\r\x9b2J\u202en"


def test_a_message_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(log_format="plain"))
    logger.warning("language %s", HOSTILE)
    report("encoded", {HOSTILE: HOSTILE})
    first, second = written(capsys)
    assert first.endswith(f" warning: language {SHOWN}")
    assert second.endswith(f" encoded | {SHOWN} {SHOWN}")
    configure(LogConfig(log_format="json"))
    report("encoded", {HOSTILE: HOSTILE})
    (line,) = written(capsys)
    assert (line.isprintable(), json.loads(line)[HOSTILE]) == (True, HOSTILE)


def run_with_hostile(code: str) -> "subprocess.CompletedProcess[str]":
    setup = f"import sys, threading, warnings; from nmtkit.console import log; HOSTILE = {HOSTILE!r}; "
    command = [sys.executable, "-c", f"{setup}log.escape_python_messages(); {code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("raise ValueError(HOSTILE.replace(chr(10), ''))", 1),
        ("t = threading.Thread(target=int, args=(HOSTILE,)); t.start(); t.join()", 0),
        ("warnings.warn(HOSTILE.replace(chr(10), ''))", 0),
    ],
)
def test_tracebacks_and_warnings_of_python_have_no_control_characters(code: str, exit_code: int) -> None:
    done = run_with_hostile(code)
    assert done.returncode == exit_code
    assert "owned" in done.stderr
    assert done.stderr.endswith("\n")
    assert all(line.isprintable() for line in done.stderr.split("\n"))


def test_a_bar_escapes_control_characters_in_title_and_note() -> None:
    code = f"""
        from nmtkit.console.log import LogConfig, Progress, configure, logger
        configure(LogConfig(log_format="bar"))
        with Progress({HOSTILE!r}, total=2) as progress:
            progress.advance(note={HOSTILE!r})
            logger.info({HOSTILE!r})
    """
    shown = on_terminal(("-c", textwrap.dedent(code)), columns=200)
    assert shown.code == 0
    assert shown.text.count(SHOWN) >= 3
    assert not {"\x07", "\x9b", "\u202e"} & set(shown.terminal)
    assert "\x1b]" not in shown.terminal


def test_a_checkpoint_of_a_hostile_language_is_refused_in_printable_lines(
    make_checkpoint: Callable[..., Checkpoint], datasets: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = replace(make_checkpoint(), source_language=HOSTILE)
    save_checkpoint(tmp_path / "hostile.pt", checkpoint)
    arguments = [datasets["joined"], "--checkpoint", tmp_path / "hostile.pt", "--debug"]
    shown = on_terminal((BIN / "nmt-generate", *arguments))
    assert shown.code == 2
    last = shown.text.split("\n")[-2]
    assert last.startswith("nmt-generate: ")
    assert "hostile.pt: damaged, or not an nmtkit checkpoint" in last
    assert all(line.isprintable() for line in shown.text.split("\n"))

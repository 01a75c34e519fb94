"""Logging and progress of the commands, always on stderr, because stdout is for results."""

import contextlib
import json
import logging
import math
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nmtkit.config import Config, option
from nmtkit.console import terminal
from nmtkit.wording import escaped, escaped_json, format_value, shortened

logger = logging.getLogger("nmtkit")

SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_REFRESHES = 0.5  # for a line that counts seconds
_MANY = 10_000  # totals from here on are shortened in a bar: 16.0k
_BAR_WITH_NOTES = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"


@dataclass(frozen=True)
class LogConfig(Config):
    heading: ClassVar[str] = "Messages (on stderr)"

    log_format: str = option(
        "auto",
        choices=("auto", "bar", "plain", "json"),
        help="Progress format. auto: a bar on a terminal, else plain lines.",
    )
    quiet: bool = option(False, help="Show warnings and errors only.")


def write_line(line: str) -> None:
    """Write one line to stderr, above any progress bar, with control characters escaped.

    All output on stderr goes through this module, so no file name, language, piece or option value can control a
    terminal or forge a line of output.
    """
    _write(escaped(line))


def write_error(name: str, message: str) -> None:
    """Write the error message of the command `name` in one line."""
    message = shortened(message)
    parts = (f"{name}: ", "bold red"), (message, "")
    _write(terminal.styled_line(*parts) if styled() else escaped(f"{name}: {message}"))


def write_table(table: terminal.Table) -> None:
    """Show a table on a styled terminal. Otherwise, and with --quiet, do nothing, as log lines contain its numbers."""
    if styled() and logger.isEnabledFor(logging.INFO):
        _write(terminal.styled_table(table, terminal.width(sys.stderr)))


def write_result(table: terminal.Table, lines: Sequence[str]) -> None:
    """Write the lines of a result to stderr, even with --quiet. On a styled terminal, write `table` first."""
    if styled():
        _write(terminal.styled_table(table, terminal.width(sys.stderr)))
    for line in lines:
        write_line(line)


def write_traceback(error: BaseException) -> None:
    """Write the traceback of an error to stderr."""
    _write_lines("".join(traceback.format_exception(error)))


def _write(text: str) -> None:
    """Write text above any progress bar. It must have no control characters except styles from `terminal`."""
    if "tqdm" in sys.modules:  # otherwise there is no progress bar
        sys.modules["tqdm"].tqdm.write(text, file=_stderr)
    else:
        print(text, file=_stderr, flush=True)
    _stderr.check_reader()


class LostReader(Exception):  # noqa: N818 (not an error)
    """Raised if stderr has lost its reader. It is not an OSError, which would look like an error of a written file."""


_on_broken_pipe: Callable[[], None] | None = None


@contextlib.contextmanager
def on_broken_pipe(action: Callable[[], None]) -> Iterator[None]:
    """Within this context, call `action` instead of raising LostReader if stderr has lost its reader."""
    global _on_broken_pipe
    _on_broken_pipe = action
    try:
        yield
    finally:
        _on_broken_pipe = None


class _Stderr:
    """Wraps stderr and hides errors. An error inside tqdm would leave its lock held and block all threads.

    A full disk or a closed terminal must not end a long run. If the reader is lost, `check_reader` raises LostReader.
    """

    def __init__(self) -> None:
        self._is_lost = False

    def write(self, text: str) -> int:
        self._try(lambda: sys.stderr.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(sys.stderr.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BrokenPipeError:
            self._is_lost = True
        except OSError:
            pass

    def check_reader(self) -> None:
        """If output since the last check had no reader, call the action of `on_broken_pipe`, or raise LostReader."""
        if not self._is_lost:
            return
        self._is_lost = False
        if _on_broken_pipe is None:
            raise LostReader  # the command ends without a message
        _on_broken_pipe()


_stderr = _Stderr()


def escape_python_messages() -> None:
    """Route Python's warnings and the tracebacks of unhandled errors through `write_line`."""
    warnings.showwarning = lambda message, category, filename, lineno, *_: _write_lines(
        warnings.formatwarning(message, category, filename, lineno)
    )
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = lambda kind, error, trace: write_traceback(error)
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda unhandled: write_traceback(unhandled.exc_value or unhandled.exc_type())


def _write_lines(text: str) -> None:
    for line in text.removesuffix("\n").split("\n"):
        write_line(line)


class _Handler(logging.Handler):
    """Writes log records to stderr: as JSON lines, styled, or as plain text."""

    def emit(self, record: logging.LogRecord) -> None:
        _write(self._format(record))

    def _format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        message = record.getMessage() if event else shortened(record.getMessage())
        if _config is not None and _config.log_format == "json":
            values = event or {"event": record.levelname.lower(), "message": message}
            return to_json({"time": round(record.created, 3), **values})
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno < logging.WARNING else record.levelname.lower()
        if not styled():
            return escaped(f"{clock} {f'{level}: ' if level else ''}{message}")
        columns = terminal.width(sys.stderr)
        if table := getattr(record, "table", None):
            return terminal.styled_table(table, columns)
        if event:
            return terminal.styled_event(clock, event["event"], _present(event), columns)
        colour = "yellow" if level == "warning" else "bold red"
        return terminal.styled_line((f"{clock} ", "dim"), (f"{level}: " if level else "", colour), (message, ""))


def configure(config: LogConfig, is_main: bool = True) -> None:
    """Configure the logging of a command. A process that is not the main one (`is_main`) logs only errors."""
    global _has_bar, _config
    _config = config
    wants_bar = config.log_format == "bar" or (config.log_format == "auto" and sys.stderr.isatty())
    _has_bar = wants_bar and is_main and not config.quiet
    logger.handlers = [_Handler()]
    logger.propagate = False
    logger.setLevel(logging.ERROR if not is_main else logging.WARNING if config.quiet else logging.INFO)


def finite_or_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with NaN and infinities replaced with None, which JSON can represent."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def to_json(values: Mapping[str, Any]) -> str:
    """Format values as one line of JSON, with control characters escaped and null for numbers that are not finite."""
    return escaped_json(json.dumps(finite_or_none(values), ensure_ascii=False))


_has_bar = False  # used as a library, nmtkit is silent
_config: LogConfig | None = None


def config() -> LogConfig | None:
    """Return the active configuration, to pass it to worker processes; None before `configure`."""
    return _config


def styled() -> bool:
    """Whether messages are styled: on a terminal that supports it, unless --log-format disables it."""
    wanted = _config is None or _config.log_format in ("auto", "bar")
    return wanted and terminal.is_styled(sys.stderr)


def report(event: str, values: Mapping[str, Any], table: str = "", next: str = "") -> None:
    """Log an event with its values: `update 100 | loss 4.32 | …`, or a JSON object with `--log-format json`. If `table`
    is a title, a terminal shows the values as a table, above the command to run `next`."""
    event_values = {"event": event, **values}
    present = _present(event_values)
    text = " | ".join([event, *(f"{key} {format_value(value)}" for key, value in present.items())])
    shown = terminal.Table(table, list(present.items()), next=next) if table else None
    logger.info(text, extra={"event": event_values, "table": shown})


def _present(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if value is not None and key != "event"}


class Report:
    """Rows with a label and a text, shown as log lines `label: text`, or on a terminal as a table at the end."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._rows: list[tuple[str, str]] = []

    def add(self, label: str, text: str, plain: bool = True) -> None:
        """Add a row; with `plain=False`, only to the table."""
        if styled():
            self._rows.append((label, text))
        elif plain:
            logger.info("%s: %s", label, text)

    def show(self, next: str = "") -> None:
        """Show the rows that are not shown yet. `next` is the command to run next."""
        if next and not styled():
            logger.info("next: %s", next)
        if self._rows:
            write_table(terminal.Table(self.title, self._rows, next=next))
        self._rows = []


@contextlib.contextmanager
def working(title: str) -> Iterator[None]:
    """Show the title and the elapsed time of work of unknown length, on a terminal."""
    if not _shows_steps():
        yield
        return
    bar = _bar(title, bar_format="{desc} {elapsed}", leave=False)
    done = threading.Event()

    def refresh() -> None:
        while not done.wait(_SECONDS_BETWEEN_REFRESHES):
            bar.refresh()

    thread = threading.Thread(target=refresh, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        bar.close()
        _stderr.check_reader()


def _shows_steps() -> bool:
    """Whether steps are shown below the bar of longer work, which needs a terminal that can move the cursor."""
    return _has_bar and terminal.moves_cursor(sys.stderr)


def _bar(title: str, **settings: Any) -> Any:
    """Create a tqdm bar on stderr. Callers check the reader after each use."""
    from tqdm import tqdm  # imported late to keep start-up fast

    return tqdm(desc=escaped(title), file=_stderr, dynamic_ncols=True, **settings)


class Progress:
    """Shows the progress of long work as a bar on a terminal, otherwise as a line every few seconds.

    with Progress("encoding", total=lines, unit="lines") as progress:
        progress.advance(1000)
    """

    def __init__(
        self,
        title: str,
        total: int | None = None,
        unit: str = "lines",
        done: int = 0,
        within: bool = False,
        notes: bool = False,
    ) -> None:
        """Start at `done` of `total` units.

        The bar of a part `within` longer work disappears when it is done. With `notes`, notes of the caller replace
        speed and time left. In both cases, only a bar is shown, as callers log their own lines.
        """
        self.lines = not (within or notes)
        self.title, self.total, self.unit, self.done = title, total, unit, done
        self.start = self.last_line = time.monotonic()
        self.at_start = done
        self._bar: Any = None
        if _shows_steps() if within else _has_bar:
            self._bar = _bar(
                title,
                total=total,
                unit=f" {unit}",
                initial=done,
                unit_scale=total is None or total >= _MANY,
                leave=not within,
                bar_format=_BAR_WITH_NOTES if notes else None,
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()
            _stderr.check_reader()

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more units as done, and show `note` next to the bar."""
        self.done += count
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(escaped(note), refresh=False)
            self._bar.update(count)
            _stderr.check_reader()
        elif self.lines and time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            rate = (self.done - self.at_start) / (self.last_line - self.start)
            report(self.title, {self.unit: self.done, "of": self.total, "per_second": round(rate, 2)})

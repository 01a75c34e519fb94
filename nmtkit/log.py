"""What the commands say while they work. Everything goes to stderr: stdout carries results only."""

import json
import logging
import math
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, TextIO

from nmtkit.config import Config, option
from nmtkit.wording import escaped, escaped_json

logger = logging.getLogger("nmtkit")

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class LogConfig(Config):
    heading: ClassVar[str] = "Messages (on stderr)"

    log_format: str = option(
        "auto",
        choices=("auto", "bar", "plain", "json"),
        help="How progress is shown; auto: a bar on a terminal, plain lines elsewhere.",
    )
    quiet: bool = option(False, help="Show warnings and errors only.")


def say(line: str) -> None:
    """Write one line to stderr, above a progress bar if there is one, with its control characters escaped.

    Everything that a command writes to stderr goes through here, so that no file name, language, piece or option value
    can control a terminal or pass for a line of its own.
    """
    if "tqdm" in sys.modules:  # only then can a bar be on the screen
        sys.modules["tqdm"].tqdm.write(escaped(line), file=sys.stderr)
    else:
        print(escaped(line), file=sys.stderr, flush=True)


def say_traceback(error: BaseException) -> None:
    """Write the traceback of an error to stderr."""
    _say_lines("".join(traceback.format_exception(error)))


def escape_python_messages() -> None:
    """Write Python's own messages by `say`: warnings, and the tracebacks of errors that nobody handles."""
    warnings.showwarning = _say_warning
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _say_unhandled
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda unhandled: say_traceback(unhandled.exc_value or unhandled.exc_type())


def _say_unhandled(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    say_traceback(error)


def _say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _say_lines(warnings.formatwarning(message, category, filename, lineno, line))


def _say_lines(text: str) -> None:
    for line in text.removesuffix("\n").split("\n"):
        say(line)


class _Handler(logging.Handler):
    """Writes messages to stderr, as lines of text or of JSON."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self.as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if self.as_json:
            values = event or {"event": record.levelname.lower(), "message": record.getMessage()}
            line = to_json({"time": round(record.created, 3), **values})
        else:
            clock = time.strftime("%H:%M:%S", time.localtime(record.created))
            prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
            line = f"{clock} {prefix}{record.getMessage()}"
        try:
            say(line)
        except BrokenPipeError:
            raise  # the reader has gone, and with it the wish for the rest
        except OSError:
            pass  # a full disk below the log, or a terminal that is gone, is no reason to end a run of days


def configure(config: LogConfig, is_main: bool = True) -> None:
    """Set up the messages of a command; every process but the main one shows only errors."""
    global _style, _config
    _config = config
    _style = config.log_format
    if _style == "auto":
        _style = "bar" if sys.stderr.isatty() else "plain"
    logger.handlers = [_Handler(as_json=_style == "json")]
    logger.propagate = False
    if not is_main:
        logger.setLevel(logging.ERROR)
        _style = "off"
    else:
        logger.setLevel(logging.WARNING if config.quiet else logging.INFO)
        _style = "off" if config.quiet and _style != "json" else _style


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with None for each number that is not finite, of which JSON has none."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def to_json(values: Mapping[str, Any]) -> str:
    """One JSON object on one line, its control characters escaped; null for a number that is not finite."""
    return escaped_json(json.dumps(finite(values), ensure_ascii=False))


_style = "off"  # a library that nobody configured keeps quiet
_config: LogConfig | None = None


def config() -> LogConfig | None:
    """What `configure` was given, for other processes of the command; None in a library that nobody configured."""
    return _config


def report(event: str, values: Mapping[str, Any]) -> None:
    """Log one set of numbers: `update 100 | loss 4.32 | …`, or one JSON object with `--log-format json`."""
    text = " | ".join([event, *(f"{key} {_short(value)}" for key, value in values.items() if value is not None)])
    logger.info(text, extra={"event": {"event": event, **values}})


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.3g}"


class Progress:
    """How far long work has come: a bar on a terminal, a line every few seconds elsewhere.

    with Progress("encoding", total=lines, unit="lines") as progress:
        progress.advance(1000)
    """

    def __init__(
        self, title: str, total: int | None = None, unit: str = "lines", done: int = 0, lines: bool = True
    ) -> None:
        """`done` units have been done before; without `lines` only a bar is shown, as the work logs lines itself."""
        self.lines = lines
        self.title, self.total, self.unit, self.done = title, total, unit, done
        self.start = self.last_line = time.monotonic()
        self.at_start = done
        self._bar: Any = None
        if _style == "bar":
            from tqdm import tqdm  # only where a bar is drawn: start-up stays light

            self._bar = tqdm(
                desc=escaped(title), total=total, unit=f" {unit}", initial=done, file=sys.stderr, unit_scale=True
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more units as done; `note` is shown beside the bar."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
            if note:
                self._bar.set_postfix_str(escaped(note), refresh=False)
        elif self.lines and _style != "off" and time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            rate = (self.done - self.at_start) / (self.last_line - self.start)
            report(self.title, {self.unit: self.done, "of": self.total, "per_second": round(rate, 2)})

"""Logging and progress of the commands. All of it goes to stderr: stdout is for results."""

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


def write_line(line: str) -> None:
    """Write one line to stderr, above any progress bar, with control characters escaped.

    All output on stderr goes through this function. So no file name, language, piece or option value can control a
    terminal or forge a line of output.
    """
    if "tqdm" in sys.modules:  # otherwise there is no progress bar
        sys.modules["tqdm"].tqdm.write(escaped(line), file=sys.stderr)
    else:
        print(escaped(line), file=sys.stderr, flush=True)


def write_traceback(error: BaseException) -> None:
    """Write the traceback of an error to stderr."""
    _write_lines("".join(traceback.format_exception(error)))


def escape_python_messages() -> None:
    """Route Python's warnings and the tracebacks of unhandled errors through `write_line`."""
    warnings.showwarning = _write_warning
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _write_unhandled
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda unhandled: write_traceback(unhandled.exc_value or unhandled.exc_type())


def _write_unhandled(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    write_traceback(error)


def _write_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _write_lines(warnings.formatwarning(message, category, filename, lineno, line))


def _write_lines(text: str) -> None:
    for line in text.removesuffix("\n").split("\n"):
        write_line(line)


class _Handler(logging.Handler):
    """Writes log records to stderr, as plain text or as JSON lines."""

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
            write_line(line)
        except BrokenPipeError:
            raise  # nobody reads the output any more: the command ends quietly
        except OSError:
            pass  # a full disk or a closed terminal must not end a long run


def configure(config: LogConfig, is_main: bool = True) -> None:
    """Configure the logging of a command. Processes other than the main one log only errors."""
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


def finite_or_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinities by None, since JSON has no such numbers."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def to_json(values: Mapping[str, Any]) -> str:
    """Format values as one line of JSON, with control characters escaped and null for numbers that are not finite."""
    return escaped_json(json.dumps(finite_or_none(values), ensure_ascii=False))


_style = "off"  # an unconfigured library is silent
_config: LogConfig | None = None


def config() -> LogConfig | None:
    """The active configuration, to pass on to worker processes; None before `configure`."""
    return _config


def report(event: str, values: Mapping[str, Any]) -> None:
    """Log an event with its values: `update 100 | loss 4.32 | …`, or a JSON object with `--log-format json`."""
    text = " | ".join([event, *(f"{key} {_format_value(value)}" for key, value in values.items() if value is not None)])
    logger.info(text, extra={"event": {"event": event, **values}})


def _format_value(value: Any) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.3g}"


class Progress:
    """Shows the progress of long work: a bar on a terminal, otherwise a line every few seconds.

    with Progress("encoding", total=lines, unit="lines") as progress:
        progress.advance(1000)
    """

    def __init__(
        self, title: str, total: int | None = None, unit: str = "lines", done: int = 0, lines: bool = True
    ) -> None:
        """Start at `done` of `total` units. With `lines=False` only a bar is shown, for callers that log lines."""
        self.lines = lines
        self.title, self.total, self.unit, self.done = title, total, unit, done
        self.start = self.last_line = time.monotonic()
        self.at_start = done
        self._bar: Any = None
        if _style == "bar":
            from tqdm import tqdm  # deferred to keep start-up fast

            self._bar = tqdm(
                desc=escaped(title), total=total, unit=f" {unit}", initial=done, file=sys.stderr, unit_scale=True
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more units as done, and show `note` beside the bar."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
            if note:
                self._bar.set_postfix_str(escaped(note), refresh=False)
        elif self.lines and _style != "off" and time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            rate = (self.done - self.at_start) / (self.last_line - self.start)
            report(self.title, {self.unit: self.done, "of": self.total, "per_second": round(rate, 2)})

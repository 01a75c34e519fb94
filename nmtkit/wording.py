"""Formats parts of messages: escapes, counts, sizes and suggestions."""

import difflib
import re
import reprlib
from collections.abc import Iterable
from itertools import takewhile

_SIMILARITY = 0.75  # difflib's default, 0.6, suggests --split for --path
_LONGEST_QUOTATION = 60  # characters
_LONGEST_MESSAGE = 10_000  # characters, enough for two of the longest file names

# C0, DEL and C1 control characters, line and paragraph separators, bidirectional controls, and lone surrogates, which
# cannot be encoded.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""Escape control characters as in Python strings (`\n`, `\x1b`, `\u202e`), for output to a terminal."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shortened(message: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Remove the middle of a very long message, such as one that quotes a file."""
    if len(message) <= longest:
        return message
    half = longest // 2
    return f"{message[:half]} … {message[-half:]}"


def quoted(value: object) -> str:
    """Format a value for a message, shortened. It may be nested too deeply for `repr`."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = _LONGEST_QUOTATION
    return shortened(brief.repr(value), _LONGEST_QUOTATION)


def first_line(error: BaseException) -> str:
    """Return the first non-blank line of an error's message, and lines that it announces with a final colon. Without
    such a line, return the name of the error's class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    announcing = len(list(takewhile(lambda line: line.endswith(":"), lines)))
    return " ".join(lines[: announcing + 1]) or type(error).__name__


def escaped_json(text: str) -> str:
    r"""Escape all control characters of a JSON text (`\u009b`); `json.dumps` escapes only some."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun, which is given in the singular: no lines, 1 line, 2 lines."""
    return f"{count or 'no'} {noun if count == 1 else plural or noun + 's'}"


def format_bytes(count: float) -> str:
    """Format a number of bytes, such as 95 MB or 1.2 GB."""
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{_three_digits(count / unit)} {name}"


def in_millions(count: int) -> str:
    """Format a number of parameters, such as 9876 or 62.9 M."""
    return f"{_three_digits(count / 1e6)} M" if count >= 10_000 else str(count)


def format_value(value: object) -> str:
    """Format a value for a log line. Numbers have few digits, such as 4.322, 43,211 or 1.23e-05."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:.3g}"


def _three_digits(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


def describe_unknown_version(name: str, version: object, newest: int) -> str:
    """Return the error message for a file of an unsupported version; `newest` is the newest supported one."""
    is_newer = isinstance(version, int) and version > newest
    remedy = "use a newer nmtkit" if is_newer else "the file is damaged"
    return f"it has {name} version {quoted(version)}, this nmtkit reads up to {newest}: {remedy}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest known words that are similar to an unknown one, to append to an error; "" if there are none."""
    similar = difflib.get_close_matches(word, list(known), cutoff=_SIMILARITY)
    return f" Did you mean {' or '.join(similar)}?" if similar else ""

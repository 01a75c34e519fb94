"""Parses JSON from files and requests, without the ambiguities that Python's parser accepts."""

import json
from typing import Any

from nmtkit.wording import quoted


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError also for duplicate keys, too many digits in an integer, and too deep nesting."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicate_keys, parse_int=_to_int)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_count(value: object) -> int:
    """Return a parsed value that is an integer from 0 to 2**63 - 1. Raises ValueError for any other value."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{quoted(value)} is not a count")
    return value


def parse_text(value: object) -> str:
    """Return a parsed value that is a string. Raises ValueError for any other value."""
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} is not a text")
    return value


def _to_int(digits: str) -> int:
    try:
        return int(digits)
    except ValueError as error:  # beyond Python's limit
        raise ValueError(f"a number of {len(digits)} digits is too long") from error


def _without_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"{key[:40]!r} is given twice")
        values[key] = value
    return values

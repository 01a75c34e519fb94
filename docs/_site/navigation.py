"""Patterns in the navigation: new pages appear without being named there."""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any


def expand(navigation: Sequence[Any], pages: Iterable[str]) -> list[Any]:
    """Replace each pattern, an entry such as `how-to/*.md`, by the pages that it matches, in alphabetical order.

    A page belongs to the longest pattern that matches it, and to none if another entry names it. Patterns without a
    page and empty sections are removed.
    """
    entries = list(_entries(navigation))
    matched: dict[str, list[str]] = {}
    for page in sorted(set(pages).difference(entries)):
        if patterns := [entry for entry in entries if _matches(page, entry)]:
            matched.setdefault(max(patterns, key=len), []).append(page)
    return _expanded(navigation, matched)


def _entries(navigation: Sequence[Any]) -> Iterator[str]:
    """All pages and patterns of a navigation."""
    for entry in navigation:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from [value] if isinstance(value, str) else _entries(value)


def _matches(page: str, pattern: str) -> bool:
    return fnmatchcase(page, pattern) and page.count("/") == pattern.count("/")


def _expanded(navigation: Sequence[Any], matched: dict[str, list[str]]) -> list[Any]:
    result: list[Any] = []
    for entry in navigation:
        if isinstance(entry, str):
            result += matched.get(entry, []) if "*" in entry else [entry]
            continue
        ((title, value),) = entry.items()
        value = value if isinstance(value, str) else _expanded(value, matched)
        if value:
            result.append({title: value})
    return result

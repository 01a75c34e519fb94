"""The place of this process among those of a run, from the environment variables of torchrun."""

import os
import re
from typing import NamedTuple

from nmtkit.errors import UserError

_LARGEST = 10**9 - 1
_ADVICE = "start with torchrun, or unset the variable"


class Place(NamedTuple):
    """The `rank` among all `size` processes, and the `local_rank` among the `local_size` on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def place_of_process() -> Place:
    """The place that torchrun gave to this process.

    Without WORLD_SIZE, or with WORLD_SIZE=1, the process is alone, and a valid RANK is ignored. Raises UserError for a
    variable that is missing or malformed.
    """
    size = _number("WORLD_SIZE", 1, least=1)
    local_size = _number("LOCAL_WORLD_SIZE", 1, least=1)
    if size == 1:
        _number("RANK", 0)
        _number("LOCAL_RANK", 0)
        return Place()
    rank = _number("RANK", None, most=size - 1)
    local_rank = _number("LOCAL_RANK", 0, most=local_size - 1 if "LOCAL_WORLD_SIZE" in os.environ else _LARGEST)
    if not os.environ.get("MASTER_ADDR"):
        raise UserError(f"WORLD_SIZE={size} without MASTER_ADDR: {_ADVICE}")
    _number("MASTER_PORT", None, least=1, most=65535)
    return Place(rank, size, local_rank, local_size)


def place_or_alone() -> Place:
    """As `place_of_process`, for code that does not start a run: a process with malformed variables is alone."""
    try:
        return place_of_process()
    except UserError:
        return Place()


def _number(name: str, default: int | None, least: int = 0, most: int = _LARGEST) -> int:
    """The number in an environment variable; UserError if it is out of range, or missing without a `default`."""
    text = os.environ.get(name)
    if text is None:
        if default is None:
            raise UserError(f"WORLD_SIZE={os.environ['WORLD_SIZE']} without {name}: {_ADVICE}")
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise UserError(f"{name}={text} is not a number from {least} to {most}: {_ADVICE}")
    return int(text)

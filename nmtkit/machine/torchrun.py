"""The rank of this process in a run, from the environment variables of torchrun."""

import os
from typing import NamedTuple

from nmtkit.errors import UserError

_ADVICE = "start with torchrun, or unset the variable"


class Place(NamedTuple):
    """The `rank` among all `size` processes, and the `local_rank` among `local_size` on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def place_of_process() -> Place:
    """Read the place that torchrun gave to this process; alone without WORLD_SIZE. Raises UserError."""
    size = _number("WORLD_SIZE", 1, least=1)
    if size == 1:
        return Place()
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise UserError(f"WORLD_SIZE={size} without {name}: {_ADVICE}")
    local_size = _number("LOCAL_WORLD_SIZE", 1, least=1)
    return Place(_number("RANK", 0, most=size - 1), size, _number("LOCAL_RANK", 0), local_size)


def place_or_alone() -> Place:
    """Read the place of this process; alone if variables are malformed. Use this in code that does not start a run."""
    try:
        return place_of_process()
    except UserError:
        return Place()


def _number(name: str, default: int, least: int = 0, most: int = 10**6) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UserError(f"{name}={text} is not a number from {least} to {most}: {_ADVICE}")
    return int(text)

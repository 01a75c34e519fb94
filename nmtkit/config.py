"""Options declared as dataclass fields, each with its name, type, default, range and help.

Commands turn the fields into flags (`nmtkit.cli.options`), code reads them as attributes, and checkpoints store them as
plain dicts. No other code repeats a default.
"""

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from nmtkit.errors import UserError
from nmtkit.wording import quoted

C = TypeVar("C", bound="Config")

_LARGEST = 2**63 - 1  # largest integer of torch, which also converts to a float


def option(
    default: Any,
    *,
    help: str,
    min: float | None = None,
    above: float | None = None,
    max: float | None = None,
    below: float | None = None,
    choices: Sequence[str] = (),
    words: Mapping[str, float] | None = None,
    bare: str | None = None,
    unset: str | None = None,
    metavar: str | None = None,
    count: int | None = None,
    short: str | None = None,
    off: str | None = None,
    aliases: Sequence[str] = (),
    file_only: bool = False,
) -> Any:
    """Declare a dataclass field that is also a command-line option.

    `min` and `max` are inclusive bounds, `above` and `below` exclusive ones; `choices` lists the allowed words. The
    range is checked whenever a config is created: from flags, from a file or from Python.
    `words` maps words to the numbers that they mean.
    `bare` is the value of a flag without a value, and of `true` in a `--config` file.
    `unset` describes a default of None in `--help`.
    `count` is the number of values of a flag, for a field that is a tuple; without it, the flag can be repeated.
    `short` is a one-letter flag; `off` is the flag that turns a boolean option off, if not `--no-…`.
    `aliases` are former names of the field: flags and keys of `--config` files that `--help` does not show.
    A field that is `file_only` has no flag: presets, checkpoints, `--config` files and Python set it.
    """
    metadata = {
        "help": help,
        "bounds": (min, above, max, below),
        "choices": tuple(choices),
        "words": dict(words or {}),
        "bare": bare,
        "unset": unset,
        "metavar": metavar,
        "count": count,
        "short": short,
        "off": off,
        "aliases": tuple(aliases),
        "file_only": file_only,
    }
    return dataclasses.field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """Return the command-line flag of a field, such as `--max-tokens` for `max_tokens`."""
    return "--" + name.replace("_", "-")


def as_flags(options: Mapping[str, Any]) -> str:
    """Format options, given by name, as a command line has them."""
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            words.append(flag(name if value else f"no_{name}"))
        else:
            for one in value if isinstance(value, tuple) else [value]:
                words += [flag(name), str(one)]
    return shlex.join(words)


@dataclass(frozen=True)
class Config:
    """Base class of all option groups. `heading` is the title of a group in `--help`."""

    heading: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if "bounds" not in field.metadata:
                continue
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                value = _typed(field, value)
                _check_range(field, value)
                object.__setattr__(self, field.name, value)

    def to_dict(self) -> dict[str, Any]:
        """Convert the options to JSON values."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
        """Create options from values of `to_dict`; missing ones get defaults. Raises UserError for unknown options."""
        names = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            raise UserError(
                f"unknown option {quoted(unknown[0])} for {cls.__name__}: written by a newer version of nmtkit?"
            )
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _typed(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """Convert `value` to the type of the field. Raises UserError if that is impossible, see `_single`."""
    kind = (get_args(field.type) or (field.type,))[0]  # also for `int | None`
    if get_origin(field.type) is not tuple:
        return _single(field, kind, value)
    if not isinstance(value, tuple | list):
        alone = " alone" if isinstance(value, str) else ""
        raise UserError(f"{flag(field.name)}: a list of strings is expected, not {quoted(value)}{alone}")
    return tuple(_single(field, kind, item) for item in value)


def _single(field: "dataclasses.Field[Any]", kind: type, value: Any) -> Any:
    """Convert one value to `kind`, including NumPy numbers, a string to a Path, and a Path to a string."""
    if kind in (int, float):
        is_whole = kind is int
        if isinstance(value, bool) or not isinstance(value, Integral if is_whole else Real):
            raise UserError(f"{flag(field.name)}: {quoted(value)} is not a {'whole ' * is_whole}number")
        if isinstance(value, int | float):
            return value
    elif kind is bool:
        if not isinstance(value, bool):
            raise UserError(f"{flag(field.name)}: {quoted(value)} must be true or false")
    elif not isinstance(value, str | Path):
        raise UserError(f"{flag(field.name)}: {quoted(value)} is not a string")
    return kind(value)


def _check_range(field: "dataclasses.Field[Any]", value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{flag(field.name)}: {value} is not a finite number")
    low, above, high, below = field.metadata["bounds"]
    if isinstance(value, Integral):
        low = -_LARGEST if low is None and above is None else low
        high = _LARGEST if high is None and below is None else high
    if low is not None and not value >= low:
        raise UserError(f"{flag(field.name)}: {value} is too small: the minimum is {low}")
    if above is not None and not value > above:
        raise UserError(f"{flag(field.name)}: {value} is too small: it must be above {above}")
    if high is not None and not value <= high:
        raise UserError(f"{flag(field.name)}: {value} is too large: the maximum is {high}")
    if below is not None and not value < below:
        raise UserError(f"{flag(field.name)}: {value} is too large: it must be below {below}")
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise UserError(f"{flag(field.name)}: {quoted(value)} is not one of {', '.join(choices)}")


class OptionGroups:
    """Base class of dataclasses for all options of a command: each field is an object of a config class."""

    @classmethod
    def groups(cls) -> dict[str, type[Config]]:
        """Return the config class of each group of options by name."""
        return get_type_hints(cls)

"""Options as dataclass fields, each with its name, type, default, range and help.

A command turns the fields into flags (`nmtkit.cli.options`), the engine reads them as attributes, and a checkpoint
stores them as a plain dict. No other code repeats a default.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from nmtkit.errors import UserError
from nmtkit.wording import quoted

C = TypeVar("C", bound="Config")


_LARGEST = 2**63 - 1  # a whole number that torch can hold, and that can become a floating-point number


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
    removed: Mapping[str, str] | None = None,
    aliases: Sequence[str] = (),
    file_only: bool = False,
) -> Any:
    """Declare a dataclass field that is also a command-line option.

    `min` and `max` are inclusive bounds, `above` and `below` exclusive ones; `choices` lists the allowed words. The
    range is checked whenever a config is made: from flags, from a file or from Python.
    `removed` maps words that earlier releases had among the `choices` to the options that replace them.
    `words` maps words that are accepted in place of a number to that number.
    `bare` is the value of a flag without a value, and of `true` in a `--config` file.
    `unset` describes a default of None in `--help`.
    `count` is how many values a flag takes at once, for a field that is a tuple; without it, the flag can be repeated.
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
        "removed": dict(removed or {}),
        "aliases": tuple(aliases),
        "file_only": file_only,
    }
    return dataclasses.field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """The command-line flag of a field: `max_tokens` is `--max-tokens`."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Config:
    """Base class of all option groups. `heading` is the title of the group in `--help`."""

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
        """Convert the options to values that JSON can represent."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
        """The inverse of `to_dict`. Missing options take their defaults; unknown ones raise UserError."""
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
    """Return `value` as the type of the field. Raises UserError for another type, see `_single`."""
    kind = (get_args(field.type) or (field.type,))[0]  # of `int | None` as well
    if get_origin(field.type) is not tuple:
        return _single(field, kind, value)
    if not isinstance(value, tuple | list):
        alone = " alone" if isinstance(value, str) else ""
        raise UserError(f"{flag(field.name)}: a list of texts is expected, not {quoted(value)}{alone}")
    return tuple(_single(field, kind, item) for item in value)


def _single(field: "dataclasses.Field[Any]", kind: type, value: Any) -> Any:
    """Return one value as `kind`. NumPy's numbers become Python's; a Path may be a text, or the other way round."""
    if kind in (int, float):
        is_whole = kind is int
        if isinstance(value, bool) or not isinstance(value, Integral if is_whole else Real):
            raise UserError(f"{flag(field.name)}: {quoted(value)} is not a {'whole ' * is_whole}number")
        if isinstance(value, int | float):
            return value
    elif kind is bool:
        if not isinstance(value, bool):
            raise UserError(f"{flag(field.name)}: {quoted(value)} is not true or false")
    elif not isinstance(value, str | Path):
        raise UserError(f"{flag(field.name)}: {quoted(value)} is not a text")
    return kind(value)


def _check_range(field: "dataclasses.Field[Any]", value: Any) -> None:
    """Raise UserError if `value` is outside the range that `option` declares."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{flag(field.name)}: {value} is not a finite number")
    low, above, high, below = field.metadata["bounds"]
    shown = value
    if isinstance(value, Integral):
        low = -_LARGEST if low is None and above is None else low
        high = _LARGEST if high is None and below is None else high
        shown = value if abs(int(value)) <= _LARGEST else "the number"  # Python cannot show a very long one
    if low is not None and not value >= low:
        raise UserError(f"{flag(field.name)}: {shown} is too small: the minimum is {low}")
    if above is not None and not value > above:
        raise UserError(f"{flag(field.name)}: {shown} is too small: it must be above {above}")
    if high is not None and not value <= high:
        raise UserError(f"{flag(field.name)}: {shown} is too large: the maximum is {high}")
    if below is not None and not value < below:
        raise UserError(f"{flag(field.name)}: {shown} is too large: it must be below {below}")
    choices = field.metadata["choices"]
    if instead := field.metadata["removed"].get(str(value)):
        raise UserError(f"{flag(field.name)} {value} was removed: use {instead}")
    if choices and value not in choices:
        raise UserError(f"{flag(field.name)}: {quoted(value)} is not one of {', '.join(choices)}")


class OptionGroups:
    """Base of the dataclasses that hold all options of a command: each field is an object of a config class."""

    @classmethod
    def groups(cls) -> dict[str, type[Config]]:
        """The config class of each group of options, by its name."""
        return get_type_hints(cls)

"""From option dataclasses to click's flags.

    @command("nmt-average")
    @options(average=AverageConfig)
    def main(average: AverageConfig) -> None: ...

Every field of `AverageConfig` becomes a flag, and the command gets the finished, range-checked object.
"""

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from nmtkit.config import Config, flag
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.wording import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
_MANY = 8  # words of one beginning that are told one by one


class PathName(click.Path):
    """The name of a file or folder, whether it exists or not; an empty one, Python's current folder, is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty; was a variable of the shell not set?", parameter, context)
        return super().convert(value, parameter, context)


class Choice(click.Choice):  # type: ignore[type-arg]  # click has had the argument since 8.4 only
    """One of a few words; `_` stands for `-` in them and the other way round, as in the names of options."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        words = {word.replace("_", "-"): word for word in self.choices}
        spelled = str(value).replace("_", "-")
        if spelled not in words:
            near = did_you_mean(str(value), self.choices)
            self.fail(f"{value!r} is not one of {_listed(self.choices)}.{near}", parameter, context)
        return words[spelled]


class ConfigOption(click.Option):
    """A flag made from a dataclass field; remembers the heading that `--help` shows it under."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


def options(*adjust: Callable[[dict[str, Any]], None], **groups: type[Config]) -> Callable[[F], F]:
    """Give a command the flags of each config class, and hand it one object per class, by keyword.

    Before the objects are made, each function of `adjust` may change the dict of all option values.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(**values: Any) -> Any:
            for change in adjust:
                change(values)
            made = {name: _build(config, values) for name, config in groups.items()}
            return function(**made, **values)

        return flags(*groups.values())(typing.cast(F, wrapper))

    return decorate


def flags(*configs: type[Config]) -> Callable[[F], F]:
    """Give a command the flags of each config class; classes that share an option share its flag, the first's."""

    def decorate(function: F) -> F:
        fields: dict[str, tuple[dataclasses.Field[Any], type[Config]]] = {}
        for config in configs:
            for field in dataclasses.fields(config):
                if "bounds" in field.metadata:
                    fields.setdefault(field.name, (field, config))
        for field, config in reversed(fields.values()):
            function = _flag_for(field, config)(function)
        return function

    return decorate


def given(name: str) -> bool:
    """Whether the user set option `name`, on the command line or in the `--config` file."""
    source = click.get_current_context().get_parameter_source(name)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def in_file(name: str) -> Any:
    """The value of option `name` in the `--config` file; None where there is none."""
    return (click.get_current_context().default_map or {}).get(name)


def refuse_idle(names: Iterable[str], reason: str) -> None:
    """Raise UserError if the user set one of these options, which have no effect, for this `reason`.

    A default value in a `--config` file is let pass: the options.json that a run writes names every option.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name not in names or not given(parameter.name):
            continue
        value = context.params[parameter.name]
        from_file = context.get_parameter_source(parameter.name) is ParameterSource.DEFAULT_MAP
        if not (from_file and value == parameter.default):
            spellings = parameter.secondary_opts if value is False else parameter.opts
            raise UserError(f"{spellings[-1]} has no effect {reason}")


def reads_terminal() -> bool:
    """Whether stdin, which is going to be read, is a terminal; one who did not mean it is told what is waited for."""
    if not sys.stdin.isatty():
        return False
    logger.info("reading from the terminal: Enter ends a line, Ctrl-D the text")
    return True


def _build(config: type[Config], values: dict[str, Any]) -> Config:
    names = [field.name for field in dataclasses.fields(config) if "bounds" in field.metadata]
    return config(**{name: values.pop(name) for name in names})


def _flag_for(field: "dataclasses.Field[Any]", config: type[Config]) -> Callable[[F], F]:
    """The click option of one dataclass field. Ranges are checked by the config itself, in one place."""
    kind, optional, multiple = _kind(typing.get_type_hints(config)[field.name])
    choices, words = field.metadata["choices"], field.metadata["words"]
    spelling = flag(field.name)
    if kind is bool:
        spelling += "/" + flag(field.metadata["off"] or f"no_{field.name}")
    short = [f"-{field.metadata['short']}"] if field.metadata["short"] else []
    return click.option(
        *short,
        spelling,
        field.name,
        cls=ConfigOption,
        heading=config.heading,
        type=_converter(kind, choices, words),
        default=None if multiple else field.default,
        multiple=multiple,
        show_default=field.metadata["unset"] or (not optional and field.default not in ("", ())),
        metavar=field.metadata["metavar"],
        help=field.metadata["help"],
    )


def _converter(kind: type, choices: Sequence[str], words: dict[str, float]) -> Any:
    """What makes the value of an option out of its text, for click."""
    if choices:
        return Choice(choices)
    if words:
        return _number_or_word(kind, words)
    return PathName() if kind is Path else kind


def _number_or_word(kind: type, words: dict[str, float]) -> Callable[[Any], Any]:
    """A conversion for click: of a number, or of a word that stands for one."""

    def convert(value: Any) -> Any:
        try:
            return words[value] if value in words else kind(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is neither a number nor {' or '.join(words)}.") from None

    convert.__name__ = "|".join(["number", *words])
    return convert


def _kind(annotation: Any) -> tuple[Any, bool, bool]:
    """(type of one value, may be None, may be given several times) of a field's annotation."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return arguments[0], False, True
    if isinstance(annotation, types.UnionType):
        (kind,) = [argument for argument in arguments if argument is not type(None)]
        return kind, True, False
    return annotation, False, False


def _listed(words: Sequence[str]) -> str:
    """All of some words; many that begin alike, up to the first `_`, as a shell would put them: table3_{a_h1,a_h4}."""
    by_beginning: dict[str, list[str]] = {}
    for word in words:
        by_beginning.setdefault(word.partition("_")[0], []).append(word)
    for beginning, alike in by_beginning.items():
        if len(alike) > _MANY:
            ends = ",".join(word.removeprefix(f"{beginning}_") for word in alike)
            by_beginning[beginning] = [f"{beginning}_{{{ends}}}"]
    return ", ".join(word for alike in by_beginning.values() for word in alike)

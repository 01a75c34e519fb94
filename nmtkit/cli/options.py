"""Turns option dataclasses into click's flags.

    @command("nmt-average")
    @options(average=AverageConfig)
    def main(average: AverageConfig) -> None: ...

Every field of `AverageConfig` becomes a flag, and the command receives the range-checked object.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from nmtkit.config import Config, flag
from nmtkit.errors import UserError
from nmtkit.wording import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
_LONGEST_METAVAR = 30  # columns; a panel on a narrow terminal would cut longer lists of choices


class _NonEmpty(click.ParamType):  # type: ignore[type-arg]  # as for `Choice`
    """Rejects empty text, which a shell passes for an unset variable."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "":
            self.fail("the value is empty: is a shell variable unset?", parameter, context)
        return super().convert(value, parameter, context)


class Text(_NonEmpty, click.types.StringParamType):
    """A non-empty text."""


class PathName(_NonEmpty, click.Path):
    """The name of a file or folder, which need not exist. An empty name would be Python's current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)


class Choice(click.Choice):  # type: ignore[type-arg]  # only click 8.4 and later has the argument
    """One of a few words, in which `_` and `-` are equivalent, as in option names. `others` maps words of other
    toolkits to nmtkit's."""

    def __init__(self, choices: Sequence[str], others: Mapping[str, str] | None = None) -> None:
        super().__init__(choices)
        self._others = dict(others or {})

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        words = {word.replace("_", "-"): word for word in self.choices}
        spelled = str(value).replace("_", "-")
        if other := self._others.get(str(value)):
            self.fail(f"{value} is called {other} in nmtkit", parameter, context)
        if spelled not in words:
            similar = [word for word in self.choices if word.endswith(f"_{value}")]
            near = f" Did you mean {similar[0]}?" if len(similar) == 1 else did_you_mean(str(value), self.choices)
            self.fail(f"{value!r} is not one of {', '.join(self.choices)}.{near}", parameter, context)
        return words[spelled]


class ConfigOption(click.Option):
    """An option created from a dataclass field, under a `heading` of `--help`. `aliases` are former names of the field,
    which only the parsers know. Hidden options can be set only in files."""

    def __init__(self, *args: Any, heading: str, aliases: Collection[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading, self.aliases = heading, tuple(aliases)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Also accept the aliases. They are not in `opts`, which click uses for help and error messages."""
        if self.hidden:
            return
        shown = self.opts
        self.opts = [*shown, *map(flag, self.aliases)]
        super().add_to_parser(parser, ctx)
        self.opts = shown


def output_option(metavar: str, help: str) -> Callable[[F], F]:
    """Return a decorator that adds the required option `--output` to a command."""
    return click.option(
        "--output", cls=ConfigOption, heading="Result", required=True, type=PathName(), metavar=metavar, help=help
    )


def options(*adjust: Callable[[dict[str, Any]], None], **groups: type[Config]) -> Callable[[F], F]:
    """Return a decorator that gives a command the flags of each config class, and passes it one object per class. Each
    function in `adjust` may change the values of all options before."""
    return options_without((), *adjust, **groups)


def options_without(
    without: Collection[str], /, *adjust: Callable[[dict[str, Any]], None], **groups: type[Config]
) -> Callable[[F], F]:
    """Return a decorator like `options`; fields named in `without` get no flag and keep their defaults."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(**values: Any) -> Any:
            for change in adjust:
                change(values)
            made = {name: _build(config, values) for name, config in groups.items()}
            return function(**made, **values)

        return flags(*groups.values(), without=without)(typing.cast(F, wrapper))

    return decorate


def flags(*configs: type[Config], without: Collection[str] = ()) -> Callable[[F], F]:
    """Return a decorator that gives a command one flag for each option of config classes, except those in `without`."""

    def decorate(function: F) -> F:
        fields: dict[str, tuple[dataclasses.Field[Any], type[Config]]] = {}
        for config in configs:
            for field in dataclasses.fields(config):
                if "bounds" in field.metadata and field.name not in without:
                    fields.setdefault(field.name, (field, config))
        for field, config in reversed(fields.values()):
            function = _flag_for(field, config)(function)
        return function

    return decorate


def given(name: str) -> bool:
    """Whether the user has set the option `name`, on the command line or in the `--config` file."""
    source = click.get_current_context().get_parameter_source(name)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def prefer_command_line(values: dict[str, Any], name: str, *others: str) -> None:
    """Let `name` on the command line override `others` in the `--config` file, and vice versa.

    Use this for options that are mutually exclusive.
    """
    for other in others:
        for first, second in ((name, other), (other, name)):
            if values[first] and _is_from(first, ParameterSource.COMMANDLINE):
                _ignore_from_file(values, second)


def refuse_idle(values: dict[str, Any], names: Collection[str], reason: str) -> None:
    """Raise UserError if the command line sets one of the options `names`, which have no effect for this `reason`.

    Switches may be set to their default. Options of the `--config` file are ignored, because options.json of a
    run contains all options. Ignored options are None in `values`, and not `given`.
    """
    for parameter in click.get_current_context().command.params:
        if parameter.name not in names:
            continue
        is_off = values.get(parameter.name) is parameter.default is False
        if _is_from(parameter.name, ParameterSource.COMMANDLINE) and not is_off:
            spellings = parameter.secondary_opts if values.get(parameter.name) is False else parameter.opts
            raise UserError(f"{spellings[-1]} has no effect {reason}")
        _ignore_from_file(values, parameter.name)


def _ignore_from_file(values: dict[str, Any], name: str) -> None:
    if _is_from(name, ParameterSource.DEFAULT_MAP):
        values[name] = None  # means the default
        click.get_current_context().set_parameter_source(name, ParameterSource.DEFAULT)


def _is_from(name: str, source: ParameterSource) -> bool:
    return click.get_current_context().get_parameter_source(name) is source


def _build(config: type[Config], values: dict[str, Any]) -> Config:
    fields = [field for field in dataclasses.fields(config) if field.name in values]
    explicit = tuple(field.name for field in fields if given(field.name))
    made = {field.name: field.default if (value := values.pop(field.name)) is None else value for field in fields}
    return config(**made | ({"explicit": explicit} if hasattr(config, "explicit") else {}))


def _flag_for(field: "dataclasses.Field[Any]", config: type[Config]) -> Callable[[F], F]:
    """Create the click option of a dataclass field, whose range the config class checks."""
    annotation = typing.get_type_hints(config)[field.name]
    kind, *_ = typing.get_args(annotation) or [annotation]  # also of `int | None`
    multiple = typing.get_origin(annotation) is tuple
    spelling = flag(field.name)
    if kind is bool:
        spelling += "/" + flag(field.metadata["off"] or f"no_{field.name}")
    words, count = field.metadata["words"], field.metadata["count"]
    short = [f"-{field.metadata['short']}"] if field.metadata["short"] else []
    metavar, text = field.metadata["metavar"] or ("N" if kind is int else None), field.metadata["help"]
    if len("|".join(choices := field.metadata["choices"])) > _LONGEST_METAVAR:
        metavar, text = "NAME", f"{text} Choices: {', '.join(choices)}."
    bare = {} if field.metadata["bare"] is None else {"is_flag": False, "flag_value": field.metadata["bare"]}
    return click.option(
        *short,
        spelling,
        field.name,
        cls=ConfigOption,
        heading=config.heading,
        aliases=field.metadata["aliases"],
        hidden=field.metadata["file_only"],
        type=_converter(kind, field.metadata),
        # None means the field's default, see `_build`. click would convert "", which the converter rejects.
        default=None if multiple or field.default == "" else field.default,
        multiple=multiple and not count,
        nargs=count or 1,
        show_default=field.metadata["unset"] or (kind is not bool and field.default not in ("", ())),
        metavar="|".join(["N", *words]) if words else metavar,
        help=text,
        **bare,
    )


def _converter(kind: type, metadata: Mapping[str, Any]) -> Any:
    if metadata["choices"]:
        return Choice(metadata["choices"])
    if metadata["words"]:
        return _number_or_word(kind, metadata["words"])
    if kind is str:
        return Text()
    return PathName() if kind is Path else kind


def _number_or_word(kind: type, words: dict[str, float]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        try:
            return words[value] if value in words else kind(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is neither a number nor {' or '.join(words)}.") from None

    return convert

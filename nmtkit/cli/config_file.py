"""`--config FILE`: options from a TOML or JSON file, converted and checked like those on the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.other_toolkits import answer
from nmtkit.config import flag
from nmtkit.errors import UserError
from nmtkit.storage.files import parse_json, parse_toml
from nmtkit.wording import did_you_mean, quoted

_IN_USE = "nmtkit.cli.config_file"  # key of the file's path in click's context
_NOT_IN_A_FILE = ("config", "help_all", "version")


def read_config_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make the values in `--config FILE` the defaults of the command. Raises UserError for a malformed file."""
    if path is None:
        return
    try:
        text = path.read_bytes().decode("utf-8-sig")  # some editors write a byte order mark
        is_json = path.suffix == ".json" or text.lstrip().startswith("{")  # TOML never starts like this
        if path.suffix in (".yaml", ".yml"):
            raise UserError("YAML is not supported: give a TOML or JSON file")
        values = parse_json(text) if is_json else parse_toml(text)
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--config {path} is not UTF-8 text: give a TOML or JSON file") from error
    except (ValueError, UserError) as error:
        raise UserError(f"--config {path}: {error}") from error
    context.meta[_IN_USE] = path
    if not isinstance(values, dict):
        raise UserError(f"--config {path}: expected a table of options")
    settable = [one for one in context.command.params if one.name not in _NOT_IN_A_FILE]
    known = {name: one for one in settable for name in (str(one.name), *getattr(one, "aliases", ()))}
    defaults: dict[str, Any] = {}
    for table, key, value in _options_in(values):
        if key not in known:
            raise UserError(f"--config {path}: {table}{_unknown(key, context.command, known)}")
        name = str(known[key].name)
        if name in defaults:
            raise UserError(f"--config {path}: {flag(name)} is given twice")
        defaults[name] = _as_on_command_line(known[key], value, path)
    context.default_map = defaults


def _unknown(key: str, command: click.Command, known: dict[str, click.Parameter]) -> str:
    if key.startswith("__"):  # `_options_in` has replaced the dashes
        return f"options have no leading dashes in a file: write {key.lstrip('_')}"
    for parameter in known.values():
        if flag(key) in parameter.secondary_opts:
            return f"write {str(parameter.name).replace('_', '-')} = false instead of {key.replace('_', '-')}"
    instead = answer(str(command.name), flag(key))
    hint = f": {instead}" if instead else f".{did_you_mean(flag(key), [flag(str(one.name)) for one in known.values()])}"
    return f"{command.name} has no option {flag(key)} that a file can set{hint}"


def config_file_in_use() -> Path | None:
    """Return the `--config` file that was read, or None."""
    path: Path | None = click.get_current_context().meta.get(_IN_USE)
    return path


def _options_in(values: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the options in a config file as (table, name, value), with words that describe the table, if any.

    Options may be in tables, as in options.json of a run; null means not given.
    """
    for key, value in values.items():
        table, options = (f"table {quoted(key)}: ", value) if isinstance(value, dict) else ("", {key: value})
        for name, one in options.items():
            if one is not None:
                yield table, name.replace("-", "_"), one


def _as_on_command_line(parameter: click.Parameter, value: Any, path: Path) -> Any:
    """Convert a value in a config file to a form that click checks and converts like the command line."""
    bare = getattr(parameter, "flag_value", None)
    if isinstance(value, bool) and isinstance(bare, str):  # an option whose value can be omitted
        return bare if value else str(parameter.default)
    takes_several = getattr(parameter, "multiple", False) or parameter.nargs != 1
    values = value if takes_several and isinstance(value, list) else [value]
    switch = getattr(parameter, "is_flag", False)
    for one in values:
        if isinstance(one, bool) != switch or not isinstance(one, bool | int | float | str):
            wanted = "true or false" if switch else "a number or a string"
            found = json.dumps(one, default=str)  # TOML has dates
            raise UserError(f"--config {path}: {flag(str(parameter.name))} takes {wanted}, not {found}")
    if switch:
        return value
    return [str(one) for one in values] if takes_several else str(value)

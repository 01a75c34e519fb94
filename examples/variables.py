"""The variables of a recipe: arguments NAME=value, else the environment, else the defaults."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

Default = str | int | tuple[str, ...] | list[int] | list[str]


def variables(**defaults: Default) -> SimpleNamespace:
    """The variables of a recipe and WORK, the folder of its results, by name.

    The default determines the type of a value: a number, one of a tuple, some of a list, any numbers (a list of
    numbers), a folder (WORK, CORPUS, NAME_DIR) or text. Exits with a message for an invalid value or an unknown
    argument.
    """
    defaults = {"WORK": "", **defaults}
    arguments = dict(argument.partition("=")[::2] for argument in sys.argv[1:] if argument != "--list")
    if unknown := arguments.keys() - defaults.keys():
        refuse(f"no variable {min(unknown)}: use {', '.join(defaults)}")
    given = {name: os.environ[name] for name in defaults if name in os.environ} | arguments
    return SimpleNamespace(**{name: _value(name, given.get(name), default) for name, default in defaults.items()})


def _value(name: str, given: str | None, default: Default) -> object:
    if isinstance(default, str):
        text = default if given is None else given
        return str(Path(text).absolute()) if text and (name in ("WORK", "CORPUS") or name.endswith("_DIR")) else text
    if isinstance(default, tuple):
        if (given or default[0]) not in default:
            refuse(f"{name}={given}: use {' or '.join(default)}")
        return given or default[0]
    words = (given or "").split()
    if isinstance(default, int) and given:
        return _number(name, given)
    if given is None or isinstance(default, int):
        return default
    if not words or (isinstance(default[0], str) and not set(words) <= set(map(str, default))):
        refuse(f"{name}={given}: give {'numbers' if isinstance(default[0], int) else f'some of {default}'}")
    unique = list(dict.fromkeys(words))
    return [_number(name, word) for word in unique] if isinstance(default[0], int) else unique


def _number(name: str, word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        refuse(f"{name}={word}: give a whole number")
    return int(word)


def refuse(message: str) -> NoReturn:
    """Exit with a message about an invalid variable."""
    print(message, file=sys.stderr)
    sys.exit(2)

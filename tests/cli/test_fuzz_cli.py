"""Random options for every command: each ends with exit code 2 and one line, whatever the names and values are."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nmtkit.cli.start import load_command
from nmtkit.console.log import logger
from nmtkit.wording import escaped

# What the command needs besides, all of it missing, so that no command line is right and none does any work.
NEEDED = {
    "preprocess": ["-s", "en", "-t", "de", "--trainpref", "missing", "--destdir", "missing-data"],
    "train": ["missing"],
    "average": ["missing.pt", "--output", "averaged.pt"],
    "export": ["missing.pt", "--to", "checkpoint", "--output", "exported.pt"],
    "import": ["m", "--output", "b"],
    "generate": ["--checkpoint", "missing.pt"],
    "score": ["missing", "--reference", "missing", "-t", "de"],
}
NOT_TRIED = {"--help", "-h", "--version", "--debug"}  # which end otherwise, as they should
VALUES = (
    *("", " ", "-", "--", "=", "0", "1", "-1", "5 ", "+3", "1_000", "0x10", "1e400", "1e-400", "nan", "-inf", "inf"),
    *(
        "9" * 400,
        "-" + "9" * 400,
        "9" * 5000,
        "0." + "3" * 400,
        "１２",
        "٣",
        "x" * 300,
        "é" * 5000,
        "a/" * 3000,
        "auto",
    ),
    *("true", "null", "{}", "%s %d", "a\tb", "a\nb\n", "\r12:00:00 done", "\x1b[2J\x1b]0;owned\x07", "\x7f\x9b2J"),
    *("\u202edetar\u202c", "\u2028\u2029", "\udc80", "a\0b", "ﬀ", "\ufeff", "🙂", "..", "~", "*", "$(date)"),
)
NAMES = (
    "--",
    "---",
    "--=",
    "-",
    "-x",
    "--x" * 500,
    "--\x1b[31m",
    "--\u202e",
    "--é",
    "--\udc80",
    "--beam\n",
    "--lenpen",
)


@pytest.fixture(autouse=True)
def within_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Options that are files name nothing, and nothing is left behind; logging stays as it is."""
    monkeypatch.chdir(tmp_path)
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    hook, unraisable_hook = sys.excepthook, sys.unraisablehook
    yield
    assert [path for path in tmp_path.iterdir() if path.name != "options.json"] == []
    logger.handlers, logger.propagate, sys.excepthook = handlers, propagate, hook
    sys.unraisablehook = unraisable_hook
    logger.setLevel(level)


def main_of(name: str) -> click.Command:
    main = load_command(name)
    assert isinstance(main, click.Command)
    return main


def flags(name: str) -> list[str]:
    main = main_of(name)
    every = {flag for one in main.get_params(click.Context(main)) for flag in (*one.opts, *one.secondary_opts)}
    return sorted(flag for flag in every - NOT_TRIED if flag.startswith("-"))


def draw_arguments(name: str, chance: random.Random) -> list[str]:
    """Some options, most of them known, with values that are mostly wrong."""
    words = list(NEEDED[name])
    for _ in range(chance.randint(1, 4)):
        option = chance.choice(flags(name)) if chance.random() < 0.8 else chance.choice(NAMES)
        value = chance.choice(VALUES)
        given = chance.choice([[option, value], [f"{option}={value}"], [option], [value]])
        place = chance.choice([0, len(words)])
        words[place:place] = given
    return words


def end_of(name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr but for warnings; no line has control characters."""
    with pytest.raises(SystemExit) as exit:
        main_of(name).main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    lines = err.removesuffix("\n").split("\n")
    assert lines == [escaped(line) for line in lines]
    assert isinstance(exit.value.code, int)
    return exit.value.code, [line for line in lines if " warning: " not in line[:20]]


@pytest.mark.parametrize("name", NEEDED)
def test_random_options_give_a_one_line_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(f"options of {name}")
    for _ in range(60):
        arguments = draw_arguments(name, chance)
        code, lines = end_of(name, arguments, capsys)
        assert (code, len(lines)) == (2, 1), (arguments, lines)
        assert lines[0].startswith(f"nmt-{name}: ")


@pytest.mark.parametrize("name", NEEDED)
def test_random_config_files_give_a_one_line_error(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chance = random.Random(f"files for {name}")
    known = [flag.lstrip("-") for flag in flags(name) if flag.startswith("--")]
    numbers = (0, -1, 10**400, float("nan"), float("-inf"), 1e308)
    odd: tuple[object, ...] = ("\ud83d", None, True, False, *numbers, [], [[]], {}, [{}], *VALUES)
    for _ in range(40):
        keys = (chance.choice([*known, *NAMES, "lenpen"]) for _ in range(chance.randint(1, 4)))
        values = {key: chance.choice([chance.choice(odd), [chance.choice(odd)]]) for key in keys}
        text = json.dumps({chance.choice(VALUES): values} if chance.random() < 0.3 else values)
        (tmp_path / "options.json").write_text(text[: chance.choice([len(text)] * 5 + [len(text) // 2])])
        code, lines = end_of(name, [*NEEDED[name], "--config", "options.json"], capsys)
        assert (code, len(lines)) == (2, 1), (text, lines)
        assert lines[0].startswith(f"nmt-{name}: ")

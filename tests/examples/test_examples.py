"""The scripts of the examples as commands: their messages for missing and invalid arguments."""

import signal
from collections.abc import Iterator
from importlib import import_module

import pytest

SCRIPTS = {
    "make_corpus": "FOLDER",
    **{"lexicon": "SIZE TREES...", "linearize": "LEXICON PREFIX TREES", "restore": "LEXICON TEXT OUTPUT [N]"},
    **{"evalb": "GOLD TREES", "parse": "CHECKPOINT LEXICON"},
    **{
        "by_length": "SOURCE TARGET LANGUAGE LONGEST NAME=CHECKPOINT...",
        "table2": "RUN...",
        "table3": "ROWS FOLDER...",
    },
    "variations": "{base|a_h1|",
    **{"archives": "LIST ARCHIVE", "parallel_text": "FROM_SOURCE FROM_TARGET TO_SOURCE TO_TARGET"},
    **{"cost": "SAVE_DIR {en-de|en-fr} {base|big} DEVICES", "smoke_archives": "FOLDER"},
}


@pytest.fixture(autouse=True)
def _restore_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_without_arguments_prints_its_usage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        import_module(name).main([])
    (line,) = capsys.readouterr().err.splitlines()
    assert exit.value.code == 2
    assert line.startswith(f"{name}.py: Missing argument")
    assert f"usage: {name}.py [OPTIONS] {SCRIPTS[name]}" in line


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("lexicon", ("many", "trees"), "'many' is not a valid integer"),
        ("variations", ("f", "8", "2"), "'f' is not one of 'base', 'a_h1'"),
        ("by_length", ("en", "de", "de", "9", "a.pt"), "a NAME=CHECKPOINT is expected"),
        ("evalb", ("missing.mrg", "missing.trees"), "cannot read missing.mrg: No such file"),
    ],
)
def test_an_invalid_argument_is_reported(
    name: str, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        import_module(name).main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert (exit.value.code, said in line) == (2, True), line

"""The scripts of the examples as commands: their messages for missing and invalid arguments."""

import os
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from repository import ROOT

SCRIPTS = {
    "make_corpus": "FOLDER",
    **{"lexicon": "SIZE TREES...", "linearize": "LEXICON PREFIX TREES", "restore": "LEXICON TEXT OUTPUT [N]"},
    **{"evalb": "GOLD TREES", "parse": "CHECKPOINT LEXICON"},
    **{
        "by_length": "SOURCE TARGET LANGUAGE LONGEST NAME=FOLDER...",
        "table2": "RUN...",
        "table3": "ROWS FOLDER...",
        "result": "FOLDER",
    },
    "variations": "{base|a_h1|",
    **{"archives": "LIST ARCHIVE", "parallel_text": "FROM_SOURCE FROM_TARGET TO_SOURCE TO_TARGET"},
    **{"cost": "SAVE_DIR {en-de|en-fr} {base|big}", "smoke_archives": "FOLDER"},
}


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
        ("by_length", ("en", "de", "de", "9", "a.pt"), "a NAME=FOLDER is expected"),
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


@pytest.mark.parametrize("modules", ["theirs", None])
def test_a_report_that_fails_keeps_the_one_before(modules: str | None, tmp_path: Path) -> None:
    rule = "report:\n\t$(call print_report,printenv $(NAME))\n"
    for script in ("locked.py", "dates.py"):  # beside the recipe's folder
        shutil.copy(ROOT / "examples" / script, tmp_path.parent)
    (tmp_path / "Makefile").write_text(f"include {ROOT}/examples/work.mk\n{rule}")
    (tmp_path / "work").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {} if modules is None else {"PYTHONPATH": modules}

    def make(name: str) -> "subprocess.CompletedProcess[str]":
        command = ["make", "-s", "report", "WORK=work", f"NAME={name}"]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done, failed = make("PYTHONPATH"), make("MISSING")
    report = (tmp_path / "work/report.md").read_text()
    assert (done.returncode, done.stdout, failed.returncode) == (0, report, 2)
    assert report == ("..\n" if modules is None else f"..:{modules}\n")
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"report.md", "report.lock"}


def test_a_report_that_cannot_replace_the_one_before_is_a_failure(tmp_path: Path) -> None:
    for script in ("locked.py", "dates.py"):  # beside the recipe's folder
        shutil.copy(ROOT / "examples" / script, tmp_path.parent)
    (tmp_path / "Makefile").write_text(f"include {ROOT}/examples/work.mk\nreport:\n\t$(call print_report,echo new)\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/report.md").write_text("old\n")
    (tmp_path / "mv").symlink_to(shutil.which("false") or "")
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["make", "-s", "report", "WORK=work"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, "WORK=" in done.stderr) == (2, "", False)

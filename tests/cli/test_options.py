"""The command line's machinery, on a small command of its own: flags, ranges, --config, exit codes."""

import dataclasses
import errno
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
import pytest
from patience import PATIENCE
from terminals import on_terminal

import nmtkit
from nmtkit.cli.command import Terminated, command
from nmtkit.cli.options import Choice, given, options, options_without, refuse_idle
from nmtkit.cli.start import load_command
from nmtkit.config import Config, option
from nmtkit.errors import RunError, UserError


@dataclass(frozen=True)
class SoupConfig(Config):
    heading: ClassVar[str] = "The soup"

    spoons: int = option(4, min=1, max=12, help="How many spoons.")
    salt: float = option(0.5, above=0.0, below=1.0, help="How much salt.")
    kind: str = option("pea", choices=("pea", "leek"), help="Which soup.")
    bread: bool = option(True, help="Whether with bread.")
    guest: tuple[str, ...] = option((), help="Who comes; several times for several guests.")
    chair_count: int | None = option(None, min=1, unset="one a spoon", help="Chairs.", aliases=("seats",))


@dataclass(frozen=True)
class TableConfig(Config):
    heading: ClassVar[str] = "The table"

    legs: int = option(4, min=3, help="Legs of the table.")


def refuse_salt_in_leek(values: dict[str, Any]) -> None:
    if values["kind"] == "leek":
        refuse_idle(values, ["salt", "bread"], "in leek soup")


@command("soup")
@options(refuse_salt_in_leek, soup=SoupConfig, table=TableConfig)
def soup_command(soup: SoupConfig, table: TableConfig) -> None:
    """Cook a soup."""
    print(soup.to_dict() | table.to_dict() | {"given": [name for name in ("spoons", "kind") if given(name)]})


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, the options that arrived in the command, and what went to stderr."""
    with pytest.raises(SystemExit) as exit:
        soup_command.main(list(arguments))
    out, err = capsys.readouterr()
    assert isinstance(exit.value.code, int)
    return exit.value.code, eval(out) if out.startswith("{") else {"text": out}, err


def test_without_flags_the_dataclass_defaults_apply(capsys: pytest.CaptureFixture[str]) -> None:
    code, values, _ = run(capsys=capsys)
    assert code == 0
    assert values == SoupConfig().to_dict() | TableConfig().to_dict() | {"given": []}


def test_each_kind_of_field_becomes_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--spoons", "7", "--salt", "0.1", "--kind", "pea", "--no-bread", "--guest", "Ann", "--guest", "Bo"]
    _, values, _ = run(*flags, "--chair-count", "2", "--legs", "3", capsys=capsys)
    expected = {"spoons": 7, "salt": 0.1, "kind": "pea", "bread": False, "guest": ["Ann", "Bo"], "chair_count": 2}
    assert values == expected | {"legs": 3, "given": ["spoons", "kind"]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--spoons", "0"], "--spoons: 0 is too small: the minimum is 1"),
        (["--salt", "1"], "--salt: 1.0 is too large: it must be below 1.0"),
        (["--spoons", "many"], "'many' is not a valid int"),
        (["--spoon", "3"], "No such option --spoon. Did you mean --spoons? (see"),
        (["--kind", "leak"], "'leak' is not one of pea, leek. Did you mean leek? (see"),
    ],
)
def test_an_invalid_option_gives_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, values, err = run(*arguments, capsys=capsys)
    assert code == 2
    assert values == {"text": ""}
    assert err.startswith("soup: ")
    assert err.count("\n") == 1
    assert complaint in err


def test_a_former_option_name_is_accepted_but_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text("seats = 3")
    for arguments in (["--seats", "3"], ["--config", str(tmp_path / "a.toml")]):
        code, values, _ = run(*arguments, capsys=capsys)
        assert (code, values["chair_count"]) == (0, 3)
    assert "seats" not in run("--help", capsys=capsys)[1]["text"]
    code, _, err = run("--seats", "0", capsys=capsys)
    assert (code, err) == (2, "soup: --chair-count: 0 is too small: the minimum is 1\n")
    (tmp_path / "a.toml").write_text("seats = 3\nchair_count = 4")
    code, _, err = run("--config", str(tmp_path / "a.toml"), capsys=capsys)
    assert (code, err) == (2, f"soup: --config {tmp_path / 'a.toml'}: --chair-count is given twice\n")


def test_a_command_can_omit_the_flags_of_some_fields(capsys: pytest.CaptureFixture[str]) -> None:
    @command("stew")
    @options_without(("salt", "bread"), soup=SoupConfig)
    def stew(soup: SoupConfig) -> None:
        print(soup.to_dict())

    with pytest.raises(SystemExit):
        stew.main(["--spoons", "2"])
    assert eval(capsys.readouterr().out) == SoupConfig(spoons=2).to_dict()
    with pytest.raises(SystemExit) as exit:
        stew.main(["--salt", "0.1"])
    assert exit.value.code == 2


def test_choices_accept_hyphens_and_underscores() -> None:
    choice = Choice(("inverse-sqrt", "transformer_base"))
    for written, meant in (("inverse_sqrt", "inverse-sqrt"), ("transformer-base", "transformer_base")):
        assert choice.convert(written, None, None) == meant
        assert choice.convert(meant, None, None) == meant


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"spoons": "3"}, "--spoons: '3' is not a whole number"),
        ({"spoons": 2.5}, r"--spoons: 2\.5 is not a whole number"),
        ({"guest": "Ann"}, "--guest: a list of strings is expected, not 'Ann' alone"),
        ({"bread": "no"}, "--bread: 'no' must be true or false"),
        ({"kind": "fish"}, "--kind: 'fish' is not one of pea, leek"),
    ],
)
def test_types_are_also_checked_in_python(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SoupConfig(**values)


def test_numpy_numbers_become_numbers_of_python() -> None:
    numbers: dict[str, Any] = {"spoons": np.int64(3), "salt": np.float32(0.25)}
    soup = SoupConfig(**numbers, chair_count=None)
    assert (soup.spoons, soup.salt) == (3, 0.25)
    assert (type(soup.spoons), type(soup.salt)) == (int, float)
    numbers["salt"] = np.float32("nan")
    with pytest.raises(UserError, match="--salt: nan is not a finite number"):
        SoupConfig(**numbers)


def test_a_config_survives_a_round_trip_through_a_dict() -> None:
    config = SoupConfig(spoons=2, guest=("Ann",), chair_count=5)
    assert SoupConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["guest"] == ["Ann"]  # as JSON gives it back
    assert SoupConfig.from_dict({}) == SoupConfig()


def test_an_unknown_key_in_a_dict_is_refused() -> None:
    with pytest.raises(UserError, match="unknown option 'pepper' for SoupConfig"):
        SoupConfig.from_dict({"pepper": 1})


FILES = {"options.toml": 'spoons = 3\nchair-count = 2\nguest = ["Ann", "Bo"]\nbread = false\n'} | {
    "options.json": '{"spoons": 3, "chair_count": 2, "guest": ["Ann", "Bo"], "bread": false}',
    "tables.toml": '[soup]\nspoons = 3\nguest = ["Ann", "Bo"]\nbread = false\n[table]\nchair-count = 2',
    "tables.json": '{"soup": {"spoons": 3, "guest": ["Ann", "Bo"], "bread": false, "salt": null}, "chair_count": null}',
    "any name": '\ufeff\n{"spoons": 3, "guest": ["Ann", "Bo"], "bread": false}',  # with a byte order mark
}


@pytest.mark.parametrize("name", FILES)
def test_command_line_options_override_those_of_a_config_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(FILES[name])
    code, values, _ = run("--config", str(path), "--chair-count", "9", capsys=capsys)
    assert code == 0
    assert [values[key] for key in ("spoons", "chair_count", "guest", "bread")] == [3, 9, ["Ann", "Bo"], False]
    assert values["given"] == ["spoons"]


def test_a_config_file_can_give_a_single_value_for_a_repeatable_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text('guest = "Ann"')
    assert run("--config", str(tmp_path / "a.toml"), capsys=capsys)[1]["guest"] == ["Ann"]


@pytest.mark.parametrize(("option", "named"), [("--salt=0.5", "--salt"), ("--no-bread", "--no-bread")])
def test_an_option_without_effect_is_refused(option: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--kind", "leek", option, capsys=capsys)[0::2] == (2, f"soup: {named} has no effect in leek soup\n")
    assert run("--kind", "pea", option, capsys=capsys)[0] == 0


def test_an_option_of_a_file_without_effect_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "soup.toml").write_text('kind = "leek"\nsalt = 0.6')
    code, values, _ = run("--config", str(tmp_path / "soup.toml"), capsys=capsys)
    assert (code, values["kind"], values["salt"]) == (0, "leek", 0.5)


def test_the_negative_form_of_a_switch_in_a_config_file_gets_the_line_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text("separate-vocab = true")
    with pytest.raises(SystemExit) as exit:
        import_module("nmtkit.cli.preprocess").main(["data", "--config", str(tmp_path / "a.toml")])
    assert exit.value.code == 2
    assert "write joined-vocab = false instead of separate-vocab" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.json", "{", "a.json"),
        ("a.yaml", "spoons: 3", "YAML is not supported: give a TOML or JSON file"),
        ("a.json", "[1]", "expected a table of options"),
        pytest.param("a.toml", "a = '\udcff'", "not UTF-8 text", id="binary"),
        ("a.toml", "spoons = 3\n[soup]\nspoons = 4", "--spoons is given twice"),
        ("a.toml", "spoon = 1", "soup has no option --spoon that a file can set. Did you mean --spoons?"),
        ("a.toml", '"--spoons" = 1', "options have no leading dashes in a file: write spoons"),
        ("a.toml", "[soup]\npepper = 1", "a.toml: table 'soup': soup has no option --pepper"),
        ("a.json", '{"kind": true}', "takes a number or a string, not true"),
        ("a.json", '{"spoons": [1, 2]}', "takes a number or a string, not [1, 2]"),
        ("a.json", '{"bread": 3}', "takes true or false, not 3"),
        ("a.json", '{"version": true}', "no option --version that a file can set"),
        ("a.toml", None, "No such file"),
    ],
)
def test_an_invalid_config_file_gives_one_line_and_exit_code_2(
    name: str, text: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    code, _, err = run("--config", str(tmp_path / name), capsys=capsys)
    assert code == 2
    assert err.count("\n") == 1
    assert complaint in err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_output_to_a_pipe_is_utf8_in_any_encoding(encoding: str) -> None:
    code = "import nmtkit.cli.train as command; command.main(['--help'])"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "…" in done.stdout.decode()


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_output_to_a_terminal_has_its_encoding(encoding: str) -> None:
    code = "import nmtkit.cli.train as command; command.main(['--help'])"
    shown = on_terminal(["-c", code], stdout=True, PYTHONIOENCODING=encoding)
    assert (shown.code, "…" in shown.terminal) == (0, encoding == "utf-8")


def test_help_shows_each_option_under_its_heading_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = run("--help", capsys=capsys)
    text = shown["text"]
    assert code == 0
    headings = ["The soup:", "The table:", "General:"]
    assert [line for line in text.splitlines() if line in headings] == headings
    for config in (SoupConfig, TableConfig):
        for field in dataclasses.fields(config):
            assert "-" + field.name.replace("_", "-") in text
    assert re.search(r"--spoons N +How many spoons\.  \[default: 4\]", text)
    assert re.search(r"--chair-count N +Chairs\.  \[default: \(one a spoon\)\]", text)
    assert "[default: None]" not in text


@pytest.mark.parametrize("name", ["train", "generate", "preprocess", "serve"])
def test_help_shows_the_common_options_and_help_all_each_option_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = load_command(name)
    rows = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main.main([flag])
        rows[flag] = re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", text := capsys.readouterr().out, re.MULTILINE)
        assert ("\nCommon:\n" in text) == text.endswith(f"All options: nmt-{name} --help-all\n") == (flag == "--help")
    options = [one for one in main.get_params(click.Context(main)) if isinstance(one, click.Option) and not one.hidden]
    assert 15 <= len(rows["--help"]) <= 24
    assert set(rows["--help"]) < set(rows["--help-all"])
    assert len(set(rows["--help-all"])) == len(rows["--help-all"]) == len(options)
    for one in options:
        assert len({*one.opts, *one.secondary_opts} & set(rows["--help-all"])) == 1


def test_help_shows_the_spelling_of_a_switch_that_changes_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    text = run("--help", capsys=capsys)[1]["text"]
    assert re.search(r"^  --no-bread +Whether with bread\.$", text, re.MULTILINE)
    for spelling, value in (("--bread", True), ("--no-bread", False)):
        assert run(spelling, capsys=capsys)[1]["bread"] is value


def test_the_version_option_prints_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = run("--version", capsys=capsys)
    assert code == 0
    assert shown["text"] == f"soup, version {nmtkit.__version__}\n"


def failing(error: BaseException) -> Any:
    @command("soup")
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("train.en: no such line"), 2, "soup: train.en: no such line\n"),
        (RunError("the disk\nis full"), 1, "soup: the disk is full\n"),
        (OSError(28, "No space left on device", "a.pt"), 1, "soup: a.pt: No space left on device\n"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a.pt"), 2, "soup: a.pt: File name too long\n"),
        (PermissionError(errno.EACCES, "Permission denied", "x/a.pt"), 2, "soup: x/a.pt: Permission denied\n"),
        (MemoryError(), 1, "soup: out of memory: stop other processes, or raise the limit (ulimit -v)\n"),
        (ImportError("libspoon.so: bad ELF header"), 1, "soup: cannot load a library: libspoon.so: bad ELF header\n"),
        (KeyboardInterrupt(), 130, "soup: interrupted\n"),
        (Terminated(), 143, "soup: terminated\n"),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_one_line(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        failing(error).main([])
    assert exit.value.code == code
    assert capsys.readouterr().err.lstrip("\n") == line


@pytest.mark.parametrize("error", [UserError("no"), KeyboardInterrupt()])
def test_debug_adds_the_traceback(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        failing(error).main(["--debug"])
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("soup: ")


def test_an_unexpected_exception_keeps_its_traceback() -> None:
    """A bug is not dressed up as a failure of the run."""
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError()).main([])


SCRIPT = """
import sys
from nmtkit.cli.command import command
from nmtkit.errors import UserError
from nmtkit.console.log import LogConfig, configure, logger

@command("soup")
def main():
    print("ready", flush=True)
    if "fail" in sys.argv[0]:
        raise UserError("no soup")
    if "log" in sys.argv[0]:
        configure(LogConfig())
        logger.info("it boils")
    for number in range(100_000):
        print(number)

main()
"""


def start(tmp_path: Path, name: str, stderr: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    script = tmp_path / name
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(nmtkit.__file__).parent.parent)}
    return subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
    )


def test_a_closed_pipe_stops_a_command_quietly(tmp_path: Path) -> None:
    with start(tmp_path, "count.py") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "ready\n"
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGPIPE
    assert err == ""


@pytest.mark.parametrize(("name", "code", "lines"), [("log.py", 0, 100_001), ("fail.py", 2, 1)])
def test_an_unwritable_log_does_not_change_the_output_or_the_exit_code(
    name: str, code: int, lines: int, tmp_path: Path
) -> None:
    with Path("/dev/full").open("wb") as full, start(tmp_path, name, stderr=full.fileno()) as process:
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert len(out.splitlines()) == lines


@pytest.mark.parametrize(("shared", "line"), [(True, ""), (False, "soup: rank 1: No such option --salty")])
def test_ranks_report_their_own_errors_unless_they_share_a_run(
    shared: bool, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nmtkit.cli.command._SECONDS_TO_REPORT", 0)
    monkeypatch.setattr(soup_command, "on_all_ranks", shared)
    for name, value in {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    code, _, err = run("--salty", capsys=capsys)
    assert (code, err[: len(line) or None]) == (2, line)


def test_a_name_that_is_not_utf8_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be found when the first checkpoint is written."""
    code, _, err = run("--kind", os.fsdecode(b"caf\xe9.txt"), capsys=capsys)
    assert (code, err) == (2, "soup: caf\\xe9.txt is not UTF-8: if it is a file, rename it\n")


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        *(("generate", "--input"), ("generate", "--config"), ("generate", "--source-tag")),
        *(("preprocess", "--source-tag"), ("train", "--freeze")),
    ],
)
def test_an_empty_name_or_text_is_refused(command: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its tag a line would be translated into another language."""
    with pytest.raises(SystemExit) as exit:
        import_module(f"nmtkit.cli.{command}").main([flag, ""])
    assert exit.value.code == 2
    assert re.search(rf"'{flag}': the (name|value) is empty", capsys.readouterr().err)

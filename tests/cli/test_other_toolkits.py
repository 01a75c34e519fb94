"""Options of other toolkits: each has an answer that names options which exist, in messages and in the documents."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from commands import Run
from repository import ROOT

from nmtkit.cli.other_toolkits import ARCHITECTURES, answer, options
from nmtkit.cli.start import load_command
from nmtkit.cli.train import main as nmt_train

FAIRSEQ = "fairseq"


def table(command: str, toolkits: str) -> str:
    """The options of some toolkits and their equivalents in a command, as docs/from-fairseq.md shows them."""
    lines = [f"| {toolkits} | {command} |", "|---|---|"]
    for names, found in options()[command][toolkits].items():
        quoted = ", ".join(f"`{option}`" for option in names.split())
        lines.append(f"| {quoted} | {found.removeprefix('use ')} |")
    return "\n".join(lines) + "\n"


DOCS = ROOT / "docs"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


def flags(command: str) -> set[str]:
    main = load_command(command.removeprefix("nmt-"))
    parameters = main.get_params(click.Context(main))
    return {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}


def rows() -> Iterator[tuple[str, str, str]]:
    """(command, option, answer) of all tables."""
    for command, tables in options().items():
        for found in tables.values():
            for names, text in found.items():
                yield from ((command, option, text) for option in names.split())


def test_each_hint_names_only_existing_options() -> None:
    for command, option, text in rows():
        assert re.match(r"(use|not needed:|not supported:) \S", text), (command, option)
        others = re.findall(r" of (nmt-[a-z]+)$", text)
        assert set(FLAG.findall(text)) - flags(others[0] if others else command) == set(), (command, option)
        assert len(FLAG.findall(text)) == len(re.findall(r"`--", text)), "an option without its quotes"


def test_no_option_of_a_command_is_listed_as_one_of_another_toolkit() -> None:
    for command, option, _ in rows():
        assert FLAG.fullmatch(option)
        assert option not in flags(command), f"{command} has {option} itself"


def test_an_option_of_another_toolkit_has_one_hint_per_command() -> None:
    answers: dict[tuple[str, str], str] = {}
    for command, option, text in rows():
        assert answers.setdefault((command, option), text) == text
        assert answer(command, option) == text.replace("`", "")
    assert len(answers) > 250


@pytest.mark.parametrize(
    ("command", "option", "expected"),
    [
        ("nmt-generate", "--path=a.pt", "--path: use --checkpoint, once for each model of an ensemble"),
        ("nmt-generate", "--beam_size", "--beam_size: use --beam"),
        ("nmt-generate", "--remove-bpe", "--remove-bpe; it is not needed: output is plain text"),
        ("nmt-train", "--max-update", "--max-update: use --max-updates"),
        ("nmt-generate", "-src", "-src: use --input"),
        ("nmt-train", "-save-dir=x", "-save-dir: write --save-dir, with two dashes"),
    ],
)
def test_an_option_of_another_toolkit_gives_a_one_line_hint(
    command: str, option: str, expected: str, run_here: Run
) -> None:
    done = run_here(command, option, "5")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"{command}: No such option {expected}")
    assert re.search(rf" \(see {command} --help(-all)?\)\n$", done.stderr.decode())
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(("theirs", "ours"), list(ARCHITECTURES.items())[:2])
def test_the_name_of_an_architecture_in_fairseq_gives_that_of_nmtkit(
    theirs: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        nmt_train(["data", "--arch", theirs])
    assert exit.value.code == 2
    assert f"{theirs} is called {ours} in nmtkit" in capsys.readouterr().err
    with nmt_train.make_context("nmt-train", ["data", "--arch", *ours.split()]) as context:
        assert context.params["arch"] == ours.split()[0]


def test_the_architectures_in_the_page_about_fairseq_are_those_of_the_messages() -> None:
    found: dict[str, str] = {}
    for line in (DOCS / "from-fairseq.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `--arch "):
            theirs, ours = (re.findall(r"`(?:--arch )?([^`]+)`", cell) for cell in line.split("|")[1:3])
            found.update(zip(theirs, ours, strict=True))
    assert len(found) == 4
    assert found.items() <= ARCHITECTURES.items()


def test_an_option_of_another_toolkit_in_a_config_file_gives_a_hint(run_here: Run, tmp_path: Path) -> None:
    config = tmp_path / "fairseq.toml"
    config.write_text("[optimization]\nmax_update = 100\n")
    done = run_here("nmt-train", "data", "--config", config)
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"nmt-train: --config {config}: table 'optimization': "
        "nmt-train has no option --max-update that a file can set: use --max-updates\n"
    )


@pytest.mark.parametrize("command", options())
def test_the_migration_pages_match_the_option_tables(command: str) -> None:
    for toolkits in options()[command]:
        page = "from-fairseq.md" if toolkits == FAIRSEQ else "from-other-toolkits.md"
        expected = f"## {command}\n\n{table(command, toolkits)}"
        sections = (DOCS / page).read_text(encoding="utf-8").split("\n\n## ")
        (section,) = (f"## {section}".rstrip("\n") + "\n" for section in sections if section.startswith(f"{command}\n"))
        assert section == expected

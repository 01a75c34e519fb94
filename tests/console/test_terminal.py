"""Output on a pseudo-terminal: styled tables, log lines, help and errors, and plain text where styles are unwanted."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import TINY
from repository import BIN
from terminals import Shown, on_terminal

from nmtkit.console.terminal import Table, styled_event, styled_line, styled_table

HOSTILE = "e\x1b]0;owned\x07\r\x9b2J\u202en[red]x[/]"
SHOWN = r"e\x1b]0;owned\x07\r\x9b2J\u202en[red]x[/]"
STYLES = re.compile(r"\x1b\[[0-9;]*m")
LOG = ("-c", "from nmtkit.console.log import *; configure(LogConfig()); report('train', {'loss': 4.3219, 'update': 7})")
PLAIN = [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"columns": 59}]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize(
    "text",
    [
        styled_event("12:00:00", HOSTILE, {HOSTILE: HOSTILE}, 300),
        styled_line(("12:00:00 ", "dim"), (HOSTILE, "bold red")),
        styled_table(Table(HOSTILE, [(HOSTILE, HOSTILE)], (HOSTILE, HOSTILE), next=HOSTILE), 300),
    ],
    ids=["event", "line", "table"],
)
def test_external_text_is_shown_without_markup_or_control_characters(text: str) -> None:
    plain = STYLES.sub("", text)
    assert SHOWN in plain
    assert all(line.isprintable() for line in plain.split("\n"))


def test_numbers_of_consecutive_events_are_aligned() -> None:
    first, second = (
        STYLES.sub("", styled_event("12:00:00", "train", {"update": update, "loss": loss}, 100)).rstrip()
        for update, loss in ((1, 10.51), (123_456, 4.0))
    )
    assert first.index("loss") == second.index("loss")
    assert len(first) == len(second)


def test_a_table_shows_every_cell_and_the_next_command() -> None:
    table = Table("dataset", [("train", 29_000, 4.5)], ("split", "pairs", "unknown %"), next="nmt-train data-bin")
    shown = STYLES.sub("", styled_table(table, 80))
    assert "│ train │ 29,000 │       4.5 │" in shown
    assert shown.endswith("Next: nmt-train data-bin")


def test_long_cells_are_folded_and_never_cut() -> None:
    signature = "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
    shown = STYLES.sub("", styled_table(Table("scores", [("BLEU", signature)]), 40))
    cells = [line.split("│")[2].strip() for line in shown.split("\n") if line.startswith("│")]
    assert "".join(cells) == signature


def test_a_log_line_is_styled_on_a_terminal() -> None:
    shown = on_terminal(LOG)
    assert shown.is_styled
    assert re.search(r"^\d\d:\d\d:\d\d train loss +4\.322 +update +7 +$", shown.text, re.MULTILINE)


@pytest.mark.parametrize("plain", PLAIN, ids=["NO_COLOR", "TERM=dumb", "59 columns"])
def test_a_log_line_is_plain_if_styles_are_disabled(plain: dict[str, str | None]) -> None:
    shown = on_terminal(LOG, **plain)  # type: ignore[arg-type]
    assert not shown.is_styled
    assert re.fullmatch(r"\d\d:\d\d:\d\d train \| loss 4\.322 \| update 7\n", shown.text)


def nmt(name: str, *arguments: object, **settings: object) -> Shown:
    return on_terminal((BIN / f"nmt-{name}", *arguments), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["score", "average"])
def test_help_is_in_panels_on_a_terminal(command: str) -> None:
    shown = nmt(command, "--help", stdout=True)
    assert shown.code == 0
    assert re.search(r"^╭─ General ─+╮$", shown.text, re.MULTILINE)
    assert max(map(len, shown.text.split("\n"))) <= 100


def test_help_in_panels_has_the_groups_and_options_of_the_plain_help() -> None:
    plain = nmt("train", "--help-all").stdout.decode()
    panels = nmt("train", "--help-all", stdout=True, columns=160).text
    headings = re.findall(r"^(\S.*):$", plain, re.MULTILINE)
    assert headings == re.findall(r"^╭─ (.*?) ─*╮$", panels, re.MULTILINE)
    flags = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b(?!-\n)")
    assert set(flags.findall(plain)) == set(flags.findall(panels))


def test_help_in_a_pipe_or_a_narrow_terminal_is_plain() -> None:
    assert b"\x1b" not in nmt("average", "--help").stdout
    assert "╭" not in nmt("average", "--help", stdout=True, columns=59).text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, datasets: dict[str, Path]) -> tuple[Path, Shown]:
    """A folder with text and a training run, and what the training has shown."""
    folder = tmp_path_factory.mktemp("terminal")
    for end in ("en", "de"):
        shutil.copy(datasets["joined"].parent / f"valid.{end}", folder)
    limits = ("--max-updates", 6, "--validate-every", 3, "--save-every", 3, "--valid-bleu")
    shown = nmt("train", datasets["joined"], "--save-dir", folder / "run", *TINY, *limits, columns=200)
    assert shown.code == 0, shown.text
    return folder, shown


def rows(shown: str, title: str) -> list[list[str]]:
    """The cells of the rows of a table without header."""
    _, _, table = shown.partition(f"{title}")
    lines = table.partition("╰")[0].split("\n")
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


def labels(shown: str, title: str) -> Sequence[str]:
    return [row[0] for row in rows(shown, title) if row[0]]


def test_a_training_shows_its_start_validations_and_end_in_tables(run: tuple[Path, Shown]) -> None:
    folder, shown = run
    assert labels(shown.text, "training  ")[:5] == ["model", "data", "device", "checkpoints", "plan"]
    assert labels(shown.text, "validation after update 3")[:3] == ["update", "epoch", "valid_loss"]
    assert labels(shown.text, "end of training") == ["time", "best validation", "checkpoints", "cost"]
    assert f"Next: nmt-average {folder / 'run'} --last 2 --output averaged.pt" in shown.text
    assert shown.stdout == b""


def test_validation_translation_and_saving_show_progress(run: tuple[Path, Shown]) -> None:
    for words in ("validating:", "translating:", "writing checkpoint 3 00:00"):
        assert words in run[1].text


def test_an_average_is_shown_with_the_command_to_translate_with_it(run: tuple[Path, Shown]) -> None:
    folder, _ = run
    output = folder / "averaged.pt"
    shown = nmt("average", folder / "run", "--last", 2, "--output", output, columns=200)
    assert f"wrote {output}, the average of checkpoint_3.pt, checkpoint_6.pt" in shown.text
    assert f"translate with it: nmt-generate --checkpoint {output} --input FILE" in shown.text


def test_a_translation_ends_in_tables_and_leaves_stdout_alone(run: tuple[Path, Shown]) -> None:
    folder, _ = run
    asked = ("--checkpoint", folder / "run/checkpoint_last.pt", "--input", folder / "valid.en", "--device", "cpu")
    scored = ("--sacrebleu", "--reference", folder / "valid.de")
    shown = nmt("generate", *asked, *scored, columns=80)
    assert labels(shown.text, "translation  ")[:2] == ["sentences", "tokens"]
    assert [row[0] for row in rows(shown.text, "scores  ")] == ["metric", "BLEU", "chrF2"]
    assert re.search(r"^BLEU\|nrefs:1\|case:mixed\|eff:no\|tok:13a\|\S+ = [0-9.]+ ", shown.text, re.MULTILINE)
    plain = nmt("generate", *asked, NO_COLOR="1")
    assert shown.stdout == plain.stdout
    assert len(shown.stdout.splitlines()) == 17
    written = nmt("generate", *asked, "--output", folder / "out.de")
    command = f"nmt-score {folder / 'out.de'} --reference FILE --target-lang de"
    assert "".join(command.split()) in "".join(written.text.split())  # which may be wrapped anywhere

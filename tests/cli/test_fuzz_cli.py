"""Random options: a command ends with one line and exit code 2, and a search gives every line its rows or refuses."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from commands import Run

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.cli.start import load_command
from nmtkit.console.log import logger
from nmtkit.decoding import footprint
from nmtkit.decoding.config import EngineConfig
from nmtkit.decoding.translator import Translator
from nmtkit.wording import escaped

# Arguments that the command needs. All files are missing, so that no command does any work.
NEEDED = {
    "preprocess": ["-s", "en", "-t", "de", "--trainpref", "missing", "--destdir", "missing-data"],
    "train": ["missing"],
    "average": ["missing.pt", "--output", "averaged.pt"],
    "export": ["missing.pt", "--to", "checkpoint", "--output", "exported.pt"],
    "import": ["m", "--output", "b"],
    "generate": ["--checkpoint", "missing.pt"],
    "score": ["missing", "--reference", "missing", "-t", "de"],
}
NOT_TRIED = {"--help", "--help-all", "-h", "--version", "--debug"}  # these end differently
VALUES = (
    *("", " ", "-", "--", "0", "-1", "1_000", "0x10", "1e400", "nan", "-inf", "9" * 400, "auto", "true", "{}"),
    *("a\nb\n", "\x1b]0;owned\x07", "\x9b2J", "\u202edetar", "\udc80", "🙂", "..", "x" * 300),
)
NAMES = ("--", "---", "-", "-x", "--\x1b[31m", "--é", "--beam\n", "--lenpen")


@pytest.fixture
def within_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Options that are files name nothing, and nothing is written; logging stays as it is."""
    monkeypatch.chdir(tmp_path)
    handlers, propagate, level, hook = logger.handlers, logger.propagate, logger.level, sys.excepthook
    yield
    assert list(tmp_path.iterdir()) == []
    logger.handlers, logger.propagate, sys.excepthook = handlers, propagate, hook
    logger.setLevel(level)


@pytest.mark.usefixtures("within_an_empty_folder")
@pytest.mark.parametrize("name", NEEDED)
def test_random_options_give_a_one_line_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    draw, main = random.Random(f"options of {name}"), load_command(name)
    known = {flag for one in main.get_params(click.Context(main)) for flag in (*one.opts, *one.secondary_opts)}
    flags = sorted(flag for flag in known - NOT_TRIED if flag.startswith("-"))
    for _ in range(40):
        words = list(NEEDED[name])
        for _ in range(draw.randint(1, 4)):
            option, value = draw.choice(flags if draw.random() < 0.8 else NAMES), draw.choice(VALUES)
            place = draw.choice([0, len(words)])
            words[place:place] = draw.choice([[option, value], [f"{option}={value}"], [option], [value]])
        with pytest.raises(SystemExit) as exit:
            main.main(words)
        out, err = capsys.readouterr()
        lines = [line for line in err.removesuffix("\n").split("\n") if " warning: " not in line[:20]]
        assert (exit.value.code, out, len(lines)) == (2, "", 1), (words, err)
        assert lines[0].startswith(f"nmt-{name}: ")
        assert lines == list(map(escaped, lines))


SEARCH: dict[str, list[object]] = {
    "--beam": [1, 2, 5, 10**6, 0],
    "--nbest": [1, 2, 5],
    "--length-penalty": [0, 3.5, 1e300, "nan"],
    "--length-penalty-form": ["gnmt", "power", "other"],
    "--max-len-a": [0, 1, -1],
    "--max-len-b": [0, 3],
    "--min-len": [0, 3, 50],
    "--no-repeat-ngram": [1, 2],
    "--ban": ["dog", "die katze", " "],
    "--diverse-groups": [1, 2, 3],
    "--diversity": [0, 0.5],
    "--top-k": [1, 10**9],
    "--top-p": [0.5, 2],
    "--temperature": [0.01, 1e6],
    "--seed": [0, 2**64],
    "--alignment-layer": [1, 9],
    "--format": ["text", "tsv", "jsonl", "pharaoh", "pharaoh-pieces"],
    "--buffer": [1, 3],
    "--max-tokens": [1, 20],
    "--max-source-tokens": [1, 4, 1000],
    "--overlong": ["cut", "split"],
}
SWITCHES = ["--sampling", "--alignment", "--copy-unknown", "--interactive", "--sacrebleu"]
WORDS = ["the", "dog", "die", "", " ", "猫", "\x00", "\u2028", "</s>", "<0x0A>", "\r", "straße." * 5]


@pytest.fixture
def translators(make_checkpoint: Callable[..., Checkpoint]) -> list[Translator]:
    """One that searches by torch, and one that may be compiled."""
    engine = EngineConfig(device="cpu", precision="fp32")
    return [Translator.of([make_checkpoint(**options)], engine) for options in ({"attention_window": 2}, {})]


def rows_of(options: list[object], lines: int) -> range:
    """The possible numbers of output lines for `lines` lines of input."""
    value = {name: options[n + 1] for n, name in enumerate(options[:-1]) if name in SEARCH}
    nbest, layout = int(str(value.get("--nbest", 1))), value.get("--format", "text")
    if layout == "tsv":
        return range(lines, nbest * lines + 1)
    rows = lines if layout == "jsonl" else nbest * lines
    return range(rows, rows + 1)


def test_every_combination_of_search_options_gives_its_rows_or_a_one_line_error(
    run_here: Run, translators: list[Translator], tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_checkpoint(tiny_checkpoint)
    monkeypatch.setattr("nmtkit.decoding.generation.load_checkpoint", lambda path: loaded)
    monkeypatch.setattr(footprint, "free_memory", lambda device: 2e8)
    draw, codes = random.Random(1), []
    for case in range(100):
        monkeypatch.setattr(footprint, "_admitted", {})
        monkeypatch.setattr(Translator, "of", lambda *_, own=translators[case % 2]: own)
        chosen = draw.sample(sorted(SEARCH), draw.choice([0, 1, 2, 2, 3, 4]))
        options: list[object] = [word for name in chosen for word in (name, draw.choice(SEARCH[name]))]
        options += draw.sample(SWITCHES, 1) if draw.random() < 0.4 else []
        text = "".join(" ".join(draw.choices(WORDS, k=draw.randint(0, 5))) + "\n" for _ in range(draw.randint(0, 4)))
        limits = () if {"--max-len-a", "--max-len-b"} & set(options) else ("--max-len-a", 0.5, "--max-len-b", 2)
        command = ("--checkpoint", tiny_checkpoint, "--device", "cpu", "--quiet", *limits, *options)
        done = run_here("nmt-generate", *command, input=text.encode())
        shown = (options, text, done.returncode, done.stdout, done.stderr)
        codes.append(done.returncode)
        assert done.returncode in (0, 2), shown
        if done.returncode == 0:
            assert done.stdout.count(b"\n") in rows_of(options, text.count("\n")), shown
        else:
            assert done.stdout == b"", shown
            assert done.stderr.startswith(b"nmt-generate: "), shown
            assert done.stderr.count(b"\n") == 1, shown
    assert min(codes.count(0), codes.count(2)) > 20  # both occur often

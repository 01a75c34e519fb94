"""Random combinations of nmt-generate's search options: every line gets its rows, or one line says what is wrong."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Run

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.decoding import footprint
from nmtkit.decoding.config import EngineConfig
from nmtkit.decoding.translator import Translator

CASES = 150
VALUES: dict[str, list[object]] = {
    "--beam": [1, 2, 3, 5, 8, 10**6, 0],
    "--nbest": [1, 2, 4, 5, 10**6],
    "--length-penalty": [0, 0.6, 3.5, 1e300, "nan"],
    "--length-penalty-form": ["gnmt", "power", "none", "other"],
    "--max-len-a": [0, 0.5, 1, -1],
    "--max-len-b": [0, 1, 3],
    "--min-len": [0, 1, 3, 50],
    "--no-repeat-ngram": [1, 2, 3],
    "--ban": ["dog", "die katze", "猫", " ", "<s>"],
    "--diverse-groups": [1, 2, 3],
    "--diversity": [0, 0.5, 1e6],
    "--top-k": [1, 2, 10**9],
    "--top-p": [1e-6, 0.5, 1.0, 2],
    "--temperature": [0.01, 1, 1e6],
    "--seed": [0, 7, 2**64 - 1, 2**64],
    "--alignment-layer": [1, 2, 9],
    "--format": ["text", "tsv", "jsonl", "pharaoh"],
    "--buffer": [1, 3],
    "--max-tokens": [1, 20],
    "--max-source-tokens": [1, 4, 1000],
    "--overlong": ["cut", "split"],
}
FLAGS = ["--sampling", "--alignment", "--copy-unknown", "--interactive", "--sacrebleu"]
DEFAULT_VOCAB_SIZE = [
    "the",
    "dog",
    "die",
    "katze",
    "",
    " ",
    "\t",
    "猫",
    "\x00",
    "\u2028",
    "</s>",
    "<0x0A>",
    "\r",
    "straße." * 5,
    "🙂",
]


@pytest.fixture
def translators(make_checkpoint: Callable[..., Checkpoint]) -> list[Translator]:
    """One that searches by torch, and one that may be compiled."""
    engine = EngineConfig(device="cpu", precision="fp32")
    return [Translator.of([make_checkpoint(**options)], engine) for options in ({"attention_window": 2}, {})]


def arguments(draw: random.Random) -> list[object]:
    chosen = draw.sample(sorted(VALUES), draw.choice([0, 1, 2, 2, 3, 4]))
    found: list[object] = [word for name in chosen for word in (name, draw.choice(VALUES[name]))]
    return found + (draw.sample(FLAGS, 1) if draw.random() < 0.4 else [])


def rows_of(options: list[object], lines: int) -> range:
    """How many lines of output so many lines of input have."""
    value = {name: options[n + 1] for n, name in enumerate(options[:-1]) if name in VALUES}
    nbest, layout = int(str(value.get("--nbest", 1))), value.get("--format", "text")
    if layout == "tsv":
        return range(lines, nbest * lines + 1)
    rows = lines if layout == "jsonl" else nbest * lines
    return range(rows, rows + 1)


def test_every_combination_of_options_gives_its_rows_or_a_one_line_error(
    run_here: Run, translators: list[Translator], tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_checkpoint(tiny_checkpoint)
    monkeypatch.setattr("nmtkit.decoding.generation.load_checkpoint", lambda path: loaded)
    monkeypatch.setattr(footprint, "free_memory", lambda device: 2e8)
    draw, codes = random.Random(1), []
    for case in range(CASES):
        monkeypatch.setattr(footprint, "_admitted", {})
        monkeypatch.setattr(Translator, "of", lambda *_, own=translators[case % 2]: own)
        options = arguments(draw)
        text = "".join(
            " ".join(draw.choices(DEFAULT_VOCAB_SIZE, k=draw.randint(0, 5))) + "\n" for _ in range(draw.randint(0, 4))
        )
        limits = () if {"--max-len-a", "--max-len-b"} & set(options) else ("--max-len-a", 0.5, "--max-len-b", 2)
        command = ("--checkpoint", tiny_checkpoint, "--device", "cpu", "--quiet", *limits, *options)
        done = run_here("nmt-generate", *command, input=text.encode())
        said = (options, text, done.returncode, done.stdout, done.stderr)
        codes.append(done.returncode)
        assert done.returncode in (0, 2), said
        if done.returncode == 0:
            assert done.stdout.count(b"\n") in rows_of(options, text.count("\n")), said
            assert all(line.split(b" ")[1] == b"warning:" for line in done.stderr.splitlines()), said
        else:
            assert done.stdout == b"", said
            assert done.stderr.startswith(b"nmt-generate: "), said
            assert done.stderr.count(b"\n") == 1, said
    assert min(codes.count(0), codes.count(2)) > CASES // 5  # both kinds are met often

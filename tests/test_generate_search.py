"""The options of the search as users give them to nmt-generate."""

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest
from conftest import Run

FAST = ("--max-len-b", 3, "--device", "cpu", "--precision", "fp32")
LINES = b"the dog runs\n\na cat\ndie katze\n"


@pytest.fixture
def generate(run_here: Run, tiny_checkpoint: Path) -> Run:
    """Run nmt-generate with the tiny checkpoint."""
    return partial(run_here, "nmt-generate", "--checkpoint", tiny_checkpoint, *FAST)


def lines_of(done: "subprocess.CompletedProcess[bytes]") -> list[str]:
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split("\n")[:-1]


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--top-k", 3), "--top-k"),
        (("--seed", 3), "--seed"),
        (("--sampling", "--beam", 3), "--beam"),
        (("--diversity", 0.3), "--diversity"),
        (("--sampling", "--diverse-groups", 2), "--diverse-groups"),
        (("--beam", 4, "--diverse-groups", 3), "--diverse-groups"),
        (("--length-penalty-form", "none", "--length-penalty", 0.3), "--length-penalty"),
        (("--ban", " "), "--ban"),
    ],
)
def test_options_without_sense_are_refused(generate: Run, arguments: tuple[object, ...], flag: str) -> None:
    done = generate(*arguments, input=LINES)
    assert (done.returncode, done.stdout) == (2, b"")
    assert flag in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_samples_follow_from_the_seed_and_the_line_alone(generate: Run) -> None:
    sample = partial(generate, "--sampling", "--nbest", 2, "--top-k", 50)
    drawn = lines_of(sample(input=LINES))
    assert len(drawn) == 8
    assert lines_of(sample("--batch-tokens", 1, "--buffer", 2, input=LINES)) == drawn
    backwards = b"\n".join(LINES.splitlines()[::-1]) + b"\n"
    pairs = [drawn[i : i + 2] for i in range(0, 8, 2)]
    assert lines_of(sample(input=backwards)) == [text for pair in pairs[::-1] for text in pair]
    assert lines_of(sample("--seed", 2, input=LINES)) != drawn


def test_banned_words_do_not_come(generate: Run) -> None:
    first = lines_of(generate(input=LINES))[0]
    word = first.split()[0]
    without = lines_of(generate("--ban", word, "--ban", "never seen \u2603", input=LINES))[0]
    assert word not in without.split()
    assert without


def test_an_output_is_as_long_as_asked_for(generate: Run) -> None:
    for kind in ((), ("--sampling",)):
        rows = lines_of(generate("--format", "jsonl", "--min-len", 4, "--no-repeat-ngram", 1, *kind, input=LINES))
        tokens = [json.loads(row)["hypotheses"][0]["tokens"] for row in rows]
        assert [len(pieces) >= 5 for pieces in tokens] == [True, False, True, True]
        assert all(len(set(pieces)) == len(pieces) for pieces in tokens)

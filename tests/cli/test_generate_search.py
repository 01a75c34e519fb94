"""The options of the search as users give them to nmt-generate."""

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import Run

FAST = ("--device", "cpu", "--precision", "fp32")
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
        (("--sampling", "--beam", 3), "--beam"),
        (("--sampling", "--diverse-groups", 2), "--diverse-groups"),
        (("--beam", 4, "--diverse-groups", 3), "--diverse-groups"),
        (("--ban", " "), "--ban"),
    ],
)
def test_meaningless_options_are_refused(generate: Run, arguments: tuple[object, ...], flag: str) -> None:
    done = generate(*arguments, input=LINES)
    assert (done.returncode, done.stdout) == (2, b"")
    assert flag in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_samples_depend_only_on_the_seed_and_the_line(generate: Run) -> None:
    sample = partial(generate, "--sampling", "--nbest", 2, "--top-k", 50)
    drawn = lines_of(sample(input=LINES))
    assert len(drawn) == 8
    assert lines_of(sample("--max-tokens", 1, "--buffer", 2, input=LINES)) == drawn
    assert lines_of(sample("--batch-tokens", 1, "--buffer", 2, input=LINES)) == drawn  # its former name
    backwards = b"\n".join(LINES.splitlines()[::-1]) + b"\n"
    pairs = [drawn[i : i + 2] for i in range(0, 8, 2)]
    assert lines_of(sample(input=backwards)) == [text for pair in pairs[::-1] for text in pair]
    assert lines_of(sample("--seed", 2, input=LINES)) != drawn


def test_banned_words_do_not_occur_in_the_output(generate: Run) -> None:
    first = lines_of(generate(input=LINES))[0]
    word = first.split()[0]
    without = lines_of(generate("--ban", word, "--ban", "never seen \u2603", input=LINES))[0]
    assert word not in without.split()
    assert without
    assert word != word.swapcase()
    for options, is_banned in (((), False), (("--ignore-case",), True)):
        other = lines_of(generate("--ban", word.swapcase(), *options, input=LINES))[0]
        assert (word in other.split()) != is_banned


# Beside the input ------------------------------------------------------------------------------------------------


@pytest.fixture
def beside(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file that stands beside the input."""

    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_prefixes_are_read_from_a_file(generate: Run, beside: Callable[[str, str], Path]) -> None:
    prefixes = beside("prefix", "der hund\n\n\ndie katze\n")
    texts = lines_of(generate("--prefix", prefixes, "--buffer", 2, input=LINES))
    plain = lines_of(generate(input=LINES))
    assert texts[0].startswith("der hund")
    assert texts[1:3] == plain[1:3]
    assert texts[3].startswith("die katze")


def test_scoring_gives_the_same_scores_as_the_search(generate: Run, beside: Callable[[str, str], Path]) -> None:
    rows = [json.loads(row) for row in lines_of(generate("--format", "jsonl", "--beam", 2, input=LINES))]
    found = [row["hypotheses"][0] for row in rows]
    given = beside("given", "".join(f"{hypothesis['text']}\n" for hypothesis in found))
    scores = lines_of(generate("--score", given, input=LINES))
    scored = [
        json.loads(row)["hypotheses"][0]
        for row in lines_of(generate("--score", given, "--format", "jsonl", input=LINES))
    ]
    log_probs = [sum(own["token_log_probs"]) for own in scored]
    assert [float(score) for score in scores] == pytest.approx(log_probs, abs=1e-5)
    same = [(own, other) for own, other in zip(found, scored, strict=True) if own["tokens"] == other["tokens"]]
    assert same
    for own, other in same:
        assert other["score"] == pytest.approx(own["score"], abs=1e-4)
        assert other["token_log_probs"] == pytest.approx(own["token_log_probs"], abs=1e-4)


def test_a_parallel_file_with_a_different_line_count_is_refused(
    generate: Run, beside: Callable[[str, str], Path]
) -> None:
    done = generate("--score", beside("given", "a\nb\n"), input=LINES, piped=True)
    assert done.returncode == 2
    assert b"fewer lines than the input" in done.stderr
    text = beside("text", LINES.decode())
    done = generate("--input", text, "--prefix", beside("prefix", "a\n" * 5))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"has 5 lines, the input has 4" in done.stderr


def test_search_options_are_refused_with_scoring(generate: Run, beside: Callable[[str, str], Path]) -> None:
    given = beside("given", "a\n" * 4)
    for arguments in (("--beam", 3), ("--sampling",), ("--prefix", given), ("--min-len", 3), ("--length-penalty", 1)):
        done = generate("--score", given, *arguments, input=LINES)
        assert (done.returncode, done.stdout) == (2, b"")


def test_required_and_glossary_terms_occur_in_the_output(generate: Run, beside: Callable[[str, str], Path]) -> None:
    terms = beside("terms", "hund\tdie stra\u00dfe\nder\n\n\u2603 snow\n")
    glossary = beside("glossary", "cat\tkatze l\u00e4uft\ndog\thund\n")
    asked = generate("--constraints", terms, "--glossary", glossary, "--beam", 2, "--buffer", 3, input=LINES)
    texts = lines_of(asked)
    assert "hund" in texts[0]
    assert "die stra\u00dfe" in texts[0]
    assert texts[1] == ""
    assert "katze l\u00e4uft" in texts[2]
    with_workers = generate("--constraints", terms, "--glossary", glossary, "--beam", 2, "--workers", 2, input=LINES)
    assert lines_of(with_workers) == texts
    done = generate("--constraints", terms, "--sampling", input=LINES)
    assert (done.returncode, done.stdout) == (2, b"")

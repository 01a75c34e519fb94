"""nmt-generate against arbitrary bytes: each line has its line, in order, whatever comes in."""

import json
from collections.abc import Callable
from functools import partial

import pytest
from conftest import Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding import engine
from nmtkit.decoding.search import Hypothesis
from nmtkit.tokenizer import Tokenizer
from nmtkit.vocab import EOS, PAD

Command = Callable[..., list[str]]

fuzzed = partial(
    settings,
    deadline=None,
    derandomize=True,  # the same cases in every run
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # `command` keeps nothing from one case to the next
)

BLANKS = [
    "",
    " ",
    "\t",
    "\r",
    " \r",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\xa0",
    "\u2028",
    "\u2029",
    "\u3000",
    "\x00",
    "\ufeff",
]
lines = st.one_of(
    st.binary(max_size=24),
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(
        st.sampled_from(["dog", "die katze", "\u00ad", "\u200b", "<s>", "</s>", "<0x0A>", "▁", *BLANKS]), max_size=4
    )
    .map(" ".join)
    .map(str.encode),
    st.sampled_from(BLANKS).map(str.encode),
)  # most hold no line feed, some hold several
texts = st.one_of(st.lists(lines, max_size=12).map(b"\n".join), st.binary(max_size=200))


def lines_of(text: bytes) -> list[str]:
    """What the command is to take for lines: all between line feeds, and nothing after the last of them."""
    found = [line.decode("utf-8", "replace") for line in text.split(b"\n")]
    return found if found[-1] else found[:-1]


@pytest.fixture
def command(run_here: Run, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch) -> Command:
    """nmt-generate with a tiny model that is loaded once."""
    loaded = make_checkpoint()
    monkeypatch.setattr("nmtkit.checkpoint.load_checkpoint", lambda path: loaded)

    def run(*arguments: object, text: bytes) -> list[str]:
        done = run_here("nmt-generate", "--checkpoint", "tiny.pt", "--device", "cpu", *arguments, input=text)
        assert done.returncode == 0, done.stderr.decode()
        assert not done.stdout or done.stdout.endswith(b"\n")
        return done.stdout.decode().split("\n")[:-1]

    return run


@fuzzed(max_examples=2000)
@given(text=texts, buffer=st.integers(1, 5), batch_tokens=st.integers(1, 30))
def test_lines_come_out_in_the_order_they_came_in(
    text: bytes, buffer: int, batch_tokens: int, command: Command, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line is its own tag: the search gives the source back."""

    def echo(model: object, src: Tensor, *_: object) -> list[list[Hypothesis]]:
        rows = [[token for token in row if token not in (PAD, EOS)] for row in src.tolist()]
        return [[Hypothesis(row, 0.0, [0.0] * (len(row) + 1))] for row in rows]

    monkeypatch.setattr(engine, "search", echo)
    pieces = tokenizer.encode(lines_of(text))
    expected = [tokenizer.decode(ids) if line.strip() else "" for line, ids in zip(lines_of(text), pieces, strict=True)]
    assert command("--buffer", buffer, "--batch-tokens", batch_tokens, text=text) == expected


@fuzzed(max_examples=300)
@given(text=texts, buffer=st.integers(1, 5), nbest=st.integers(1, 2))
def test_blank_lines_and_no_others_are_empty(text: bytes, buffer: int, nbest: int, command: Command) -> None:
    """With the model itself; the source stands beside its translations."""
    small = ("--beam", 2, "--max-len-a", 0, "--max-len-b", 2, "--max-source-tokens", 9)
    rows = [
        json.loads(row) for row in command(*small, "--format", "jsonl", "--buffer", buffer, "--nbest", nbest, text=text)
    ]
    assert [row["line"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["source"] for row in rows] == lines_of(text)
    for row in rows:
        if not row["source"].strip():
            assert [(found["text"], found["tokens"]) for found in row["hypotheses"]] == [("", [])]

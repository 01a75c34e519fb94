"""nmt-generate against arbitrary bytes: each line has its line, in order, whatever comes in."""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nmtkit.checkpoint import load_checkpoint
from nmtkit.decoding.engine import SearchBatch
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.translator import Translator
from nmtkit.inference.backends import torch_backend
from nmtkit.text.tokenizer import Tokenizer

Command = Callable[..., list[str]]

fuzzed = partial(
    settings,
    deadline=None,
    derandomize=True,  # the same cases in every run
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # `command` keeps nothing from one case to the next
)

BLANKS = ["", " ", "\t", "\r", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\x00", "\ufeff"]
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
OTHER_CONTENT = (  # is refused
    *(b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"(\xb5/\xfd", BOM_UTF16_LE, BOM_UTF16_BE),
    *(b"PK\x03\x04", b"%PDF-", b"{\\rtf", b"\xd0\xcf\x11\xe0"),
)
texts = st.one_of(st.lists(lines, max_size=12).map(b"\n".join), st.binary(max_size=200)).filter(
    lambda text: not text.startswith(OTHER_CONTENT)
)


def lines_of(text: bytes) -> list[str]:
    """What the command is to take for lines: all between line feeds, after any byte order mark; none after the last."""
    found = [line.decode("utf-8", "replace") for line in text.removeprefix(BOM_UTF8).split(b"\n")]
    return found if found[-1] else found[:-1]


@pytest.fixture
def command(run_here: Run, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """nmt-generate with a tiny model that is built once."""
    loaded = load_checkpoint(tiny_checkpoint)
    translator = Translator(torch_backend(loaded.build_model()), loaded.source, loaded.target)
    monkeypatch.setattr("nmtkit.decoding.generation.load_checkpoint", lambda path: loaded)
    monkeypatch.setattr(Translator, "of", lambda *_: translator)

    def run(*arguments: object, text: bytes, piped: bool = False) -> list[str]:
        options = ("--checkpoint", tiny_checkpoint, "--device", "cpu", *arguments)
        done = run_here("nmt-generate", *options, input=text, piped=piped)
        assert done.returncode == 0, done.stderr.decode()
        assert not done.stdout or done.stdout.endswith(b"\n")
        return done.stdout.decode().split("\n")[:-1]

    return run


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that gives the source back, so that each line is its own tag."""

    def search(model: object, batch: SearchBatch, *_: object) -> list[list[Hypothesis]]:
        nbest = batch.config.nbest
        return [[Hypothesis(row[:-1], 0.0, [0.0] * len(row)) for _ in range(nbest)] for row in batch.sources]

    monkeypatch.setattr("nmtkit.decoding.engine.search_batch", search)


@fuzzed(max_examples=300)
@given(text=texts, buffer=st.integers(1, 5), max_tokens=st.integers(1, 30), piped=st.booleans())
def test_output_lines_keep_the_order_of_the_input(
    text: bytes, buffer: int, max_tokens: int, piped: bool, command: Command, tokenizer: Tokenizer, echo: None
) -> None:
    """From a file, and from a pipe that a thread reads."""
    pieces = tokenizer.encode(lines_of(text))
    expected = [tokenizer.decode(ids) if line.strip() else "" for line, ids in zip(lines_of(text), pieces, strict=True)]
    assert command("--buffer", buffer, "--max-tokens", max_tokens, text=text, piped=piped) == expected


@fuzzed(max_examples=60)
@given(
    text=texts,
    layout=st.sampled_from(["text", "tsv", "jsonl"]),
    nbest=st.integers(1, 2),
    kept=st.floats(0, 1),
    buffer=st.integers(1, 5),
)
def test_an_output_truncated_anywhere_is_resumed_to_the_same_bytes(
    text: bytes, layout: str, nbest: int, kept: float, buffer: int, command: Command, echo: None, tmp_path: Path
) -> None:
    output, partial = tmp_path / "out", tmp_path / "out.partial"
    options = ("--nbest", nbest, "--format", layout, "--buffer", buffer, "--output", output)
    command(*options, text=text)
    whole = output.read_bytes()
    partial.write_bytes(whole[: int(kept * len(whole))])
    output.unlink()
    command(*options, "--resume", text=text)
    assert output.read_bytes() == whole
    assert not partial.exists()

"""The memory that a search takes: estimated, compared with what is free, and refused in one line."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from allocations import peak_memory
from commands import Run

from nmtkit.checkpoint import Checkpoint
from nmtkit.data.padding import pad
from nmtkit.decoding import footprint, search
from nmtkit.decoding.config import EngineConfig, SearchConfig, StreamConfig
from nmtkit.decoding.footprint import missing_memory, search_bytes
from nmtkit.decoding.rules import Constraints
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.inference.arrays import Ints
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import EOS


@pytest.fixture(autouse=True)
def nothing_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "_admitted", {})


def with_free(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    """Have only so many bytes free."""
    monkeypatch.setattr(footprint, "free_memory", lambda device: size)


CASES: dict[str, tuple[SearchConfig, list[Constraints]]] = {
    "beam": (SearchConfig(beam=200, max_len_b=6), []),
    "long outputs": (SearchConfig(beam=40, max_len_b=120, min_len=120), []),
    "n best": (SearchConfig(beam=150, nbest=150, max_len_b=6), []),
    "groups": (SearchConfig(beam=120, diverse_groups=4, max_len_b=6), []),
    "terms": (SearchConfig(beam=60, max_len_b=6), [Constraints(terms=(((5, 6, 7),), ((8, 9),)))]),
    "prefix": (SearchConfig(beam=300, max_len_b=6), [Constraints(prefix=(5, 6, 7))]),
    "draws": (SearchConfig(sampling=True, nbest=200, max_len_b=6), []),
    "draws of the likeliest": (SearchConfig(sampling=True, nbest=200, top_k=50, top_p=0.9, max_len_b=6), []),
}


@pytest.mark.parametrize(("name", "members"), [*((name, 1) for name in CASES), ("n best", 2)])
def test_the_estimate_is_above_the_memory_allocated_by_torch_but_below_6_times_that(name: str, members: int) -> None:
    config, constraints = CASES[name]
    size = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=32, d_ff=32, heads=2)
    models = [torch_backend(Transformer(size, 600, 600).eval()) for _ in range(members)]
    model = Ensemble(models) if members > 1 else models[0]
    src, lengths = pad([[7] * 9 + [EOS]])
    gc.collect()

    def work() -> None:
        search.search(model, src, lengths, config, constraints=constraints)

    peak = peak_memory(work)
    assert peak < search_bytes(model, config, 10, constraints) < 6 * peak


@pytest.fixture
def translator(make_checkpoint: Callable[..., Checkpoint]) -> Translator:
    return Translator.of([make_checkpoint()], EngineConfig(device="cpu", precision="fp32"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"beam": 10**6}, "--beam 1000000 needs about .* GB of memory for one sentence of .* lower --beam "),
        ({"sampling": True, "nbest": 10**6}, "--sampling --nbest 1000000 needs about .* lower --nbest "),
    ],
)
def test_a_search_that_exceeds_the_memory_is_refused_before_the_input_is_read(
    options: dict[str, Any], named: str, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> Any:
        pytest.fail("the input is read")
        yield

    with_free(monkeypatch, 8e9)
    with pytest.raises(UserError, match=named):
        translator.translate(lines(), **options)


def test_free_memory_is_divided_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 1000)
    assert missing_memory(300, "cpu", processes=4) == 250
    assert missing_memory(250, "cpu", processes=4) is None


def test_a_batch_that_exceeds_the_memory_is_halved(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, config = ["the dog runs on the street"] * 8, SearchConfig(max_len_b=3)
    expected = list(translator.stream(lines, config))
    rows: list[int] = []

    def counted(model: Any, src: Ints, *arguments: Any) -> Any:
        rows.append(len(src))
        return search.search(model, src, *arguments)

    footprint._admitted.clear()
    tokens = len(translator.source.encode(lines[:1])[0]) + 1
    with_free(monkeypatch, 2.5 * search_bytes(translator.model, config, tokens))
    monkeypatch.setattr("nmtkit.decoding.engine.search", counted)
    assert list(translator.stream(lines, config, StreamConfig(buffer=8))) == expected
    assert rows == [2] * 4


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("nmt-generate", ("--beam", 10**6)),
        ("nmt-generate", ("--sampling", "--nbest", 10**6)),
        ("nmt-serve", ("--port", 0, "--beam", 10**6)),
    ],
)
def test_lack_of_memory_gives_a_one_line_error(
    command: str, options: tuple[object, ...], run_here: Run, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, 8e9)
    done = run_here(command, "--checkpoint", tiny_checkpoint, "--device", "cpu", *options, input=b"a dog\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"8 GB is free" in done.stderr

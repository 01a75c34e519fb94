"""The exported model computes what ours does, by the other engine's own word."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import EngineConfig, SearchConfig
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.exporting import to_ctranslate2

LINES = ["the dog runs", "a cat on the street", "die katze läuft über die straße", "ein hund"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "pre"}, {"positions": "learned"}, {"share_embeddings": "none"}, {"share_embeddings": "decoder"}],
    ids=lambda changes: "-".join(itertools.chain(*changes.items())) or "paper",
)
def test_ctranslate2_gives_the_same_greedy_tokens_and_log_probabilities(
    changes: dict[str, Any], make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    checkpoint = make_checkpoint(**changes)
    to_ctranslate2(checkpoint, tmp_path / "exported")
    engine = ctranslate2.Translator(str(tmp_path / "exported"), device="cpu", intra_threads=1)
    ours = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    best = [line.candidates[0] for line in ours.stream(LINES, SearchConfig(beam=1, max_len_a=0, max_len_b=9))]
    sources = [checkpoint.source.vocab.text(ids) for ids in checkpoint.source.encode(LINES)]
    tokens = [list(candidate.tokens[:-1]) for candidate in best]
    theirs = engine.translate_batch(sources, beam_size=1, max_decoding_length=9)
    assert [result.hypotheses[0] for result in theirs] == tokens
    for score, candidate in zip(engine.score_batch(sources, tokens), best, strict=True):
        assert score.log_probs == pytest.approx(candidate.token_log_probs, abs=1e-4)
    assert (tmp_path / "exported" / "source.spm.model").read_bytes() == checkpoint.source.model


@pytest.mark.parametrize("changes", [{"attention_window": 2}, {"d_k": 4, "d_v": 8}])
def test_what_ctranslate2_does_not_know_is_refused(
    changes: dict[str, Any], make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    with pytest.raises(UserError, match="cannot be exported"):
        to_ctranslate2(make_checkpoint(**changes), tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []

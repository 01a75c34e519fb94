"""The backends against the plain torch model, and the defaults of the protocol against what replaces them."""

from typing import Any

import pytest
import torch
from in_tensors import InTensors, native, search
from prefix_models import with_lengths
from small_transformers import make, sentences, variants
from step_by_step import StepByStep
from torch import Tensor
from torch.testing import assert_close

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.forced import score, with_attention
from nmtkit.decoding.search import Hypothesis
from nmtkit.inference import torch_inference, torch_transformer
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.inference.native_transformer import NativeTransformer
from nmtkit.inference.protocol import InferenceModel
from nmtkit.inference.torch_transformer import TorchTransformer
from nmtkit.machine import native_build
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import EOS, PAD

compiled = pytest.mark.skipif(not native_build.available("fp32"), reason="the search is not compiled")
CONFIG = SearchConfig(beam=3, nbest=3, max_len_b=6)
BACKENDS = [pytest.param("native", marks=compiled), "defaults", "ensemble of one"]


def transformer(**changes: Any) -> Transformer:
    """A model in fp32 whose hypotheses differ clearly."""
    model = make(**changes).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def backend(name: str, model: Transformer) -> InferenceModel:
    plain = torch_backend(model)
    if name == "native":
        return native(model, "fp32", lambda: plain)
    return StepByStep(plain) if name == "defaults" else Ensemble([plain])


def batch() -> tuple[Tensor, Tensor]:
    return with_lengths(sentences(7, 1, 12, 3, 5).clamp_min(EOS + 1) * (sentences(7, 1, 12, 3, 5) != PAD))


def numbers(found: list[list[Hypothesis]]) -> list[float]:
    return [number for nbest in found for one in nbest for number in (one.score, *one.token_log_probs)]


def ids(found: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[one.ids for one in nbest] for nbest in found]


@variants
@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_finds_the_same_outputs(name: str, changes: dict[str, Any]) -> None:
    model = transformer(**changes)
    if name == "native" and not NativeTransformer.supports(model.config, "fp32"):
        pytest.skip("the compiled search has no attention windows")
    expected = search(torch_backend(model), *batch(), CONFIG)
    found = search(backend(name, model), *batch(), CONFIG)
    assert ids(found) == ids(expected)
    assert numbers(found) == pytest.approx(numbers(expected), rel=2e-5, abs=2e-5)  # rounding in both


@pytest.mark.parametrize("name", [*BACKENDS, "torch"])
def test_scoring_gives_the_scores_of_the_search(name: str) -> None:
    model = transformer()
    scoring = torch_backend(model) if name == "torch" else backend(name, model)
    found = search(scoring, *batch(), CONFIG)
    pairs = [(row[:length].tolist(), one) for row, length, nbest in zip(*batch(), found, strict=True) for one in nbest]
    scored = score(scoring, [row for row, _ in pairs], [one.ids for _, one in pairs], CONFIG)
    expected = numbers([[one for _, one in pairs]])
    if name == "native":  # whose rows do not depend on the rows beside them
        assert numbers([scored]) == expected
    assert numbers([scored]) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("parts", [torch_inference._SCORED, 10])
def test_scoring_in_one_pass_equals_scoring_step_by_step(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_inference, "_SCORED", parts)
    plain, tgt = torch_backend(transformer()), sentences(4, 6, 1, 3, 5, seed=2)
    lengths = with_lengths(tgt)[1]
    real = tgt != PAD
    by_steps = InTensors(StepByStep(plain)).score(*batch(), tgt, lengths)
    assert_close(InTensors(plain).score(*batch(), tgt, lengths)[real], by_steps[real], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_encoding_in_parts_equals_encoding_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (src, lengths) = transformer(), with_lengths(sentences(7, 7, 5, 1, 3))
    together = model.encode(src, lengths)
    monkeypatch.setattr(torch_transformer, "_ENCODED", 12)
    parts = TorchTransformer(model).encode(src, lengths)
    assert [longest for _, longest in torch_transformer._parts(lengths.tolist())] == [7, 7, 5, 3]
    assert torch.equal(parts.mask, together.mask)
    assert_close(parts.values[parts.mask], together.values[together.mask], rtol=1e-5, atol=1e-5)


@compiled
@torch.inference_mode()
def test_a_compiled_model_gets_the_attention_of_all_heads_from_a_torch_model_created_on_first_use() -> None:
    model, made = transformer(), list[InferenceModel]()

    def reference() -> InferenceModel:
        made.append(torch_backend(model))
        return made[-1]

    fast, plain = native(model, "fp32", reference), torch_backend(model)
    rows = [row[:length].tolist() for row, length in zip(*batch(), strict=True)]
    found = search(fast, *batch(), CONFIG)
    assert made == []
    expected = with_attention(plain, rows, found, None)
    for _ in range(2):
        for nbest, others in zip(with_attention(fast, rows, found, None), expected, strict=True):
            for one, other in zip(nbest, others, strict=True):
                assert one.attention == pytest.approx(other.attention, abs=1e-5)
    tgt_in = sentences(4, 4, 4, 4, 4)
    assert made == []  # alignments are compiled, too
    ours, theirs = (InTensors(each).attention(*batch(), tgt_in).encoder for each in (fast, plain))
    assert_close(ours, theirs)
    assert len(made) == 1

"""The search with the recurrent and the convolutional model."""

import itertools
from typing import Any

import pytest
import torch
from in_tensors import InTensors, search, unwrapped
from prefix_models import ids_of, with_lengths
from small_rivals import W, make, rivals
from small_transformers import make as make_transformer
from small_transformers import sentences
from step_by_step import StepByStep
from torch import Tensor
from torch.testing import assert_close

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.forced import score
from nmtkit.errors import UserError
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.model.translation_model import TranslationModel
from nmtkit.text.vocabulary import BOS, EOS, PAD

CONFIG = SearchConfig(beam=3, nbest=3, max_len_b=6)


def model_and_search(name: str, **changes: Any) -> tuple[TranslationModel, Any]:
    """A model whose hypotheses differ clearly, and the search with it."""
    model = make(name, scale=1.5, **changes).eval()
    return model, InTensors(torch_backend(model))


def batch() -> tuple[Tensor, Tensor]:
    return with_lengths(sentences(7, 1, 12, 3, 5))


@rivals
@torch.inference_mode()
def test_steps_equal_decoding_anew_while_rows_are_reordered_and_sentences_leave(name: str) -> None:
    model, backend = model_and_search(name)
    src, lengths = batch()
    random = torch.Generator().manual_seed(5)
    state = backend.start(backend.encode(src, lengths))
    owners, prefixes = torch.arange(5), torch.full((5, 1), BOS)
    for counts in ([1] * 5, [3] * 5, [3] * 5, [2, 3, 1, 3, 2], [2, 0, 1, 3, 0], [0, 0, 4, 1, 0], [0, 0, 2, 0, 0]):
        expected = model(src[owners], lengths[owners], prefixes)[:, -1].log_softmax(-1)
        assert_close(backend.step(prefixes[:, -1], state).double(), expected, rtol=1e-5, atol=1e-6)
        origins = torch.cat([drawn((owners == n).nonzero()[:, 0], count, random) for n, count in enumerate(counts)])
        state.reorder(origins)
        owners = owners[origins]
        new = torch.randint(BOS, W, (origins.numel(), 1), generator=random)
        prefixes = torch.cat((prefixes[origins], new), dim=1)


def drawn(rows: Tensor, count: int, random: torch.Generator) -> Tensor:
    return rows[torch.randint(len(rows), (count,), generator=random)] if count else rows[:0]


@rivals
def test_a_batch_gives_what_each_sentence_gives_alone(name: str) -> None:
    _, backend = model_and_search(name)
    src, lengths = batch()
    together = search(unwrapped(backend), src, lengths, CONFIG)
    for row, length, batched in zip(src, lengths, together, strict=True):
        (alone,) = search(unwrapped(backend), row[:length].unsqueeze(0), length.unsqueeze(0), CONFIG)
        assert ids_of(batched) == ids_of(alone)
        assert [one.score for one in batched] == pytest.approx([one.score for one in alone], rel=1e-5)


@rivals
@torch.inference_mode()
def test_the_state_of_a_hypothesis_takes_the_estimated_bytes(name: str) -> None:
    _, backend = model_and_search(name)
    src, lengths = batch()
    state: Any = unwrapped(backend.start(backend.encode(src, lengths))).state
    tensors = state.inputs if name.startswith("conv") else [tensor for layer in state.layers for tensor in layer]
    assert sum(tensor.nbytes for tensor in tensors) == backend.state_bytes(7) * len(src)


@rivals
@torch.inference_mode()
def test_a_wide_beam_finds_the_best_of_all_outputs(name: str) -> None:
    torch.manual_seed(2)
    words, limit = 6, 3  # PAD, UNK, BOS, EOS and two words
    model = make(name, words, words, scale=1.5).eval()
    src, lengths = torch.tensor([[4, 5, EOS]]), torch.tensor([3])
    outputs = []
    for length in range(limit + 1):
        for ids in itertools.product((1, 4, 5), repeat=length):
            log_probs = model(src, lengths, torch.tensor([[BOS, *ids]]))[0].log_softmax(-1)
            total = log_probs[range(length + 1), [*ids, EOS]].sum().item()
            outputs.append((total / ((5 + length + 1) / 6) ** 0.6, ids))
    expected = sorted(outputs, reverse=True)[:3]
    config = SearchConfig(beam=len(outputs), nbest=3, max_len_a=0, max_len_b=limit, length_penalty=0.6)
    (found,) = search(torch_backend(model), src, lengths, config)
    assert ids_of(found) == [ids for _, ids in expected]
    assert [one.score for one in found] == pytest.approx([score for score, _ in expected], rel=1e-5)


@rivals
def test_a_score_is_that_of_the_search_in_one_pass_or_by_steps(name: str) -> None:
    _, backend = model_and_search(name)
    found = search(unwrapped(backend), *batch(), CONFIG)
    sources = [row[:length].tolist() for row, length in zip(*batch(), strict=True)]
    pairs = [(row, one) for row, nbest in zip(sources, found, strict=True) for one in nbest]
    for scoring in (unwrapped(backend), StepByStep(unwrapped(backend))):
        scored = score(scoring, [row for row, _ in pairs], [one.ids for _, one in pairs], CONFIG)
        for one, (_, hypothesis) in zip(scored, pairs, strict=True):
            assert one.score == pytest.approx(hypothesis.score, rel=1e-5)
            assert one.token_log_probs == pytest.approx(hypothesis.token_log_probs, rel=1e-4, abs=1e-5)


@rivals
@torch.inference_mode()
def test_alignments_are_the_attention_to_the_source(name: str) -> None:
    model, backend = model_and_search(name)
    src, lengths = batch()
    tgt_in = sentences(4, 4, 4, 4, 4, seed=1)
    record: list[Tensor] = []
    model.decode(tgt_in, model.encode(src, lengths), record)  # type: ignore[call-arg]
    assert len(record) == backend.attention_layers
    for layer, expected in enumerate(record, 1):
        found = backend.alignment(src, lengths, tgt_in, layer)
        assert_close(found.double(), expected.squeeze(1), rtol=1e-5, atol=1e-6)
        assert_close(found.sum(-1), torch.ones(5, 4))
        assert not found[(src == PAD).unsqueeze(1).expand_as(found)].any()
    with pytest.raises(UserError, match=f"--alignment-layer {len(record) + 1}: the model has {len(record)} decoder"):
        backend.alignment(src, lengths, tgt_in, len(record) + 1)


@rivals
@torch.inference_mode()
def test_an_ensemble_with_a_transformer_averages_probabilities(name: str) -> None:
    models = [make(name).eval(), make_transformer().eval()]
    ensemble = InTensors(Ensemble([torch_backend(model) for model in models]))
    src, lengths = batch()
    tgt_in = torch.full((5, 1), BOS)
    expected = torch.stack([model(src, lengths, tgt_in)[:, 0].softmax(-1) for model in models]).mean(0).log()
    found = ensemble.step(tgt_in[:, 0], ensemble.start(ensemble.encode(src, lengths)))
    assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert len(search(unwrapped(ensemble), src, lengths, CONFIG)) == 5


@rivals
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_lower_precision_is_close_to_float64(name: str, dtype: torch.dtype) -> None:
    exact, low = make(name).eval(), make(name).eval().to(dtype)
    tgt, lengths = sentences(4, 6, 1, 3, 5, seed=2), torch.tensor([4, 6, 1, 3, 5])
    with torch.inference_mode():
        expected, found = (InTensors(torch_backend(model)).score(*batch(), tgt, lengths) for model in (exact, low))
    assert found.dtype == torch.float32
    assert_close(found, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.15)

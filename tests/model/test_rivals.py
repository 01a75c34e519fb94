"""Properties of the recurrent and of the convolutional model."""

from typing import Any

import pytest
import torch
from prefix_models import with_lengths
from reference_loss import outputs, smoothed_loss
from small_rivals import SMALL, W, config, make, rivals
from small_transformers import assert_is_causal, sentences
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.data.batch import make_batch
from nmtkit.errors import UserError
from nmtkit.model.translation_model import TranslationModel
from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.training.cost import training_flops
from nmtkit.training.loss import MicroBatchLoss, projected_cross_entropy


def gradients(model: TranslationModel, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def pairs() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Sentence pairs of different lengths: source, decoder input and reference."""
    rows = []
    for source, target in ((7, 2), (1, 6), (4, 9)):
        src, tgt = sentences(source)[0], sentences(target, seed=1)[0]
        rows.append((src, torch.cat((torch.tensor([BOS]), tgt[:-1])), torch.cat((tgt[:-1], torch.tensor([EOS])))))
    return rows


@rivals
def test_a_batch_has_the_losses_and_gradients_of_its_pairs_whatever_the_ids_of_padding(name: str) -> None:
    model = make(name)
    together, separate = [], []
    for padding in (PAD, W - 1):
        src, tgt_in, tgt_out = (
            torch.nn.utils.rnn.pad_sequence(list(column), batch_first=True, padding_value=padding)
            for column in zip(*pairs(), strict=True)
        )
        lengths = torch.tensor([len(source) for source, _, _ in pairs()])
        real = torch.arange(tgt_in.size(1)) < torch.tensor([len(target) for _, target, _ in pairs()]).unsqueeze(1)
        loss = smoothed_loss(model(src, lengths, tgt_in)[real], tgt_out[real], 0.0)
        together.append((loss, gradients(model, loss)))
    losses = [
        smoothed_loss(model(*with_lengths(src.unsqueeze(0)), tgt_in.unsqueeze(0))[0], tgt_out, 0.0)
        for src, tgt_in, tgt_out in pairs()
    ]
    separate = gradients(model, torch.stack(losses).sum())
    for loss, found in together:
        assert_close(loss, torch.stack(losses).sum())
        for one, other in zip(found, separate, strict=True):
            assert_close(one, other)


@rivals
def test_a_later_target_token_never_changes_an_earlier_output(name: str) -> None:
    assert_is_causal(make(name))


@rivals
def test_every_token_of_the_source_changes_the_output(name: str) -> None:
    model = make(name)
    src, tgt_in = sentences(7), sentences(3, seed=1)
    before = model(*with_lengths(src), tgt_in)
    for position in range(7):
        changed = src.clone()
        changed[0, position] = BOS + 1 if changed[0, position] != BOS + 1 else BOS + 2
        assert not torch.equal(model(*with_lengths(changed), tgt_in), before)


@rivals
def test_pad_and_bos_have_no_probability(name: str) -> None:
    probabilities = make(name)(*with_lengths(sentences(7, 4)), sentences(5, 6, seed=1)).softmax(-1)
    assert (probabilities[..., [PAD, BOS]] == 0).all()
    assert (outputs(probabilities) > 0).all()


@rivals
def test_recomputed_activations_give_the_same_gradients_with_dropout(name: str) -> None:
    model, found = make(name, dropout=0.3), []
    for model.activation_checkpointing in (False, True):
        torch.manual_seed(3)
        found.append(gradients(model, model(*with_lengths(sentences(7, 4)), sentences(5, 6)).logsumexp(-1).sum()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@rivals
def test_dropout_changes_outputs_in_training_only(name: str) -> None:
    model = make(name, dropout=0.5)
    inputs = (*with_lengths(sentences(7)), sentences(5))
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    assert torch.equal(model(*inputs), model(*inputs))


@rivals
def test_forward_and_training_flops_are_those_that_torch_counts(name: str) -> None:
    model, options = make(name), config(name)
    count, S, T = 4, 7, 5
    src, tgt = sentences(*[S] * count), sentences(*[T] * count)
    sizes = torch.tensor([S] * count).numpy(), torch.tensor([T] * count).numpy()
    model.requires_grad_(False)
    with FlopCounterMode(display=False) as counter:  # which sees into LSTMs of float64
        model(*with_lengths(src), tgt)
    assert options.forward_flops(W, *sizes) == counter.get_total_flops()
    model.requires_grad_(True)
    with FlopCounterMode(display=False) as counter:
        hidden = model.decode(tgt, model.encode(*with_lengths(src))).flatten(0, 1)
        loss, _ = projected_cross_entropy(hidden, model.output_matrix, tgt.flatten(), 0.1)
        torch.autograd.backward(loss)
    lstms = [module for module in model.modules() if isinstance(module, nn.LSTM)]
    of_first_states = sum(2 * count * 4 * lstm.hidden_size**2 for lstm in lstms)  # constants: without a gradient
    assert training_flops(options, W, *sizes) == counter.get_total_flops() + of_first_states


@rivals
@pytest.mark.parametrize(("share", "tables"), [("all", 1), ("decoder", 2), ("none", 2)])
def test_embeddings_are_shared_as_requested(name: str, share: str, tables: int) -> None:
    model: Any = make(name, share_embeddings=share)
    embeddings = {model.source_embedding.weight.data_ptr(), model.target_embedding.weight.data_ptr()}
    assert len(embeddings) == tables
    is_tied = model.output_matrix.data_ptr() in embeddings
    assert is_tied == (share != "none" and not SMALL[name].get("separate_output", True))


@rivals
def test_one_matrix_for_separate_vocabularies_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="--share-embeddings all needs one vocabulary"):
        make(name, target_size=W + 1, share_embeddings="all")
    assert config(name).for_vocabularies(joined=False).share_embeddings == "decoder"


@rivals
def test_the_loss_includes_the_bias_of_the_projection(name: str) -> None:
    model = make(name)
    src, tgt_in = sentences(5, 5), sentences(6, 6, seed=1)
    sizes = torch.tensor([5, 5]).numpy(), torch.tensor([6, 6]).numpy()
    batch = make_batch(src.flatten().numpy(), sizes[0], tgt_in.flatten().numpy(), sizes[1])
    logits = model(batch.src, batch.source_lengths, batch.tgt_in)
    expected = smoothed_loss(logits.flatten(0, 1), batch.tgt_out.flatten(), 0.1)
    loss, _ = MicroBatchLoss(model, 0.1)(batch)
    assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    for one, other in zip(gradients(model, loss), gradients(model, expected), strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-6)

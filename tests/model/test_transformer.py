"""The whole model: against torch.nn.Transformer, and the properties that no Transformer may lack."""

import copy
import math
from typing import Any

import pytest
import torch
from prefix_models import with_lengths
from reference_loss import outputs, smoothed_loss
from small_transformers import D, H, W, assert_is_causal, make, sentences, variants
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch_copies import copy_decoder_layer, copy_encoder_layer, torch_layer

from nmtkit.data.batch import make_batch
from nmtkit.errors import UserError
from nmtkit.inference.torch_transformer import TorchTransformer
from nmtkit.model import attention
from nmtkit.model.config import TransformerConfig
from nmtkit.model.positions import sinusoids
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import BOS, PAD
from nmtkit.training.loss import MicroBatchLoss


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_and_decoder_stacks_equal_torch(norm: str, activation: str) -> None:
    model = make(norm=norm, activation=activation)
    last = nn.LayerNorm(D, dtype=torch.float64) if norm == "pre" else None  # the paper's stacks have none
    encoder = nn.TransformerEncoder(
        torch_layer(nn.TransformerEncoderLayer, norm, activation), 2, last, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(torch_layer(nn.TransformerDecoderLayer, norm, activation), 2, copy.deepcopy(last))
    reference: Any = nn.Transformer(D, H, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    for theirs, ours in zip(reference.encoder.layers, model.encoder, strict=True):
        copy_encoder_layer(theirs, ours)
    for theirs, ours in zip(reference.decoder.layers, model.decoder, strict=True):
        copy_decoder_layer(theirs, ours)
    if norm == "pre":
        reference.encoder.norm.load_state_dict(model.encoder_norm.state_dict())
        reference.decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    src, tgt_in = sentences(7, 4), sentences(5, 6, seed=1)

    def embed(ids: Tensor) -> Tensor:
        return F.embedding(ids, model.target_embedding.weight) * math.sqrt(D) + sinusoids(ids.size(1), D)

    hidden = reference(
        embed(src),
        embed(tgt_in),
        tgt_mask=torch.ones(6, 6, dtype=torch.bool).triu(1),
        src_key_padding_mask=src == PAD,
        memory_key_padding_mask=src == PAD,
    )
    real = tgt_in != PAD
    expected = outputs(hidden @ model.target_embedding.weight.T)[real]
    actual = outputs(model(*with_lengths(src), tgt_in))[real]
    assert_close(actual, expected)
    assert_close(
        *(torch.autograd.grad(y.logsumexp(-1).sum(), model.target_embedding.weight) for y in (actual, expected))
    )


@variants
def test_a_later_target_token_never_changes_an_earlier_output(changes: dict[str, Any]) -> None:
    assert_is_causal(make(**changes))


@variants
def test_padding_never_changes_a_result(changes: dict[str, Any]) -> None:
    model = make(**changes)
    source_lengths, target_lengths = (3, 9, 1, 6), (8, 2, 5, 1)
    src, tgt_in = sentences(*source_lengths), sentences(*target_lengths, seed=1)
    wider = F.pad(src, (0, 11), value=PAD), F.pad(tgt_in, (0, 9), value=PAD)
    logits, wider_logits = model(*with_lengths(src), tgt_in), model(*with_lengths(wider[0]), wider[1])
    memory, wider_memory = model.encode(*with_lengths(src)), model.encode(*with_lengths(wider[0]))
    for row, (S, T) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        alone = model(*with_lengths(src[row : row + 1, :S]), tgt_in[row : row + 1, :T])[0]
        assert_close(logits[row, :T], alone)
        assert_close(wider_logits[row, :T], alone)
        assert_close(wider_memory.values[row, :S], memory.values[row, :S])


@variants
def test_padding_has_no_gradient(changes: dict[str, Any]) -> None:
    model = make(**changes)
    src, tgt_in = sentences(9, 2), sentences(3, 8, seed=1)
    matrix = model.output_matrix.detach()
    hidden = model.decode(tgt_in, model.encode(*with_lengths(src)))[tgt_in != PAD]
    torch.autograd.backward((hidden @ matrix.T).logsumexp(-1).sum())
    for embedding in {model.source_embedding, model.target_embedding}:
        assert embedding.weight.grad is not None
        assert (embedding.weight.grad[PAD] == 0).all()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@variants
def test_explicit_attention_equals_the_fast_paths(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(**changes)
    src, tgt_in = sentences(9, 4), sentences(8, 6, seed=1)
    logits = model(*with_lengths(src), tgt_in)
    monkeypatch.setattr(attention, "_fused_pays", lambda q, k: True)
    real = tgt_in != PAD
    assert_close(model(*with_lengths(src), tgt_in)[real], logits[real])
    weights = TorchTransformer(model).attention(*with_lengths(src), tgt_in)
    assert [len(part) for part in (weights.encoder, weights.cross)] == [2, 2]
    assert len(weights.decoder) == (0 if model.config.decoder_recurrence else 2)
    assert weights.cross[0].shape == (2, H, 8, 9)
    for part in (*weights.encoder, *weights.decoder, *weights.cross):
        assert_close(part.sum(-1), torch.ones_like(part.sum(-1)))
    assert all((part[1, :, :4, 4:] == 0).all() for part in weights.encoder)  # the second source has 4 tokens
    assert all((part[1, :, :, 4:] == 0).all() for part in weights.cross)
    assert all((part.triu(1) == 0).all() for part in weights.decoder)


@variants
def test_pad_and_bos_have_no_probability(changes: dict[str, Any]) -> None:
    probabilities = make(**changes)(*with_lengths(sentences(9, 4)), sentences(8, 6, seed=1)).softmax(-1)
    assert (probabilities[..., [PAD, BOS]] == 0).all()
    assert (outputs(probabilities) > 0).all()
    assert_close(probabilities.sum(-1), torch.ones_like(probabilities[..., 0]))


def test_dropout_acts_on_the_sum_of_embedding_and_position() -> None:
    model = make(dropout=0.5)
    seen: list[Tensor] = []
    for stack in (model.encoder, model.decoder):
        stack[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(*with_lengths(sentences(40)), sentences(40, seed=1))
    for x in seen:
        assert (x == 0).double().mean().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("share", "matrices"), [("all", 1), ("decoder", 2), ("none", 3)], ids=lambda value: str(value))
def test_embeddings_are_shared_as_configured(share: str, matrices: int) -> None:
    model = make(share_embeddings=share)
    pointers = {
        m.data_ptr() for m in (model.source_embedding.weight, model.target_embedding.weight, model.output_matrix)
    }
    assert len(pointers) == matrices
    assert sum(tuple(p.shape) == (W, D) for p in model.parameters()) == matrices
    assert (model.output_matrix is model.target_embedding.weight) == (share != "none")
    assert len(dict(model.named_parameters())) == len(list(model.parameters()))


def test_separate_vocabularies_never_share_embeddings_even_with_equal_sizes() -> None:
    assert TransformerConfig().for_vocabularies(joined=False).share_embeddings == "decoder"
    with pytest.raises(UserError, match="--share-embeddings all needs one vocabulary"):
        TransformerConfig(share_embeddings="all").for_vocabularies(joined=False)


def test_vocabularies_of_different_sizes_share_only_the_target_matrices() -> None:
    model = make(source_size=W, target_size=9)
    assert model.config.share_embeddings == "decoder"
    assert model(*with_lengths(sentences(4)), torch.tensor([[BOS, 5]])).shape == (1, 2, 9)
    with pytest.raises(UserError, match="--share-embeddings all"):
        make(source_size=W, target_size=9, share_embeddings="all")


def test_parameters_are_initialized_as_documented() -> None:
    D, H = 128, 4
    sizes: dict[str, Any] = {"d_model": D, "d_ff": 512, "heads": H, "d_v": 16, "encoder_layers": 2, "decoder_layers": 2}
    config = TransformerConfig(**sizes, positions="learned", output_bias=True)
    torch.manual_seed(1)
    model = Transformer(config, 2000, 2000)

    def is_glorot(weight: Tensor) -> None:
        bound = math.sqrt(6 / sum(weight.shape))
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)

    for matrix in (model.target_embedding.weight, model.source_positions.table, model.target_positions.table):
        assert isinstance(matrix, Tensor)
        assert matrix.std().item() == pytest.approx(D**-0.5, rel=0.02)
        assert matrix.mean().item() == pytest.approx(0.0, abs=0.001)
    for layer in model.decoder:
        assert layer.self_attention is not None
        for fused, widths in (
            (layer.self_attention.qkv, (D, D, 64)),  # type: ignore[union-attr]
            (layer.cross_attention.kv, (D, 64)),  # type: ignore[union-attr]
        ):
            for block in fused.weight.split(widths):  # type: ignore[union-attr, operator]
                is_glorot(block)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif parameter.dim() == 2 and not name.endswith(("qkv.weight", "kv.weight", "embedding.weight", "table")):
            is_glorot(parameter)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 15}, r"--d-model 15: sinusoidal positions need an even number"),
        ({"d_model": 2, "positions": "fairseq", "heads": 1}, r"--d-model 2: --positions fairseq needs at least 4"),
        ({"activation": "tanh"}, r"--activation: 'tanh' is not one of relu, gelu, swish"),
        ({"d_model": 14}, r"--d-model 14 is not a multiple of --heads 3: .*--d-k and --d-v"),
        ({"dropout": 1.0}, r"--dropout: 1.0 is too large"),
    ],
)
def test_invalid_sizes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(**changes)


@torch.inference_mode()
@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_uses_lengths_instead_of_padding_ids(training: bool) -> None:
    model = make().train(training)
    src, lengths = torch.tensor([[5, PAD, 7, 3, 9], [5, PAD, 8, 3, PAD]]), torch.tensor([4, 4])
    memory = model.encode(src, lengths)
    assert memory.mask.tolist() == [[True] * 4 + [False]] * 2
    assert not torch.allclose(memory.values[0, :4], memory.values[1, :4])  # they differ behind the id of padding
    src[:, 4] = 11
    assert torch.equal(model.encode(src, lengths).values[:, :4], memory.values[:, :4])


def test_the_loss_includes_the_output_bias() -> None:
    model, (src, lengths), tgt = make(output_bias=True), with_lengths(sentences(5, 5)), sentences(6, 6, seed=1)
    counts = torch.tensor([6, 6]).numpy()
    batch = make_batch(src.flatten().numpy(), lengths.numpy(), tgt.flatten().numpy(), counts)
    expected = smoothed_loss(model(src, lengths, batch.tgt_in).flatten(0, 1), tgt.flatten(), 0.1)
    loss, _ = MicroBatchLoss(model, 0.1)(batch)
    assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    parameters = list(model.parameters())
    found, exact = (torch.autograd.grad(each, parameters) for each in (loss, expected))
    for one, other in zip(found, exact, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sizes", [{"d_model": 15, "positions": "learned"}, {"d_model": 14, "d_k": 3, "d_v": 5}])
def test_unusual_sizes_are_accepted_if_other_options_allow_them(sizes: dict[str, Any]) -> None:
    assert make(**sizes)(*with_lengths(sentences(4)), sentences(3)).shape == (1, 3, W)

"""Small Transformers in all variants, and input sentences for them."""

from typing import Any

import pytest
import torch
from prefix_models import with_lengths
from torch import Tensor, nn

from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model.translation_model import TranslationModel
from nmtkit.text.vocabulary import BOS, EOS, PAD

D, H, FF, W = 12, 3, 20, 17


def make(source_size: int = W, target_size: int = W, **changes: Any) -> Transformer:
    """A small model in float64; dropout is 0 by default."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": D, "d_ff": FF, "heads": H, "dropout": 0.0}
    torch.manual_seed(1)
    model = Transformer(TransformerConfig(**(sizes | changes)), source_size, target_size).double()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):  # initialized to constants
            nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.3)
    return model


def sentences(*lengths: int, seed: int = 0) -> Tensor:
    """Random ids (B, longest), padded with PAD."""
    ids = torch.randint(BOS, W, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    return ids.clamp_min(EOS).masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths).unsqueeze(1), PAD)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"positions": "learned", "max_positions": 40},
    {"attention_window": 2},
    {"d_k": 5, "d_v": 3},
    {"share_embeddings": "none", "attention_window": 1, "norm": "pre"},
    {"activation": "gelu", "output_bias": True, "source_end": False},
    {"activation": "swish", "positions": "fairseq", "norm": "pre", "norm_epsilon": 0.1},
    {"norm": "pre", "norm_type": "rms", "activation": "swiglu", "positions": "rotary", "qk_norm": True, "bias": False},
    {"positions": "rotary", "d_k": 6, "d_v": 3, "bias": False, "attention_window": 2},
    {"decoder_recurrence": "ssru"},
    {"decoder_recurrence": "ssru", "norm": "pre", "bias": False},
]
variants = pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(map(str, changes.values())))


def assert_is_causal(model: TranslationModel) -> None:
    """Assert that a target token changes the output at its position and no earlier output."""
    src, tgt_in = sentences(7), sentences(9, seed=1)
    before = model(*with_lengths(src), tgt_in)
    for position in range(1, 9):
        changed = tgt_in.clone()
        changed[0, position] = BOS + 1 if changed[0, position] != BOS + 1 else BOS + 2
        after = model(*with_lengths(src), changed)
        assert torch.equal(after[:, :position], before[:, :position])
        assert not torch.equal(after[:, position], before[:, position])

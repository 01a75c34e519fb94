"""Every choice of every option of a Transformer, for exports: each is the same model, or refused by name."""

from dataclasses import fields
from typing import Any

from nmtkit.config import flag
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig

CHOICES: list[dict[str, Any]] = [
    *({field.name: choice} for field in fields(TransformerConfig) for choice in field.metadata.get("choices", ())),
    *({field.name: not field.default} for field in fields(TransformerConfig) if type(field.default) is bool),
    *({"attention_window": 2}, {"d_k": 3, "d_v": 2}, {"positions": "learned", "max_positions": 64}),
    {"activation": "swish", "output_bias": True, "share_embeddings": "none"},
]


def names_an_option(error: UserError, changes: dict[str, Any]) -> bool:
    """Whether a refusal names one of the changed options."""
    return any(flag(name) in str(error) for name in changes)

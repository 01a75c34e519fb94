"""Copies nmtkit's weights into the corresponding layers of torch."""

from typing import Any

import torch
from small_transformers import FF, D, H
from torch import nn

from nmtkit.model.attention import SelfAttention
from nmtkit.model.layers import FeedForward


def copy_self_attention(reference: nn.MultiheadAttention, ours: SelfAttention) -> None:
    reference.in_proj_weight.data.copy_(ours.qkv.weight)
    reference.in_proj_bias.data.copy_(ours.qkv.bias)
    reference.out_proj.load_state_dict(ours.out.state_dict())


def copy_feed_forward(reference: Any, ours: FeedForward) -> None:
    reference.linear1.load_state_dict(ours.inner.state_dict())
    reference.linear2.load_state_dict(ours.outer.state_dict())


def copy_encoder_layer(reference: Any, ours: Any) -> None:
    """Copy the weights of an encoder layer to `nn.TransformerEncoderLayer`."""
    copy_self_attention(reference.self_attn, ours.self_attention)
    copy_feed_forward(reference, ours.feed_forward)
    reference.norm1.load_state_dict(ours.around_self_attention.norm.state_dict())
    reference.norm2.load_state_dict(ours.around_feed_forward.norm.state_dict())


def copy_decoder_layer(reference: Any, ours: Any) -> None:
    """Copy the weights of a decoder layer to `nn.TransformerDecoderLayer`."""
    copy_self_attention(reference.self_attn, ours.self_attention)
    cross = ours.cross_attention
    reference.multihead_attn.in_proj_weight.data.copy_(torch.cat((cross.q.weight, cross.kv.weight)))
    reference.multihead_attn.in_proj_bias.data.copy_(torch.cat((cross.q.bias, cross.kv.bias)))
    reference.multihead_attn.out_proj.load_state_dict(cross.out.state_dict())
    copy_feed_forward(reference, ours.feed_forward)
    reference.norm1.load_state_dict(ours.around_self_attention.norm.state_dict())
    reference.norm2.load_state_dict(ours.around_cross_attention.norm.state_dict())
    reference.norm3.load_state_dict(ours.around_feed_forward.norm.state_dict())


def torch_layer(kind: Any, norm: str, activation: str = "relu") -> Any:
    return kind(D, H, FF, 0.0, activation, batch_first=True, norm_first=norm == "pre", dtype=torch.float64)

"""The Simpler Simple Recurrent Unit (SSRU) in place of a decoder's self-attention (Kim et al. 2019, section 3.1).

From the input x_t (D,) of position t, with c_0 = 0:

    f_t = σ(x_t·W_f + b_f)
    c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ (x_t·W)
    y_t = max(0, c_t)

A search keeps only c_t for each hypothesis. There is no output projection, and no bias of W, as in Marian.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.model.config import TransformerConfig
from nmtkit.model.packed_attention import Packing


class Ssru(nn.Module):
    """A recurrent sub-layer: `value` is W, and `gate` is W_f with b_f. States are in fp32 or more precise."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.value = nn.Linear(config.d_model, config.d_model, bias=False)
        self.gate = nn.Linear(config.d_model, config.d_model, config.bias)

    def forward(self, x: Tensor, packing: Packing | None, *_: object) -> Tensor:
        """Map x (B, T, D), or packed x (T, D), to the same shape. Ignores the other arguments of `SelfAttention`."""
        kept, added = self._gated(x)
        longest = x.size(-2) if packing is None else packing.span
        if packing is not None:
            kept = kept.masked_fill((packing.positions == 0).unsqueeze(1), 0.0)
        states: Tensor = _Scan.apply(kept[..., 1:, :], added, longest)  # type: ignore[no-untyped-call]
        return F.relu(states).to(x.dtype)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the next state of one position x (R, D), both (R, D), after the state (R, D)."""
        kept, added = self._gated(x)
        state = kept * state + added
        return F.relu(state).to(x.dtype), state

    def _gated(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f_t and (1 - f_t) ⊙ (x_t·W), both (…, D)."""
        precision = torch.promote_types(x.dtype, torch.float32)
        kept = torch.sigmoid(self.gate(x).to(precision))
        return kept, (1 - kept) * self.value(x).to(precision)


class _Scan(torch.autograd.Function):
    """Computes c_t = a_t ⊙ c_{t-1} + b_t (…, T, D), from a_t without the first (…, T - 1, D) and b_t (…, T, D), over at
    most `longest` positions; a_t is 0 where a packed sequence begins. The gradient is the same recurrence from the
    end."""

    @staticmethod
    def forward(context: Any, kept: Tensor, added: Tensor, longest: int) -> Tensor:
        states = _scan(kept, added, longest)
        context.longest = longest
        context.save_for_backward(kept, states)
        return states

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        kept, states = context.saved_tensors
        added = _scan(kept.flip(-2), gradients[0].flip(-2), context.longest).flip(-2)
        return added[..., 1:, :] * states[..., :-1, :], added, None


def _scan(kept: Tensor, added: Tensor, longest: int) -> Tensor:
    """Compute all states in log2(longest) passes (Hillis and Steele 1986). After each pass, a state includes twice as
    many positions, and `kept` is the product over these. A division could overflow."""
    states, shift = added.clone(), 1
    while shift < longest:
        states[..., shift:, :] += kept * states[..., :-shift, :]
        kept = kept[..., shift:, :] * kept[..., :-shift, :]
        shift *= 2
    return states

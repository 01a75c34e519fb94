"""The compiled search (nmtkit/native) as an inference model, for CPUs. It needs no torch.

Its matrix products with few rows are faster than torch's. A row's result does not depend on other rows, so a sentence
gets the same translation in any batch.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from nmtkit.config import flag
from nmtkit.errors import UserError
from nmtkit.inference.arrays import Floats, Ints
from nmtkit.inference.protocol import AttentionWeights, InferenceModel, RecordedAttention
from nmtkit.inference.shortlist import Ids
from nmtkit.inference.transformer_sizes import TransformerSizes
from nmtkit.machine import native_build
from nmtkit.machine.threads import thread_count
from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.sinusoids import sinusoid_table, too_long

if TYPE_CHECKING:
    from nmtkit._native import DecoderState

_ANY: Any = None
_KNOWN: dict[str, tuple[object, ...]] = {  # options that the compiled search knows, with the values that it knows
    **dict.fromkeys(("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "d_k", "d_v"), _ANY),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), _ANY),  # not used in search
    "activation": ("relu", "gelu", "swish", "swiglu"),
    "positions": ("sinusoidal", "learned", "fairseq", "marian", "rotary"),
    "max_positions": _ANY,
    "decoder_recurrence": (None, "ssru"),
    "norm": ("post", "pre"),
    "share_embeddings": (None, "all", "decoder", "none"),
    "output_bias": (False, True),
    "embedding_scale": _ANY,
    "embedding_norm": (False, True),
    "source_end": (False, True),
    "attention_window": (None,),
    "norm_type": ("layer", "rms"),
    "norm_epsilon": _ANY,
    "qk_norm": (False, True),
    "bias": (False, True),
}


class NativeState:
    """The encoded sentences of a batch and the key-value cache of its hypotheses, in C++."""

    def __init__(self, state: "DecoderState", model: "NativeTransformer", longest: int) -> None:
        """`longest` is the length of the longest source, as the model reads it."""
        self.state, self.longest, self.length = state, longest, 0
        self.log_probs = np.empty((0, 0), np.float32)  # of the last step: allocating memory costs more than the softmax
        self.attention_layer = 0
        self.attention: RecordedAttention | None = None  # of that layer, if it is recorded
        self._model = model  # the state points into its memory

    def reorder(self, origins: Ints) -> None:
        """Set row i to the former row `origins[i]`, see `InferenceState.reorder`. Raises IndexError for a wrong row."""
        native_build.native.reorder(self.state, origins)


class NativeTransformer(TransformerSizes, InferenceModel):
    """A Transformer whose search is compiled, in fp32 or int8."""

    device = "cpu"

    def __init__(
        self,
        config: TransformerConfig,
        weights: Mapping[str, Floats],
        number_format: str,
        reference: Callable[[], InferenceModel],
        scales: Mapping[str, Floats] | None = None,
    ) -> None:
        """Create the compiled search for options that this backend `supports`.

        `weights` (…) are copied; their names are the parameters of `model.transformer.Transformer`. Those with `scales`
        are int8, see `Checkpoint`. `number_format` is "fp32" or "int8". `reference` creates an uncompiled model with
        the same weights when the attention of all heads is first needed. Raises IndexError if an array is missing or
        has a different shape.
        """
        super().__init__(config, item_bytes=4)  # int8 needs less
        self.precision = f"{number_format}, {native_build.isa()}"
        self.faster_precision = "int8" if number_format == "fp32" else None
        self.vocabulary_size = len(weights["target_embedding.weight"])
        self._source_positions, self._target_positions = (
            _Positions(config, weights.get(f"{side}_positions.table")) for side in ("source", "target")
        )
        self._shortlists: Sequence[Ids] = ()
        arrays: dict[str, Any] = {name: np.ascontiguousarray(weight) for name, weight in weights.items()}
        arrays |= {name: (weights[name], scale) for name, scale in (scales or {}).items()}
        self._model = native_build.native.model(
            config.d_model,
            config.heads,
            config.key_size,
            config.value_size,
            config.norm == "pre",
            config.input_scale,
            config.norm_epsilon,
            config.norm_type == "rms",
            config.positions == "rotary",
            config.activation,
            config.encoder_layers,
            config.decoder_layers,
            arrays,
            number_format,
            thread_count(),
        )
        self._reference = cache(reference)

    @staticmethod
    def supports(config: ModelConfig, number_format: str) -> TypeGuard[TransformerConfig]:
        """Whether the compiled search can run a model with these options in this number format on this CPU."""
        return native_build.available(number_format) and not unknown_options(config)

    def encode(self, src: Ints, lengths: Ints) -> NativeState:
        """Encode src (B, S) with lengths (B,) from 1 to S. Raises IndexError for other lengths or unknown ids."""
        if not self.config.source_end:
            lengths = np.maximum(lengths - 1, 1)
        positions = self._source_positions.rows(0, src.shape[1])
        encoded = native_build.native.encode(self._model, src, lengths, positions, thread_count())
        return NativeState(encoded, self, int(lengths.max()))

    def restricted_to(self, shortlists: Sequence[Ids]) -> "NativeTransformer":
        """Compute only the logits of the shortlist of each sentence, see `InferenceModel.restricted_to`.

        `start` raises IndexError for ids that are not in ascending order, never output or beyond the vocabulary.
        """
        restricted = copy.copy(self)
        restricted._shortlists = shortlists
        return restricted

    def start(self, memory: NativeState) -> NativeState:
        """Return `memory` as the state of B rows. Raises IndexError if the shortlists are for a different batch."""
        if self._shortlists:
            starts = np.cumsum([0, *map(len, self._shortlists)], dtype=np.int64)
            native_build.native.restrict_to(self._model, memory.state, np.concatenate(self._shortlists), starts)
        return memory

    def step(self, tokens: Ints, state: NativeState) -> Floats:
        """Feed tokens (R,), and return log-probabilities (R, W). Raises IndexError for an unknown id or row."""
        if len(state.log_probs) < len(tokens):
            state.log_probs = np.empty((len(tokens), self.vocabulary_size), np.float32)
        log_probs = state.log_probs[: len(tokens)]
        position = self._next_position(state, len(tokens))
        native_build.native.step(state.state, tokens, position, log_probs, thread_count())
        return log_probs

    def best_step(self, tokens: Ints, state: NativeState, count: int, excluded: tuple[int, ...]) -> tuple[Floats, Ints]:
        """Return the highest log-probabilities and their tokens, both (R, count). This is faster than `step`, and needs
        less memory for large batches, because each thread has the probabilities of all tokens for one block of rows."""
        shape = len(tokens), min(count, self.vocabulary_size)
        log_probs, best = np.empty(shape, np.float32), np.empty(shape, np.int64)
        position = self._next_position(state, len(tokens))
        native_build.native.best_step(state.state, tokens, position, excluded, log_probs, best, thread_count())
        return log_probs, best

    def attention(self, src: Ints, lengths: Ints, tgt_in: Ints) -> AttentionWeights:
        """Return the weights of every layer and head from the uncompiled model, see `InferenceModel.attention`."""
        return self._reference().attention(src, lengths, tgt_in)

    def alignment(self, src: Ints, lengths: Ints, tgt_in: Ints, layer: int | None) -> Floats:
        """Return attention (B, T, S) averaged over heads, without computing higher layers; see `InferenceModel`."""
        state = self.encode(src, lengths)
        attention = self.record_attention(state, self.alignment_layer(layer))
        weights = np.zeros((*tgt_in.shape, src.shape[1]), np.float32)  # 0 for an </s> that the model does not read
        for tokens in np.ascontiguousarray(tgt_in.T):
            native_build.native.attend(state.state, tokens, self._next_position(state, len(tokens)), thread_count())
        steps = attention.weights[: tgt_in.size].reshape(*tgt_in.T.shape, -1)
        weights[:, :, : state.longest] = steps.transpose(1, 0, 2)
        return weights

    def record_attention(self, state: NativeState, layer: int) -> RecordedAttention:
        state.attention_layer, state.attention = layer, RecordedAttention(state.longest)
        return state.attention

    def _next_position(self, state: NativeState, rows: int) -> Floats:
        """Prepare a step, and return the encoding (1, …) of its target position."""
        state.length += 1
        if state.attention is not None:
            native_build.native.record_attention(state.state, state.attention_layer, state.attention.add_step(rows))
        return self._target_positions.rows(state.length - 1, 1)


class _Positions:
    """The positional encodings of one side: of width d_k if they are rotary, otherwise of width D."""

    def __init__(self, config: TransformerConfig, learned: Floats | None) -> None:
        self._form, self._is_learned = config.positions, learned is not None
        self._width = config.key_size if config.positions == "rotary" else config.d_model
        self._table = np.empty((0, self._width), np.float32) if learned is None else learned.copy()

    def rows(self, start: int, length: int) -> Floats:
        """Return the encodings (length, …) from position start on. Raises UserError beyond the learned positions."""
        end = start + length
        if end > len(self._table):
            if self._is_learned:
                raise UserError(too_long(end, len(self._table)))
            self._table = sinusoid_table(2 * end, self._width, self._form)
        return self._table[start:end]


def unknown_options(config: ModelConfig) -> list[str]:
    """Return the flags of options that the compiled search does not support with their current values.

    A new option of the model, or a new value of one, is unknown until `_KNOWN` lists it.
    """
    if not isinstance(config, TransformerConfig):
        return [f"the architecture {config.arch}"]
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    known = (name in _KNOWN and (_KNOWN[name] is _ANY or value in _KNOWN[name]) for name, value in values.items())
    return [flag(name) for name, is_known in zip(values, known, strict=True) if not is_known]

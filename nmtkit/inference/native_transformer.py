"""The compiled search (nmtkit/native) as an inference model, for CPUs.

It avoids the overhead of an operator a call, and its products of few rows are faster than torch's. A row's result does
not depend on the rows beside it, so a sentence gets the same translation in any batch.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor, nn

from nmtkit.config import flag
from nmtkit.inference.protocol import AttentionWeights, InferenceModel
from nmtkit.inference.shortlist import Ids
from nmtkit.inference.torch_transformer import TransformerInference
from nmtkit.machine import native_build
from nmtkit.model.config import TransformerConfig
from nmtkit.model.layers import DecoderLayer, EncoderLayer
from nmtkit.model.transformer import Transformer

if TYPE_CHECKING:
    from nmtkit._native import DecoderState, Model, RowMatrix

_NUMBERS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # as C++ writes it, whatever torch's defaults are
_ANY: Any = None
_KNOWN: dict[str, tuple[object, ...]] = {  # options that the compiled search knows, with the values that it knows
    **dict.fromkeys(("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "d_k", "d_v"), _ANY),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), _ANY),  # not in use in a search
    "activation": ("relu", "gelu", "swish"),
    "positions": ("sinusoidal", "learned", "fairseq"),
    "max_positions": _ANY,
    "norm": ("post", "pre"),
    "share_embeddings": (None, "all", "decoder", "none"),
    "output_bias": (False, True),
    "attention_window": (None,),
}
_INT8_COLUMNS = 1 << 16  # of a matrix in int8 at most: its sums of products have 32 bits


class NativeLinear:
    """x·Wᵀ + b in fp32, or in int8: W and x are rounded to integers, each row of either with a scale of its own.

    A matrix of more than 2^16 columns stays in fp32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, eight_bits: bool) -> None:
        """Weight (N, K) and bias (N,) are copied."""
        self.rows, self.columns = weight.shape
        self.is_int8 = eight_bits and self.columns <= _INT8_COLUMNS
        weight = _floats(weight)
        bias = None if bias is None else _floats(bias)
        address = 0 if bias is None else bias.data_ptr()
        self.matrix = native_build.native.matrix(weight.data_ptr(), address, self.rows, self.columns, self.is_int8)

    def __call__(self, x: Tensor) -> Tensor:
        """(…, K) to (…, N). TypeError for other columns or formats, since C++ gets only an address."""
        if x.size(-1) != self.columns or x.dtype != torch.float32:
            raise TypeError(f"{self.columns} columns of fp32 are expected, not {tuple(x.shape)} of {x.dtype}")
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], self.rows)
        rows = x.numel() // x.size(-1)
        native_build.native.multiply(self.matrix, x.data_ptr(), rows, y.data_ptr(), torch.get_num_threads())
        return y


class NativeState:
    """A batch's encoded sentences and the key-value cache of its hypotheses, in C++."""

    def __init__(self, state: "DecoderState", model: "NativeTransformer") -> None:
        self.state, self.length = state, 0
        self.log_probs = torch.empty(0, **_NUMBERS)  # of the last step: fresh memory would cost more than its softmax
        self._model = model  # the state points into its memory

    def reorder(self, origins: Tensor) -> None:
        """As `InferenceState.reorder`. IndexError for rows that do not exist."""
        origins = _ids(origins)
        native_build.native.reorder(self.state, origins.data_ptr(), origins.numel())


class NativeTransformer(TransformerInference):
    """A Transformer whose search is compiled, in fp32 or int8."""

    device = torch.device("cpu")

    def __init__(self, model: Transformer, precision: str, reference: Callable[[], InferenceModel]) -> None:
        """The compiled search of a model that this backend `supports`, in "fp32" or "int8".

        `model` stays as it is: its matrices are copied; embeddings and layer norms are shared where they are fp32 on
        the CPU. `reference` makes an uncompiled model of the same weights, which shows attention. It is called when
        attention is first asked for.
        """
        super().__init__(model.config, model.output_matrix.size(0), item_bytes=4)  # int8 needs less
        self.precision = f"{precision}, {native_build.isa()}"
        self.faster_precision = "int8" if precision == "fp32" else None
        self._source_positions, self._target_positions = model.source_positions, model.target_positions
        self._source_vocabulary = model.source_embedding.weight.size(0)
        embeddings = [_floats(table.weight) for table in (model.source_embedding, model.target_embedding)]
        norms = [(_floats(norm.weight), _floats(norm.bias)) for norm in _norms(model)]
        matrices = [NativeLinear(linear.weight, linear.bias, precision == "int8") for linear in _linears(model)]
        matrices.append(NativeLinear(model.output_matrix, model.output_bias, precision == "int8"))
        bias = None if model.output_bias is None else _floats(model.output_bias)
        self._output, self._output_is_int8 = (_floats(model.output_matrix), bias), matrices[-1].is_int8
        self._shortlists: Sequence[Ids] = ()
        self._model = _build(model, embeddings, matrices, norms)
        self._pointed_at = (embeddings, matrices, norms)  # by C++, so they must live as long
        self._make_reference = reference

    @staticmethod
    def implements(model: nn.Module) -> TypeGuard[Transformer]:
        """Whether the compiled search is written for this kind of model, compiled here or not.

        A new option of the model, or a new value of one, is unknown until `_KNOWN` lists it.
        """
        return type(model) is Transformer and not unknown_options(model.config)

    @classmethod
    def supports(cls, model: nn.Module, precision: str) -> TypeGuard[Transformer]:
        """Whether the compiled search can run a model in that number format on this CPU."""
        return precision in ("fp32", "int8") and native_build.available(precision) and cls.implements(model)

    @cached_property
    def _reference(self) -> InferenceModel:
        return self._make_reference()

    def encode(self, src: Tensor, lengths: Tensor) -> NativeState:
        """As `InferenceModel.encode`. IndexError for ids beyond the vocabulary, and for lengths not from 1 to S."""
        src, lengths = _ids(src), _ids(lengths)
        sentences, width = src.shape
        if lengths.shape != (sentences,):
            raise IndexError(f"{tuple(lengths.shape)} lengths do not fit {sentences} sentences")
        if not 0 <= int(src.amin()) <= int(src.amax()) < self._source_vocabulary:
            raise IndexError(f"ids from {int(src.amin())} to {int(src.amax())} are not all in the vocabulary")
        positions = _floats(self._source_positions(0, width))
        state = native_build.native.encode(
            self._model,
            src.data_ptr(),
            lengths.data_ptr(),
            sentences,
            width,
            positions.data_ptr(),
            torch.get_num_threads(),
        )
        return NativeState(state, self)

    def restricted_to(self, shortlists: Sequence[Ids]) -> "NativeTransformer":
        """As `InferenceModel.restricted_to`: only the logits of the shortlists are computed.

        `start` raises IndexError for ids that are not in ascending order, never output or beyond the vocabulary.
        """
        restricted = copy.copy(self)
        restricted._shortlists = shortlists
        return restricted

    @cached_property
    def _output_rows(self) -> "RowMatrix":
        weight, bias = self._output
        address = 0 if bias is None else bias.data_ptr()
        rows, columns = weight.shape
        return native_build.native.row_matrix(weight.data_ptr(), address, rows, columns, self._output_is_int8)

    def start(self, memory: NativeState) -> NativeState:
        """As `InferenceModel.start`: returns `memory`. Raises IndexError for shortlists of another batch."""
        if self._shortlists:
            starts = np.cumsum([0, *map(len, self._shortlists)], dtype=np.int64)
            ids = np.concatenate(self._shortlists)
            native_build.native.restrict_to(
                memory.state, self._output_rows, ids.ctypes.data, starts.ctypes.data, len(self._shortlists)
            )
        return memory

    def step(self, tokens: Tensor, state: NativeState) -> Tensor:
        """As `InferenceModel.step`. IndexError for ids and rows that do not exist."""
        rows = tokens.numel()
        if state.log_probs.size(0) < rows:
            state.log_probs = torch.empty(rows, self.vocabulary_size, **_NUMBERS)
        log_probs = state.log_probs[:rows]
        self._feed(native_build.native.step, tokens, state, log_probs.data_ptr())
        return log_probs

    def best_step(
        self, tokens: Tensor, state: NativeState, count: int, excluded: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """As `InferenceModel.best_step`. Faster than `step`, and with large batches in less memory, as each thread
        has the log-probabilities of all tokens only for a block of rows."""
        rows, count = tokens.numel(), min(count, self.vocabulary_size)
        log_probs = torch.empty(rows, count, **_NUMBERS)
        best_tokens = torch.empty(rows, count, dtype=torch.int64, device="cpu")
        outputs = (log_probs.data_ptr(), best_tokens.data_ptr())
        self._feed(native_build.native.best_step, tokens, state, excluded, count, *outputs)
        return log_probs, best_tokens

    def attention(self, src: Tensor, lengths: Tensor, tgt_in: Tensor) -> AttentionWeights:
        """As `InferenceModel.attention`, of the uncompiled model."""
        return self._reference.attention(src, lengths, tgt_in)

    def alignment(self, src: Tensor, lengths: Tensor, tgt_in: Tensor, layer: int | None) -> Tensor:
        """As `InferenceModel.alignment`, of the uncompiled model."""
        return self._reference.alignment(src, lengths, tgt_in, layer)

    def _feed(self, step: Callable[..., None], tokens: Tensor, state: NativeState, *result: object) -> None:
        """Let `step` write its result for the next position."""
        tokens = _ids(tokens)
        position = _floats(self._target_positions(state.length, 1))
        step(state.state, tokens.data_ptr(), tokens.numel(), position.data_ptr(), *result, torch.get_num_threads())
        state.length += 1


def unknown_options(config: TransformerConfig) -> list[str]:
    """The options, as flags, that the compiled search does not know, or not with this value."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    known = (name in _KNOWN and (_KNOWN[name] is _ANY or value in _KNOWN[name]) for name, value in values.items())
    return [flag(name) for name, is_known in zip(values, known, strict=True) if not is_known]


def _build(
    model: Transformer, embeddings: list[Tensor], matrices: list[NativeLinear], norms: list[tuple[Tensor, Tensor]]
) -> "Model":
    """The model in C++, which points at these embeddings and norms."""
    config = model.config
    return native_build.native.model(
        config.d_model,
        config.heads,
        config.key_size,
        config.value_size,
        config.norm == "pre",
        config.activation,
        embeddings[0].data_ptr(),
        embeddings[1].data_ptr(),
        config.encoder_layers,
        config.decoder_layers,
        [linear.matrix for linear in matrices],
        [(gain.data_ptr(), bias.data_ptr()) for gain, bias in norms],
        _norms(model)[0].eps,
    )


def _layers(model: Transformer) -> Iterator[EncoderLayer | DecoderLayer]:
    yield from cast(list[EncoderLayer | DecoderLayer], [*model.encoder, *model.decoder])


def _linears(model: Transformer) -> Iterator[nn.Linear]:
    """The linear layers in the order in which a batch meets them, without the output."""
    for layer in _layers(model):
        yield from (layer.self_attention.qkv, layer.self_attention.out)
        if isinstance(layer, DecoderLayer):
            yield from (layer.cross_attention.q, layer.cross_attention.kv, layer.cross_attention.out)
        yield from (layer.feed_forward.inner, layer.feed_forward.outer)


def _norms(model: Transformer) -> list[nn.LayerNorm]:
    """The layer norms in the order in which a batch meets them; those after the layers come last."""
    norms: list[nn.LayerNorm] = []
    for layer in _layers(model):
        norms.append(layer.around_self_attention.norm)
        if isinstance(layer, DecoderLayer):
            norms.append(layer.around_cross_attention.norm)
        norms.append(layer.around_feed_forward.norm)
    if model.config.norm == "pre":
        norms += cast(list[nn.LayerNorm], [model.encoder_norm, model.decoder_norm])
    return norms


def _ids(tensor: Tensor) -> Tensor:
    """As C++ reads ids and row numbers."""
    return tensor.to("cpu", torch.int64).contiguous()


def _floats(tensor: Tensor) -> Tensor:
    """As C++ reads numbers; the tensor itself if it is like that already."""
    return tensor.detach().to("cpu", torch.float32).contiguous()

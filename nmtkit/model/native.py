"""Inference in C++ (nmtkit/native), for CPUs with AVX2 or AVX-512, where nmtkit was installed with a compiler at hand.

It spares the way from operator to operator, and its products of few rows are faster than torch's. A row's result does
not depend on the rows beside it, so that a sentence becomes the same in any batch. What it does not know, such as
windows of attention, and other number formats go torch's way.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nmtkit.log import logger
from nmtkit.model.config import ModelConfig

if TYPE_CHECKING:
    import nmtkit._native as _native

_NUMBERS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # what C++ writes, whatever torch's defaults are
EIGHT_BIT_COLUMNS = 1 << 16  # of a matrix in 8 bits at most: its sums of products have 32 bits
BUILDS = {"_native_avx512": "AVX-512", "_native_avx2": "AVX2"}  # of nmtkit/native, the fastest first


def _load() -> ModuleType | None:
    """The first of the builds that has been compiled and that this CPU can run."""
    for name in BUILDS:
        try:
            return import_module(f"nmtkit.{name}")
        except ModuleNotFoundError:
            continue
        except ImportError as error:
            if "this CPU has no" not in str(error):  # as it says itself
                logger.warning("nmtkit.%s cannot be loaded, install nmtkit again: %s", name, error)
    return None


if not TYPE_CHECKING:
    _native = _load()


def available() -> bool:
    """Whether it was compiled, and this CPU has the instructions."""
    return _native is not None


def isa() -> str:
    """Whose instructions it is compiled to, in the CPU makers' words. It must be available."""
    return BUILDS[_native.__name__.rpartition(".")[2]]


def supports(config: ModelConfig) -> bool:
    """Whether it can search with such a model, where it is available."""
    return config.attention_window is None


def compiler_was_missing() -> bool:
    """Whether only a compiler was missing when nmtkit was installed."""
    capable = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return not available() and capable and sys.platform != "win32"


class NativeLinear(nn.Module):
    """x·Wᵀ + b in fp32, or with W and x rounded to integers, each row of either scaled by its own largest value.

    A matrix of more than `EIGHT_BIT_COLUMNS` stays in fp32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, eight_bits: bool) -> None:
        super().__init__()
        self.rows, self.columns = weight.shape
        eight_bits = eight_bits and self.columns <= EIGHT_BIT_COLUMNS
        weight = weight.detach().float().contiguous()
        bias = None if bias is None else bias.detach().float().contiguous()
        self.matrix = _native.matrix(weight.data_ptr(), _address(bias), self.rows, self.columns, eight_bits)

    def forward(self, x: Tensor) -> Tensor:
        """(…, K) to (…, N). TypeError for anything else, as the address of it is all that goes further."""
        if x.size(-1) != self.columns or x.dtype != torch.float32:
            raise TypeError(f"{self.columns} columns of fp32 are expected, not {tuple(x.shape)} of {x.dtype}")
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], self.rows)
        rows = x.numel() // x.size(-1)
        _native.multiply(self.matrix, x.data_ptr(), rows, y.data_ptr(), torch.get_num_threads())
        return y


def takes(x: Tensor) -> bool:
    """Whether `log_softmax_` and `best_of_rows` can be asked of x."""
    return available() and x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous()


def log_softmax_(x: Tensor) -> Tensor:
    """log softmax of each row of x (R, W), in place."""
    rows, width = x.shape
    _native.log_softmax(x.data_ptr(), rows, width, torch.get_num_threads())
    return x


def best_of_rows(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row of scores (R, W) and their columns (R, count), highest first, of equal ones the
    first; all of them where there are fewer."""
    rows, width = scores.shape
    count = min(count, width)
    values, columns = scores.new_empty(rows, count), scores.new_empty(rows, count, dtype=torch.long)
    _native.best(scores.data_ptr(), rows, width, count, values.data_ptr(), columns.data_ptr(), torch.get_num_threads())
    return values, columns


class NativeState:
    """A batch's sentences, encoded, and the hypotheses that the decoder has seen."""

    def __init__(self, search: "_native.Search", model: "NativeTransformer") -> None:
        self.search, self.length = search, 0
        self.log_probs = torch.empty(
            0, **_NUMBERS
        )  # of the last step: fresh memory would cost more than the softmax in it
        self._model = model  # which the search points into

    def reorder(self, origins: Tensor) -> None:
        """As `DecoderState.reorder`."""
        origins = _ids(origins)
        _native.reorder(self.search, origins.data_ptr(), origins.numel())


class NativeTransformer:
    """What a search needs of a Transformer whose linear layers are `NativeLinear`."""

    def __init__(
        self,
        config: ModelConfig,
        embeddings: tuple[Tensor, Tensor],
        positions: tuple[nn.Module, nn.Module],
        matrices: Sequence[NativeLinear],
        norms: Sequence[nn.LayerNorm],
    ) -> None:
        """Embeddings and positions are those of the source and of the target; matrices and norms come in the order in
        which a batch meets them, as `_native.model` has it."""
        self._source_positions, self._target_positions = positions
        self._source_vocabulary, self._vocabulary = embeddings[0].size(0), matrices[-1].rows
        # what C++ points at: whatever becomes of the modules, these tensors keep their memory
        tables = [embedding.detach().float().contiguous() for embedding in embeddings]
        gains = [(norm.weight.detach().float().contiguous(), norm.bias.detach().float().contiguous()) for norm in norms]
        self._pointed_at = (tables, gains, list(matrices))
        self._native = _native.model(
            config.d_model,
            config.heads,
            config.key_size,
            config.value_size,
            config.norm == "pre",
            tables[0].data_ptr(),
            tables[1].data_ptr(),
            config.encoder_layers,
            config.decoder_layers,
            [linear.matrix for linear in matrices],
            [(gain.data_ptr(), bias.data_ptr()) for gain, bias in gains],
            norms[0].eps,
        )

    def encode(self, src: Tensor, lengths: Tensor) -> NativeState:
        """As `Transformer.encode`. IndexError for ids beyond the vocabulary, and for lengths not from 1 to S."""
        src, lengths = _ids(src), _ids(lengths)
        sentences, width = src.shape
        if lengths.shape != (sentences,):
            raise IndexError(f"{tuple(lengths.shape)} lengths do not fit {sentences} sentences")
        if not 0 <= int(src.amin()) <= int(src.amax()) < self._source_vocabulary:
            raise IndexError(f"ids from {int(src.amin())} to {int(src.amax())} are not all in the vocabulary")
        positions = self._source_positions(0, width).float().contiguous()
        search = _native.encode(
            self._native,
            src.data_ptr(),
            lengths.data_ptr(),
            sentences,
            width,
            positions.data_ptr(),
            torch.get_num_threads(),
        )
        return NativeState(search, self)

    def start(self, memory: NativeState) -> NativeState:
        """What `encode` gives is ready for the first step."""
        return memory

    def step(self, tokens: Tensor, state: NativeState) -> Tensor:
        """As `Transformer.step`; they are there until the next step. IndexError for ids and rows that are not."""
        rows = tokens.numel()
        if state.log_probs.size(0) < rows:
            state.log_probs = torch.empty(rows, self._vocabulary, **_NUMBERS)
        log_probs = state.log_probs[:rows]
        self._feed(_native.step, tokens, state, log_probs.data_ptr())
        return log_probs

    def best_step(
        self, tokens: Tensor, state: NativeState, count: int, excluded: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """`best_of_rows` of what `step` gives, without the tokens that are `excluded`. Faster, and with large
        batches in less memory, as a thread has the log-probabilities of all tokens for a block of rows at a time."""
        rows, count = tokens.numel(), min(count, self._vocabulary)
        log_probs = torch.empty(rows, count, **_NUMBERS)
        best_tokens = torch.empty(rows, count, dtype=torch.int64, device="cpu")
        self._feed(_native.best_step, tokens, state, excluded, count, log_probs.data_ptr(), best_tokens.data_ptr())
        return log_probs, best_tokens

    def _feed(self, step: Callable[..., None], tokens: Tensor, state: NativeState, *result: object) -> None:
        """Let `step` write its result for the next position."""
        tokens = _ids(tokens)
        position = self._target_positions(state.length, 1).float()
        step(state.search, tokens.data_ptr(), tokens.numel(), position.data_ptr(), *result, torch.get_num_threads())
        state.length += 1


def _ids(tensor: Tensor) -> Tensor:
    """As C++ reads ids and numbers of rows."""
    return tensor.to("cpu", torch.int64).contiguous()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()

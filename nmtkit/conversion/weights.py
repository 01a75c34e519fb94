"""Converts the weights of a foreign Transformer to a checkpoint.

Formats differ in names, in the order of ids, and in the order of the D dimensions. An importer describes these
differences, and this module does the rest.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.console.log import logger
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.parameters import check_finite, check_weights
from nmtkit.model.positions import sinusoids
from nmtkit.model.weights import as_arrays
from nmtkit.text.tokenizer import Tokenizer, shares_vocabulary
from nmtkit.text.vocabulary import NEVER_OUTPUT

_POSITIONS = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")  # fairseq's names
SHARED, OUTPUT = "shared.weight", "lm_head.weight"  #: names in transformers
_SOURCE, _TARGET = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
POSITION_OFFSET = 2  #: unused rows before fairseq's positions
_POSITION_ERROR = 2.5e-3  # of sinusoids: rounding to bfloat16, or of large angles in float32
MASK = -1e4  #: bias of ids that are never output: gives probability 0 in all number formats, including fp16
_FLOAT32_STEP = 2**-23  # a scale may be stored in float32

Parts = Mapping[str, tuple[str, ...]]  # nmtkit's module -> foreign modules whose rows it concatenates

# fairseq's names of a decoder layer, which models of transformers also use. An encoder layer lacks cross-attention.
LAYER: Parts = {
    "self_attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.out": ("self_attn.out_proj",),
    "around_self_attention.norm": ("self_attn_layer_norm",),
    "cross_attention.q": ("encoder_attn.q_proj",),
    "cross_attention.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.out": ("encoder_attn.out_proj",),
    "around_cross_attention.norm": ("encoder_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.outer": ("fc2",),
    "around_feed_forward.norm": ("final_layer_norm",),
}
_SSRU: Parts = {  # in place of self-attention, with names of nmtkit's own
    "self_attention.value": ("rnn.value",),
    "self_attention.gate": ("rnn.gate",),
    "around_self_attention.norm": ("rnn_layer_norm",),
}

_D_COLUMNS = (
    *("_embedding.weight", "projection.weight", ".qkv.weight", ".q.weight", ".kv.weight", ".inner.weight"),
    *(".value.weight", ".gate.weight"),
)
_D_ROWS = (
    *("norm.weight", "norm.bias", ".out.weight", ".out.bias", ".outer.weight", ".outer.bias"),
    *(".value.weight", ".gate.weight", ".gate.bias"),
)


def stack_modules(config: TransformerConfig, layer: Parts = LAYER, form: str = "{}.layers.{}.") -> Parts:
    """Return the foreign modules of both stacks by nmtkit's names.

    `layer` has the foreign names in a decoder layer, and `form` is the format of the prefix of each layer.
    """
    encoder = {ours: theirs for ours, theirs in layer.items() if "cross_attention" not in ours}
    decoder = layer
    if config.decoder_recurrence:
        decoder = {**{ours: theirs for ours, theirs in layer.items() if "self_attention" not in ours}, **_SSRU}
    modules: dict[str, tuple[str, ...]] = {}
    for stack, side, count, own in (
        ("encoder", "source", config.encoder_layers, encoder),
        ("decoder", "target", config.decoder_layers, decoder),
    ):
        for number in range(count):
            prefix = form.format(stack, number)
            for ours, theirs in own.items():
                modules[f"{stack}.{number}.{ours}"] = tuple(prefix + module for module in theirs)
        if config.norm == "pre":
            modules[f"{stack}_norm"] = (f"{stack}.layer_norm",)
        if config.embedding_norm:
            modules[f"{side}_norm"] = (f"{stack}.layernorm_embedding",)
    return modules


class ForeignWeights:
    """The tensors of a foreign model by name. An importer takes each once; tensors that remain are unknown."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str) -> Tensor:
        """Remove a tensor (…), and return it as float32. Raises UserError if it is missing or not floating-point."""
        if name not in self._tensors:
            raise UserError(f"the weight {name} is missing")
        tensor = self._tensors.pop(name)
        if not tensor.is_floating_point():
            raise UserError(f"the weight {name} is {tensor.dtype}: nmtkit imports only floating-point weights")
        return tensor.float()

    def drop(self, is_unused: Callable[[str], bool]) -> None:
        """Remove the tensors whose names `is_unused` accepts, because the model does not need them."""
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if not is_unused(name)}

    def refuse_rest(self) -> None:
        """Raise UserError with the name of the first tensor that was not taken."""
        for name in sorted(self._tensors):
            raise UserError(f"the weight {name} has no counterpart in nmtkit's Transformer: the model is not supported")

    def take_modules(self, modules: Parts) -> dict[str, Tensor]:
        """Take the modules from `stack_modules`, and return their weights (…) and biases by nmtkit's names."""
        return {
            f"{ours}.{part}": torch.cat([self.take(f"{module}.{part}") for module in theirs])
            for ours, theirs in modules.items()
            for part in ("weight", "bias")
            if part == "weight" or not ours.endswith("self_attention.value")  # it has no bias
        }

    def take_embeddings(
        self, *, shares: bool, ties: bool, output: str = OUTPUT, bias: str = "final_logits_bias"
    ) -> "Embeddings":
        """Take both embeddings, the matrix `output`, and its `bias` if it is stored.

        With `shares`, the embeddings are one matrix; with `ties`, the output matrix is the target embedding. One matrix
        may be stored under any of its names. Raises UserError if it is missing, or stored with different values.
        """
        found = {name: self.take(name) for name in (SHARED, _SOURCE, _TARGET, output) if name in self}
        same = [*((SHARED, _SOURCE) if shares else ()), _TARGET, *((output,) if ties else ())]
        stored = [name for name in same if name in found]
        for name in stored if ties else ():
            if not torch.equal(found[name], found[stored[0]]):
                raise UserError(f"{stored[0]} and {name} differ, but the options of the model say that they are shared")

        def first(name: str) -> Tensor:
            chosen = name if name in found or name not in same else next(iter(stored), name)
            return found[chosen] if chosen in found else self.take(chosen)

        offset = self.take(bias) if bias in self else None
        return Embeddings(first(_SOURCE), first(_TARGET), first(output), offset)


def stack_tensors(weights: Mapping[str, Tensor], config: TransformerConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights (…) of both stacks under fairseq's names: the inverse of `ForeignWeights.take_modules`."""
    for ours, theirs in stack_modules(config).items():
        for part in ("weight", "bias"):
            if f"{ours}.{part}" in weights:
                for module, chunk in zip(theirs, weights[f"{ours}.{part}"].chunk(len(theirs)), strict=True):
                    yield f"{module}.{part}", chunk


@dataclass(frozen=True)
class Embeddings:
    """The three matrices (W, D) and the bias (W,) of a foreign model, in the order of its ids."""

    source: Tensor
    target: Tensor
    output: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Side:
    """The tokenizer of a side, and the row of each of its ids in the foreign matrices."""

    tokenizer: Tokenizer
    rows: Sequence[int | None]  #: foreign id for each id of nmtkit; None for a row of zeros
    size: int  #: of the foreign vocabulary


def assemble(
    config: TransformerConfig,
    languages: tuple[str, str],
    sides: tuple[Side, Side],
    embeddings: Embeddings,
    others: dict[str, Tensor],
    *,
    halves: bool,
) -> Checkpoint:
    """Assemble the checkpoint of an imported model. `others` are its remaining weights (…) by nmtkit's names.

    With `halves`, all sines precede all cosines in the foreign model; D is permuted to nmtkit's order, in which they
    alternate. The weights determine --share-embeddings and --output-bias. Raises UserError if weights do not fit the
    options or are not finite.
    """
    tokenizers = (sides[0].tokenizer, sides[1].tokenizer)
    matrices, sharing = _embedding_weights(embeddings, sides, shares_vocabulary(*tokenizers))
    weights = {**matrices, **others}
    scale = config.embedding_scale
    if scale is not None and math.isclose(scale, config.d_model**0.5, rel_tol=_FLOAT32_STEP):
        scale = None
    bias = "projection_bias" in weights
    config = replace(config, share_embeddings=sharing, output_bias=bias, embedding_scale=scale)
    checkpoint = Checkpoint(config, {}, *languages, *tokenizers)
    shapes = checkpoint.parameter_shapes()
    arrays = as_arrays(weights)
    check_weights(arrays, shapes)
    check_finite(arrays)
    if halves:
        arrays = as_arrays(permute_width(weights, alternating(config.d_model)))
    return replace(checkpoint, weights={name: arrays[name] for name in shapes})


def convert(
    weights: ForeignWeights,
    config: TransformerConfig,
    languages: tuple[str, str],
    sides: tuple[Side, Side],
    *,
    shares: bool,
    ties: bool,
    output: str = OUTPUT,
    bias: str = "final_logits_bias",
    unused_positions: int = POSITION_OFFSET,
    halves: bool = True,
) -> Checkpoint:
    """Convert all weights, named as in fairseq, to a checkpoint. Raises UserError for missing and for unknown ones.

    The options of embeddings are those of `ForeignWeights.take_embeddings`. Stored positions, after `unused_positions`
    rows, determine `halves` of `assemble`.
    """
    embeddings = weights.take_embeddings(shares=shares, ties=ties, output=output, bias=bias)
    others = weights.take_modules(stack_modules(config))
    if config.positions == "learned" or any(name in weights for name in _POSITIONS):
        form, tables = config.positions, [weights.take(name)[unused_positions:] for name in _POSITIONS]
        config, learned, halves = with_positions(config, *tables)
        others |= learned
        if learned and form != "learned":
            logger.info("the positions differ from sinusoids: imported as learned positions")
    weights.refuse_rest()
    return assemble(config, languages, sides, embeddings, others, halves=halves)


def with_positions(
    config: TransformerConfig, source: Tensor, target: Tensor
) -> tuple[TransformerConfig, dict[str, Tensor], bool]:
    """Set the form of sinusoids that equals two tables (positions, D), within rounding, else learned positions.

    Return the options, learned tables by nmtkit's names, truncated to equal length, and the `halves` of `assemble`.
    Raises UserError if the width of a table is not D.
    """
    length, d_model = min(len(source), len(target)), config.d_model
    if source.shape[1:] != (d_model,) or target.shape[1:] != (d_model,):
        raise UserError(f"the positions do not have the width of the embeddings, {d_model}")
    for form in ("sinusoidal", "fairseq") if d_model % 2 == 0 and d_model > 2 else ():
        own = sinusoids(length, d_model, form)
        sines_first = torch.cat([own[:, 0::2], own[:, 1::2]], dim=1)
        for expected, are_halves in ((own, False), (sines_first, True)):
            tables = source[:length], target[:length]
            if all(torch.allclose(table, expected, rtol=0, atol=_POSITION_ERROR) for table in tables):
                return replace(config, positions=form), {}, are_halves
    if len(source) != len(target):
        logger.warning("there are %d positions for the source, but %d for the target", len(source), len(target))
    learned = {"source_positions.table": source[:length], "target_positions.table": target[:length]}
    return replace(config, positions="learned", max_positions=length), learned, False


def _embedding_weights(given: Embeddings, sides: tuple[Side, Side], joined: bool) -> tuple[dict[str, Tensor], str]:
    """Return the embeddings by nmtkit's names and ids, and the value of --share-embeddings.

    Two matrices are shared if all used rows are equal.
    """
    target = _pick(given.target, sides[1], "target embedding")
    is_tied, is_shared = given.output is given.target, given.source is given.target and sides[0].rows is sides[1].rows
    source = target if is_shared else _pick(given.source, sides[0], "source embedding")
    output = target if is_tied else _pick(given.output, sides[1], "output matrix")
    matrices = {"target_embedding.weight": target}
    if given.bias is not None:
        bias = _pick(given.bias.reshape(-1), sides[1], "bias of the output")
        bias[list(NEVER_OUTPUT)] = 0
        if bias.any():
            matrices["projection_bias"] = bias
    used = [number for number in range(len(target)) if number not in NEVER_OUTPUT]
    if not torch.equal(output[used], target[used]):
        sharing = "none"
        matrices["projection.weight"] = output
    elif joined and torch.equal(source[used], target[used]):
        return matrices, "all"
    else:
        sharing = "decoder"
    matrices["source_embedding.weight"] = source
    return matrices, sharing


def _pick(matrix: Tensor, side: Side, name: str) -> Tensor:
    """Copy the rows of a matrix (W, D), or a bias (W,), in the order of a side's ids."""
    if matrix.dim() == 0 or len(matrix) != side.size:
        raise UserError(
            f"the {name} has the shape {list(matrix.shape)}, but the vocabulary has {side.size} pieces with the "
            "special ones: give the vocabulary of this model"
        )
    picked = matrix[torch.tensor([number or 0 for number in side.rows])]
    picked[[ours for ours, number in enumerate(side.rows) if number is None]] = 0
    return picked


def alternating(d_model: int) -> Tensor:
    """Return the order (D,) that makes sines and cosines alternate: 2i comes from i, and 2i + 1 from D/2 + i."""
    return torch.arange(d_model).reshape(2, -1).t().reshape(-1)


def permute_width(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Permute D in weights (…) by nmtkit's names with `order` (D,): new dimension k is old dimension order[k]."""

    def permuted(name: str, weight: Tensor) -> Tensor:
        if name.endswith(_D_COLUMNS):
            weight = weight[:, order]
        return weight[order] if name.endswith(_D_ROWS) else weight

    return {name: permuted(name, weight) for name, weight in weights.items()}

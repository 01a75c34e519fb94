"""Options that define a model. Checkpoints contain them, so inference needs no model options.

Letters: D d_model, F d_ff, S source tokens, T target tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from nmtkit.config import Config, option
from nmtkit.errors import UserError
from nmtkit.wording import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

M = TypeVar("M", bound="ModelConfig")
C = TypeVar("C", bound="SeparateOutputConfig")


class LengthLimit(NamedTuple):
    """The longest sequence that a model accepts, in tokens including BOS or EOS."""

    tokens: int
    flag: str  # option that sets the limit
    remedy: str  # advice for error messages


class ModelConfig(Config, ABC):
    """Base class of an architecture's options. A subclass is a frozen dataclass with one field for each option,
    including the width of embeddings and layers, `d_model`."""

    heading: ClassVar[str] = "Model (overrides --arch)"
    arch: ClassVar[str]  #: name of the architecture in checkpoints, and of the preset with its defaults
    dropout_options: ClassVar[frozenset[str]]  #: options that affect only training
    free_options: ClassVar[frozenset[str]]  #: options that change no parameter: they may differ in fine-tuning
    d_model: int

    def to_dict(self) -> dict[str, Any]:
        """Return the options and the name of the architecture as JSON values."""
        return {"arch": self.arch, **super().to_dict()}

    @classmethod
    def from_dict(cls: type[M], values: Mapping[str, Any]) -> M:
        """Create options from values of `to_dict`; missing ones get defaults. Raises UserError for unknown options."""
        return super().from_dict({name: value for name, value in values.items() if name != "arch"})

    def for_vocabularies(self: M, joined: bool) -> M:
        """Return the options with defaults resolved; `joined` is whether source and target share a vocabulary. Raises
        UserError if an option does not fit."""
        return self

    def summary(self) -> str:
        """Describe the main sizes in one line of the log."""
        return f"d_model {self.d_model}"

    def effective(self) -> dict[str, Any]:
        """Return the values of `to_dict`, with derived values instead of None, so that equal models compare equal."""
        return self.to_dict()

    def ineffective(self) -> dict[str, str]:
        """Return the options that have no effect, each with the option that disables it."""
        return {}

    @property
    def length_limit(self) -> LengthLimit | None:
        """The longest source or target sequence; None without a limit."""
        return None

    @abstractmethod
    def forward_flops(self, target_size: int, source: "NDArray[np.integer]", target: "NDArray[np.integer]") -> int:
        """Count the FLOPs of a forward pass over sentence pairs of these lengths (n,), in tokens with EOS.

        `target_size` is the size of the target vocabulary. Only matrix products count: a multiplication and an addition
        are two operations.
        """


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The options of a Transformer; the defaults are the paper's base model (Table 3)."""

    arch: ClassVar[str] = "transformer"
    dropout_options: ClassVar[frozenset[str]] = frozenset({"dropout", "attention_dropout", "activation_dropout"})
    free_options: ClassVar[frozenset[str]] = dropout_options | {"attention_window"}

    encoder_layers: int = option(6, min=1, max=10**4, help="Encoder layers, N in the paper.")
    decoder_layers: int = option(6, min=1, max=10**4, help="Decoder layers.")
    d_model: int = option(512, min=1, max=10**6, help="Width of embeddings and layers.")
    d_ff: int = option(2048, min=1, max=10**6, help="Inner width of the feed-forward networks.")
    heads: int = option(8, min=1, max=10**4, help="Attention heads, h in the paper.")
    d_k: int | None = option(
        None, min=1, max=10**6, unset="d_model / heads", help="Width of each head's queries and keys."
    )
    d_v: int | None = option(None, min=1, max=10**6, unset="d_model / heads", help="Width of each head's values.")
    dropout: float = option(0.1, min=0.0, below=1.0, help="Dropout on embeddings and sub-layer outputs (§5.4).")
    attention_dropout: float = option(0.0, min=0.0, below=1.0, help="Dropout on attention weights (not in the paper).")
    activation_dropout: float = option(
        0.0, min=0.0, below=1.0, help="Dropout inside the feed-forward networks (not in the paper)."
    )
    activation: str = option(
        "relu",
        choices=("relu", "gelu", "swish", "swiglu"),
        help="Activation function of the feed-forward networks (§3.3). swiglu: swish with a gate, a third matrix of "
        "width --d-ff.",
    )
    positions: str = option(
        "sinusoidal",
        choices=("sinusoidal", "learned", "fairseq", "marian", "rotary"),
        help="Positional encoding (§3.5). fairseq, marian: as in that toolkit. With marian, outputs begin with a zero "
        "embedding. rotary: rotate queries and keys of self-attention.",
    )
    max_positions: int = option(512, min=1, max=10**6, help="Longest sequence in tokens, for learned positions.")
    decoder_recurrence: str | None = option(
        None,
        choices=("ssru",),
        unset="self-attention",
        help="Replace the decoder's self-attention with a recurrence, for faster translation. ssru: simpler simple "
        "recurrent unit (Kim et al. 2019).",
    )
    norm: str = option(
        "post",
        choices=("post", "pre"),
        help="Layer norm after each residual connection (the paper), or before each sub-layer.",
    )
    norm_type: str = option(
        "layer", choices=("layer", "rms"), help="Layer norm (the paper), or RMSNorm, without mean and bias."
    )
    norm_epsilon: float = option(
        1e-5, above=0.0, max=1.0, file_only=True, help="ε of layer norms and RMSNorms. Toolkits differ in it."
    )
    qk_norm: bool = option(False, help="Normalize the queries and keys of each head by RMSNorm (not in the paper).")
    bias: bool = option(True, help="Learn the biases of linear layers and layer norms.")
    share_embeddings: str | None = option(
        None,
        choices=("all", "decoder", "none"),
        unset="all; decoder with separate vocabularies",
        help="all: one matrix for source, target and output (the paper). decoder: one for target and output. none: "
        "three.",
    )
    output_bias: bool = option(False, file_only=True, help="Add a learned bias to the logits (not in the paper).")
    embedding_scale: float | None = option(
        None, above=0.0, max=1e6, file_only=True, unset="√d_model", help="Factor of embeddings before the first layer."
    )
    embedding_norm: bool = option(False, file_only=True, help="Layer norm after the sum of embeddings and positions.")
    source_end: bool = option(True, file_only=True, help="Append </s> to each source. Models of OpenNMT-py do not.")
    attention_window: int | None = option(
        None,
        min=1,
        max=10**6,
        metavar="R",
        help="Limit self-attention to R positions on each side: a neighborhood of 2R + 1 (§4).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions in ("sinusoidal", "fairseq", "marian") and self.d_model % 2:
            raise UserError(f"--d-model {self.d_model}: sinusoidal positions need an even number")
        if self.positions in ("fairseq", "marian") and self.d_model < 4:
            raise UserError(f"--d-model {self.d_model}: --positions {self.positions} needs at least 4")
        if self.d_model % self.heads and (self.d_k is None or self.d_v is None):
            raise UserError(
                f"--d-model {self.d_model} is not a multiple of --heads {self.heads}: "
                "change one of them, or give --d-k and --d-v"
            )
        if self.positions == "rotary" and self.key_size % 2:
            raise UserError(f"--positions rotary needs an even width of keys, not {self.key_size}: change --d-k")

    def for_vocabularies(self, joined: bool) -> "TransformerConfig":
        """Return the options with `share_embeddings` resolved. Raises UserError for "all" unless `joined`."""
        return replace(self, share_embeddings=resolve_sharing(self.share_embeddings, joined))

    def summary(self) -> str:
        """Describe layers, widths and heads in one line of the log."""
        return (
            f"{self.encoder_layers}-{self.decoder_layers} layers, d_model {self.d_model}, d_ff {self.d_ff}, "
            f"{counted(self.heads, 'head')}{', SSRU decoder' if self.decoder_recurrence else ''}"
        )

    def effective(self) -> dict[str, Any]:
        """Return the values of `to_dict`, with the resolved widths of heads and scale of embeddings."""
        return {**self.to_dict(), "d_k": self.key_size, "d_v": self.value_size, "embedding_scale": self.input_scale}

    def ineffective(self) -> dict[str, str]:
        """Return the options that have no effect, each with the option that disables it."""
        return {} if self.positions == "learned" else {"max_positions": "positions"}

    @property
    def length_limit(self) -> LengthLimit | None:
        """The number of learned positions; None with other encodings."""
        if self.positions != "learned":
            return None
        return LengthLimit(self.max_positions, "--max-positions", "use --positions sinusoidal")

    @property
    def key_size(self) -> int:
        """d_k, the width of one head's queries and keys."""
        return self.d_k or self.d_model // self.heads

    @property
    def value_size(self) -> int:
        """d_v, the width of one head's values."""
        return self.d_v or self.d_model // self.heads

    @property
    def input_scale(self) -> float:
        """The factor of embeddings before the first layer."""
        return self.embedding_scale or float(self.d_model**0.5)

    @property
    def inner_widths(self) -> tuple[int, ...]:
        """The widths of the projections at the input of a feed-forward network: of a gate if any, then of the rest."""
        return (self.d_ff, self.d_ff) if self.activation == "swiglu" else (self.d_ff,)

    def forward_flops(self, target_size: int, source: "NDArray[np.integer]", target: "NDArray[np.integer]") -> int:
        """Count the FLOPs of a forward pass. Self-attention counts all pairs of positions, or all within
        --attention-window, including pairs that the causal mask hides, as usual."""
        D = self.d_model
        keys, values = self.heads * self.key_size, self.heads * self.value_size
        source, target = source.astype("int64"), target.astype("int64")
        S, T = int(source.sum()), int(target.sum())
        window = self.attention_window
        source_reach = source if window is None else source.clip(max=2 * window + 1)
        target_reach = target if window is None else target.clip(max=window + 1)

        projections = D * (2 * keys + values) + values * D  # W_Q, W_K, W_V and W_O, per token
        feed_forward = D * (sum(self.inner_widths) + self.d_ff)
        encoder = S * (projections + feed_forward) + (keys + values) * int((source * source_reach).sum())
        own = T * projections + (keys + values) * int((target * target_reach).sum())
        decoder = T * feed_forward + (2 * T * D * D if self.decoder_recurrence else own)
        decoder += T * (D * keys + values * D) + S * D * (keys + values)  # cross-attention
        decoder += (keys + values) * int((source * target).sum())
        return 2 * (self.encoder_layers * encoder + self.decoder_layers * decoder + T * D * target_size)


def resolve_sharing(share_embeddings: str | None, joined: bool) -> str:
    """Return --share-embeddings, or its default. Raises UserError for "all" with separate vocabularies."""
    if share_embeddings == "all" and not joined:
        raise UserError(
            "--share-embeddings all needs one vocabulary, but each side has its own: "
            "preprocess with --joined-vocab, or use --share-embeddings decoder"
        )
    return share_embeddings or ("all" if joined else "decoder")


@dataclass(frozen=True)
class SeparateOutputConfig(ModelConfig):
    """Base class for options of models, except Transformers, whose output matrix can be separate from embeddings."""

    dropout_options: ClassVar[frozenset[str]] = frozenset({"dropout"})
    free_options: ClassVar[frozenset[str]] = dropout_options

    share_embeddings: str | None = option(
        None,
        choices=("all", "decoder", "none"),
        unset="all; decoder with separate vocabularies",
        help="all: one matrix for source, target and output. decoder: one for target and output. none: three.",
    )
    separate_output: bool = option(
        True, file_only=True, help="Use a separate output matrix regardless of --share-embeddings."
    )

    @property
    def has_tied_output(self) -> bool:
        """Whether the output matrix is the target embedding."""
        return not self.separate_output and self.share_embeddings != "none"

    def for_vocabularies(self: C, joined: bool) -> C:
        """Return the options with `share_embeddings` resolved. Raises UserError for "all" unless `joined`."""
        return replace(self, share_embeddings=resolve_sharing(self.share_embeddings, joined))


def model_differences(a: ModelConfig, b: ModelConfig, but_for: Collection[str] = ()) -> Iterator[str]:
    """Describe each difference of b from a, except in the options `but_for`."""
    if a.arch != b.arch:
        yield f"its architecture is {b.arch}, not {a.arch}"
        return
    ours, theirs = a.effective(), b.effective()
    for name, value in ours.items():
        if name not in but_for and theirs[name] != value:
            yield f"its {name} is {theirs[name]}, not {value}"


@dataclass(frozen=True)
class WeightsConfig(Config):
    """The option that selects the weights of a checkpoint."""

    heading: ClassVar[str] = "Model"

    weights: str = option(
        "auto",
        choices=("auto", "trained", "ema"),
        help="Use the trained weights or their moving average (ema). auto: the average if there is one.",
    )


@dataclass(frozen=True)
class DeviceConfig(Config):
    """Options for the device and the number format."""

    heading: ClassVar[str] = "Device"

    device: str = option("auto", metavar="NAME", help="cpu, cuda, cuda:1, … auto: the first GPU, else the CPU.")
    precision: str = option(
        "auto",
        choices=("auto", "fp32", "bf16", "fp16"),
        help="Number format. auto: bf16 if the hardware multiplies it fast, else fp32. Results differ slightly "
        "between formats.",
    )
    threads: int | None = option(None, min=1, max=1024, unset="all available cores", help="CPU threads.")

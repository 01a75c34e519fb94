"""What defines a model. A checkpoint carries these options, so that generation needs no model flags."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from nmtkit.config import Config, option
from nmtkit.errors import UserError

DROPOUTS = frozenset({"dropout", "attention_dropout", "activation_dropout"})  # of no effect but in training


@dataclass(frozen=True)
class TransformerConfig(Config):
    """The sizes and choices of a Transformer; the defaults are the paper's base model (Table 3)."""

    heading: ClassVar[str] = "Model (each number overrides the one of --arch)"

    encoder_layers: int = option(6, min=1, max=10**4, help="Layers of the encoder, N in the paper.")
    decoder_layers: int = option(6, min=1, max=10**4, help="Layers of the decoder.")
    d_model: int = option(512, min=1, max=10**6, help="Width of embeddings and of every layer's output.")
    d_ff: int = option(2048, min=1, max=10**6, help="Inner width of the feed-forward networks.")
    heads: int = option(8, min=1, max=10**4, help="Attention heads, h in the paper.")
    d_k: int | None = option(
        None, min=1, max=10**6, unset="d_model / heads", help="Width of a head's queries and keys."
    )
    d_v: int | None = option(None, min=1, max=10**6, unset="d_model / heads", help="Width of a head's values.")
    dropout: float = option(0.1, min=0.0, below=1.0, help="On each sub-layer's output and on the embeddings (§5.4).")
    attention_dropout: float = option(0.0, min=0.0, below=1.0, help="On attention weights (not in the paper).")
    activation_dropout: float = option(
        0.0, min=0.0, below=1.0, help="On the inner layer of the feed-forward networks (not in the paper)."
    )
    positions: str = option("sinusoidal", choices=("sinusoidal", "learned"), help="Positional encoding (§3.5).")
    max_positions: int = option(
        512, min=1, max=10**6, help="Longest sequence that learned positions can take, in tokens."
    )
    norm: str = option("post", choices=("post", "pre"), help="Layer norm after each residual (the paper), or before.")
    share_embeddings: str | None = option(
        None,
        choices=("all", "decoder", "none"),
        unset="all, or decoder where the vocabularies are separate",
        help="One matrix for source, target and output (the paper); one for target and output; or three.",
    )
    attention_window: int | None = option(
        None,
        min=1,
        max=10**6,
        metavar="R",
        help="Restrict self-attention to R positions to each side; the paper's r (§4) is the whole neighborhood.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError(f"--d-model {self.d_model}: sinusoidal positions need an even number")
        if self.d_model % self.heads and (self.d_k is None or self.d_v is None):
            raise UserError(
                f"--d-model {self.d_model} is not a multiple of --heads {self.heads}: "
                "change one of them, or give --d-k and --d-v"
            )

    def for_vocabularies(self, joined: bool) -> "TransformerConfig":
        """The same with `share_embeddings` decided, for a dataset whose vocabularies are joined or not.

        UserError where one matrix is asked for and the sides have a vocabulary each.
        """
        if self.share_embeddings == "all" and not joined:
            raise UserError(
                "--share-embeddings all needs one vocabulary, but the sides have one each: "
                "preprocess with --joined-vocab, or take --share-embeddings decoder"
            )
        return replace(self, share_embeddings=self.share_embeddings or ("all" if joined else "decoder"))

    @property
    def key_size(self) -> int:
        """d_k, the width of one head's queries and keys."""
        return self.d_k or self.d_model // self.heads

    @property
    def value_size(self) -> int:
        """d_v, the width of one head's values."""
        return self.d_v or self.d_model // self.heads


def model_differences(a: TransformerConfig, b: TransformerConfig, but_for: Collection[str] = ()) -> Iterator[str]:
    """What b has otherwise than a, in words, `but_for` some options; nothing where they are the same model.

    A width of heads may be given or follow from their number: what counts is what it is.
    """
    ours, theirs = ({**each.to_dict(), "d_k": each.key_size, "d_v": each.value_size} for each in (a, b))
    for name, value in ours.items():
        if name not in but_for and theirs[name] != value:
            yield f"its {name} is {theirs[name]}, not {value}"


@dataclass(frozen=True)
class WeightsConfig(Config):
    """Which of the weights in a checkpoint a command takes."""

    heading: ClassVar[str] = "Model"

    weights: str = option(
        "auto",
        choices=("auto", "trained", "ema"),
        help="The weights of a checkpoint as trained, or their moving average; auto: the average where there is one.",
    )


@dataclass(frozen=True)
class DeviceConfig(Config):
    """Where a command computes, and in which number format."""

    heading: ClassVar[str] = "Device"

    device: str = option("auto", metavar="NAME", help="cpu, cuda, cuda:1, …; auto: the first GPU, else the CPU.")
    precision: str = option(
        "auto",
        choices=("auto", "fp32", "bf16", "fp16"),
        help="Number format; auto: bf16 where the hardware multiplies it fast, else fp32. Results differ a little "
        "between the formats, and so with auto between machines.",
    )
    threads: int | None = option(None, min=1, max=1024, unset="all cores", help="CPU threads.")

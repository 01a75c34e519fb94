"""Options of the convolutional model (convolutional.py).

Letters: E d_model, C channels of a layer, k kernel width, S source tokens, T target tokens, W target vocabulary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from nmtkit.config import flag, option
from nmtkit.errors import UserError
from nmtkit.model.config import LengthLimit, SeparateOutputConfig
from nmtkit.wording import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_GROUP = re.compile(r"([0-9]{1,3})x([0-9]{1,5})(?::([0-9]{1,2}))?")  # LAYERSxCHANNELS[:KERNEL]
_KERNEL = 3
_MOST_LAYERS = 100
_WMT = "9x512,4x1024,2x2048:1"  # fairseq's fconv_wmt_en_de, the size in the paper


class LayerShape(NamedTuple):
    """The sizes of a convolutional layer."""

    inputs: int
    channels: int
    kernel: int


@dataclass(frozen=True)
class ConvolutionalConfig(SeparateOutputConfig):
    """The options of the convolutional model; the defaults are those of ConvS2S for English-German."""

    arch: ClassVar[str] = "convs2s"

    encoder_convolutions: str = option(
        _WMT,
        metavar="LIST",
        help="Encoder layers of convolutional models, as LAYERSxCHANNELS or LAYERSxCHANNELS:KERNEL. Default kernel "
        f"width: {_KERNEL}.",
    )
    decoder_convolutions: str = option(_WMT, metavar="LIST", help="Decoder layers, in the same form.")
    d_model: int = option(768, min=1, max=10**6, help="Width of embeddings and attention.")
    d_bottleneck: int = option(
        512, min=1, max=10**6, file_only=True, help="Width of the decoder's output before a separate projection."
    )
    dropout: float = option(
        0.2, min=0.0, below=1.0, help="Dropout on embeddings, on the input of each convolution and before the output."
    )
    max_positions: int = option(1024, min=1, max=10**6, help="Longest sequence in tokens, for learned positions.")

    def __post_init__(self) -> None:
        super().__post_init__()
        layer_shapes("encoder_convolutions", self.encoder_convolutions)
        layer_shapes("decoder_convolutions", self.decoder_convolutions)

    @property
    def output_width(self) -> int:
        """The width of the decoder's output: d_model if the target embedding is the projection, else d_bottleneck."""
        return self.d_model if self.has_tied_output else self.d_bottleneck

    @property
    def encoder_layers(self) -> list[LayerShape]:
        """The layers of the encoder."""
        return layer_shapes("encoder_convolutions", self.encoder_convolutions)

    @property
    def decoder_layers(self) -> list[LayerShape]:
        """The layers of the decoder."""
        return layer_shapes("decoder_convolutions", self.decoder_convolutions)

    @property
    def length_limit(self) -> LengthLimit:
        """The number of learned positions."""
        return LengthLimit(self.max_positions, "--max-positions", "preprocess with a smaller --max-length")

    def summary(self) -> str:
        """Describe layers and widths in one line of the log."""
        layers = f"{len(self.encoder_layers)}-{len(self.decoder_layers)}"
        widest = max(shape.channels for shape in (*self.encoder_layers, *self.decoder_layers))
        return f"{layers} convolutional layers, d_model {self.d_model}, up to {counted(widest, 'channel')}"

    def effective(self) -> dict[str, Any]:
        """Return the values of `to_dict`, with layers in one notation and the resolved output width."""
        return self.to_dict() | {
            "encoder_convolutions": _description(self.encoder_layers),
            "decoder_convolutions": _description(self.decoder_layers),
            "d_bottleneck": self.output_width,
        }

    def forward_flops(self, target_size: int, source: "NDArray[np.integer]", target: "NDArray[np.integer]") -> int:
        """Count the FLOPs of a forward pass. A convolution has k·inputs·2C weights, since the gates need 2C outputs."""
        E, bottleneck = self.d_model, self.output_width
        source, target = source.astype("int64"), target.astype("int64")
        encoder, decoder = self.encoder_layers, self.decoder_layers
        per_source = _weights(encoder) + E * encoder[0].inputs + encoder[-1].channels * E
        per_target = _weights(decoder) + E * decoder[0].inputs + decoder[-1].channels * bottleneck
        per_target += sum(2 * E * shape.channels for shape in decoder) + bottleneck * target_size
        pairs = 2 * E * len(decoder) * int((source * target).sum())  # scores and contexts
        return 2 * (int(source.sum()) * per_source + int(target.sum()) * per_target + pairs)


def layer_shapes(option: str, text: str) -> list[LayerShape]:
    """Parse the layers that an option describes. Raises UserError if its text is malformed."""
    shapes: list[LayerShape] = []
    for group in text.split(","):
        match = _GROUP.fullmatch(group.strip())
        layers, channels, kernel = (int(number) for number in match.groups(str(_KERNEL))) if match else (0, 0, 0)
        if not (layers and channels and kernel):
            raise UserError(f"{flag(option)} {text}: expected LAYERSxCHANNELS[:KERNEL],… such as {_WMT}")
        if len(shapes) + layers > _MOST_LAYERS:
            raise UserError(f"{flag(option)} {text}: at most {_MOST_LAYERS} layers are possible")
        for _ in range(layers):
            shapes.append(LayerShape(shapes[-1].channels if shapes else channels, channels, kernel))
    return shapes


def _description(layers: Sequence[LayerShape]) -> str:
    groups = groupby(layers, key=lambda shape: shape[1:])
    return ",".join(f"{len(list(group))}x{channels}:{kernel}" for (channels, kernel), group in groups)


def _weights(layers: Sequence[LayerShape]) -> int:
    """Count the weights of convolutions, and of residual projections if the width changes."""
    return sum(
        shape.kernel * shape.inputs * 2 * shape.channels
        + (shape.inputs != shape.channels) * shape.inputs * shape.channels
        for shape in layers
    )

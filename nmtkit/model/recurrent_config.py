"""Options of the recurrent model (recurrent.py).

Letters: H d_model, S source tokens, T target tokens, W target vocabulary.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nmtkit.config import option
from nmtkit.model.config import SeparateOutputConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class RecurrentConfig(SeparateOutputConfig):
    """The options of the recurrent model; the defaults are GNMT's with 4 + 4 layers."""

    arch: ClassVar[str] = "gnmt"

    encoder_layers: int = option(4, min=2, max=100, help="LSTM layers of the encoder. The first is bidirectional.")
    decoder_layers: int = option(4, min=2, max=100, help="LSTM layers of the decoder.")
    d_model: int = option(1024, min=1, max=10**6, help="Width of embeddings, LSTM states and attention.")
    dropout: float = option(0.2, min=0.0, below=1.0, help="Dropout on the input of each LSTM.")

    def summary(self) -> str:
        """Describe layers and width in one line of the log."""
        return f"{self.encoder_layers}-{self.decoder_layers} LSTM layers, d_model {self.d_model}"

    def forward_flops(self, target_size: int, source: "NDArray[np.integer]", target: "NDArray[np.integer]") -> int:
        """Count the FLOPs of a forward pass. An LSTM layer with n inputs has 4·H·(n + H) weights."""
        H = self.d_model
        source, target = source.astype("int64"), target.astype("int64")
        S, T = int(source.sum()), int(target.sum())
        encoder = 16 + 12 + 8 * (self.encoder_layers - 2)  # unit H²: both directions, the layer that reads both, others
        decoder = 8 + 12 * (self.decoder_layers - 1)  # layers above the first also read the context
        attention = (S + T) * H * H + 2 * H * int((source * target).sum())  # projections; scores and context
        return 2 * (H * H * (S * encoder + T * decoder) + attention + T * H * target_size)

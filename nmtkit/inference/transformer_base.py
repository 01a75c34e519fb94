"""What the backends derive from a Transformer's options."""

from nmtkit.inference.protocol import InferenceModel
from nmtkit.model.config import TransformerConfig


class TransformerInference(InferenceModel):
    """An inference model of a Transformer, without the computation."""

    def __init__(self, config: TransformerConfig, vocabulary_size: int, item_bytes: int) -> None:
        """`item_bytes` is the size of a number in the key-value cache."""
        self.config, self.vocabulary_size = config, vocabulary_size
        self.longest_sequence = config.max_positions - 1 if config.positions == "learned" else None
        self.attention_layers = config.decoder_layers
        self._token_bytes = config.decoder_layers * config.heads * (config.key_size + config.value_size) * item_bytes

    def state_bytes(self, tokens: int) -> int:
        """As `InferenceModel.state_bytes`: the keys and values of each token in each layer."""
        return tokens * self._token_bytes

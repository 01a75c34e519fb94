"""What a search must know of a Transformer, whatever computes it."""

from nmtkit.model.config import TransformerConfig


class TransformerSizes:
    """The sizes that `InferenceModel` and `FixedModel` declare, of a Transformer."""

    def __init__(self, config: TransformerConfig, item_bytes: int) -> None:
        """`item_bytes` is the size of a number in the key-value cache."""
        self.config = config
        self.longest_sequence = config.max_positions - 1 if config.positions == "learned" else None
        self.attention_layers = config.decoder_layers
        self._token_bytes = config.decoder_layers * config.heads * (config.key_size + config.value_size) * item_bytes

    def state_bytes(self, tokens: int) -> int:
        """As `InferenceModel.state_bytes`: the keys and values of each token in each layer."""
        return tokens * self._token_bytes

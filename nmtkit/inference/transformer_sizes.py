"""The sizes of a Transformer that a search needs, for every backend."""

from nmtkit.model.config import TransformerConfig


class TransformerSizes:
    """The sizes of a Transformer that `InferenceModel` and `FixedModel` declare."""

    def __init__(self, config: TransformerConfig, item_bytes: int) -> None:
        """`item_bytes` is the size of a number in the key-value cache, in bytes."""
        self.config = config
        self.longest_sequence = config.max_positions - 1 if config.positions == "learned" else None
        self.attention_layers = config.decoder_layers
        width = config.heads * (config.key_size + config.value_size)
        self._token_bytes = config.decoder_layers * width * item_bytes

    def state_bytes(self, tokens: int) -> int:
        """Return the bytes of the keys and values of `tokens` tokens in all layers, or of the states of SSRUs."""
        if self.config.decoder_recurrence:
            return self.config.decoder_layers * self.config.d_model * 4  # in fp32
        return tokens * self._token_bytes

"""The names and shapes of a Transformer's parameters, which are known without torch."""

from typing import Any

import pytest
from known_options import CHOICES

from nmtkit.model.config import TransformerConfig
from nmtkit.model.parameters import transformer_shapes
from nmtkit.model.transformer import Transformer


@pytest.mark.parametrize("sizes", [(9, 9), (9, 7)])
@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_the_shapes_are_those_of_the_model_in_its_order(changes: dict[str, Any], sizes: tuple[int, int]) -> None:
    if changes.get("share_embeddings") == "all" and sizes[0] != sizes[1]:
        pytest.skip("separate vocabularies")
    small = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 12, "d_ff": 20, "heads": 2}
    config = TransformerConfig(**(small | changes))
    expected = [(name, tuple(weight.shape)) for name, weight in Transformer(config, *sizes).named_parameters()]
    assert list(transformer_shapes(config, *sizes).items()) == expected

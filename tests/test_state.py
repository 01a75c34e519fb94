"""The cached step: the same as decoding everything anew, however rows are reordered and sentences leave."""

from typing import Any

import pytest
import torch
from test_transformer import W, make, sentences, variants
from torch import Tensor
from torch.testing import assert_close

from nmtkit.model.transformer import Memory, Transformer
from nmtkit.vocab import BOS


def decode_anew(model: Transformer, memory: Memory, prefixes: Tensor, beam: int) -> Tensor:
    """Logits (B·beam, W) after the prefixes (B·beam, T), without any cache."""
    repeated = Memory(memory.values.repeat_interleave(beam, 0), memory.mask.repeat_interleave(beam, 0))
    return model.project(model.decode(prefixes, repeated)[:, -1])


@variants
@pytest.mark.parametrize("beam", [1, 3])
def test_steps_equal_decoding_anew(changes: dict[str, Any], beam: int) -> None:
    model = make(**changes).eval()
    random = torch.Generator().manual_seed(3)
    with torch.inference_mode():
        memory = model.encode(sentences(7, 1, 4))
        state = model.start(memory, beam)
        prefixes = torch.full((3 * beam, 1), BOS)
        for length in range(1, 20):  # the cache grows on the way
            logits = model.step(prefixes[:, -1], state)
            assert state.length == length
            assert_close(logits, decode_anew(model, memory, prefixes, beam))
            prefixes = torch.cat((prefixes, torch.randint(BOS, W, (3 * beam, 1), generator=random)), dim=1)


@variants
def test_steps_equal_decoding_anew_after_reordering_and_leaving(changes: dict[str, Any]) -> None:
    model, beam = make(**changes).eval(), 3
    random = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        memory = model.encode(sentences(7, 2, 4, 5))
        state = model.start(memory, beam)
        prefixes = torch.full((4 * beam, 1), BOS)
        for remain in ([0, 1, 2, 3], [0, 1, 2, 3], [0, 3, 2], [0, 1, 2], [2, 0], [1], [0]):
            model.step(prefixes[:, -1], state)
            sentences_left = torch.tensor(remain)
            origins = (sentences_left * beam).repeat_interleave(beam)
            origins += torch.randint(beam, (len(remain) * beam,), generator=random)
            state.reorder(origins)
            memory = Memory(memory.values[sentences_left], memory.mask[sentences_left])
            new = torch.randint(BOS, W, (len(remain) * beam, 1), generator=random)
            prefixes = torch.cat((prefixes[origins], new), dim=1)
        assert_close(model.step(prefixes[:, -1], state), decode_anew(model, memory, prefixes, beam))


def test_the_source_is_not_copied_for_each_hypothesis() -> None:
    model = make().eval()
    memory = model.encode(sentences(7, 4))
    state = model.start(memory, beam=5)
    model.step(torch.full((10,), BOS), state)
    for layer in state.layers:
        assert layer.memory_keys.size(0) == layer.memory_values.size(0) == 2
        assert layer.keys.size(0) == 10


def test_two_states_of_one_memory_do_not_meet() -> None:
    model = make().eval()
    memory = model.encode(sentences(5))
    first, second = model.start(memory, 1), model.start(memory, 1)
    expected = model.step(torch.tensor([BOS]), first)
    model.step(torch.tensor([7]), first)
    assert torch.equal(model.step(torch.tensor([BOS]), second), expected)

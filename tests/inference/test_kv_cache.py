"""The cached step: the same as decoding everything anew, however rows are reordered and sentences leave."""

from typing import Any

import torch
from prefix_models import with_lengths
from small_transformers import W, make, sentences, variants
from torch import Tensor
from torch.testing import assert_close

from nmtkit.inference.torch_transformer import TorchTransformer
from nmtkit.model.transformer import Memory
from nmtkit.text.vocabulary import BOS


def decode_anew(model: TorchTransformer, memory: Memory, prefixes: Tensor, sentences: Tensor) -> Tensor:
    """Log-probabilities (R, W) after the prefixes (R, T) of outputs for these sentences (R,), without any cache."""
    repeated = Memory(memory.values[sentences], memory.mask[sentences])
    return model.model.project(model.model.decode(prefixes, repeated)[:, -1]).log_softmax(-1, torch.float32)


@variants
def test_cached_steps_equal_decoding_from_scratch_after_any_reordering(changes: dict[str, Any]) -> None:
    model = TorchTransformer(make(**changes).eval())
    random = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        memory = model.encode(*with_lengths(sentences(7, 2, 4, 5)))
        state = model.start(memory)
        owners = torch.arange(4)
        prefixes = torch.full((4, 1), BOS)
        for counts in (
            [3, 3, 3, 3],
            [3, 3, 3, 3],
            [2, 3, 1, 3],
            [2, 0, 1, 3],
            [0, 0, 4, 1],
            [0, 0, 2, 2],
            [0, 0, 0, 1],
        ):
            log_probs = model.step(prefixes[:, -1], state)
            assert_close(log_probs, decode_anew(model, memory, prefixes, owners))
            origins = torch.cat([drawn((owners == n).nonzero()[:, 0], counts[n], random) for n in range(4)])
            state.reorder(origins)
            owners = owners[origins]
            new = torch.randint(BOS, W, (origins.numel(), 1), generator=random)
            prefixes = torch.cat((prefixes[origins], new), dim=1)
        assert_close(model.step(prefixes[:, -1], state), decode_anew(model, memory, prefixes, owners))


def test_reordering_a_long_output_at_any_step_equals_decoding_from_scratch() -> None:
    model = TorchTransformer(make().eval())
    random = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        memory = model.encode(*with_lengths(sentences(7, 2)))
        state = model.start(memory)
        prefixes = torch.full((2, 1), BOS)
        for length in range(1, 40):  # where the caches grow, some have just been moved and others not
            log_probs = model.step(prefixes[:, -1], state)
            owners = torch.arange(2).repeat_interleave(len(log_probs) // 2)
            assert_close(log_probs, decode_anew(model, memory, prefixes, owners))
            origins = torch.arange(len(log_probs))
            if length in (1, 3, 16, 17, 20, 36):
                own = drawn(torch.arange(len(log_probs) // 2), 3, random)
                origins = torch.cat([own, own + len(log_probs) // 2])
            state.reorder(origins)
            new = torch.randint(BOS, W, (origins.numel(), 1), generator=random)
            prefixes = torch.cat((prefixes[origins], new), dim=1)


def drawn(rows: Tensor, count: int, random: torch.Generator) -> Tensor:
    """`count` of the rows, some of them more than once."""
    return rows[torch.randint(max(1, rows.numel()), (count,), generator=random)]


def test_two_states_of_one_memory_are_independent() -> None:
    model = TorchTransformer(make().eval())
    memory = model.encode(*with_lengths(sentences(5)))
    first, second = model.start(memory), model.start(memory)
    expected = model.step(torch.tensor([BOS]), first)
    model.step(torch.tensor([7]), first)
    assert torch.equal(model.step(torch.tensor([BOS]), second), expected)

"""The memory of a search, estimated before it begins. Linux overcommits memory and kills the process that uses it, so
an error of the allocator would come too late.

Letters: P places of a sentence, W vocabulary, c candidates of a hypothesis, T tokens of an output.
"""

from collections.abc import Sequence

import torch

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.rules import Constraints
from nmtkit.inference.protocol import InferenceModel
from nmtkit.model.memory import free_memory

_EXPECTED = 50  # tokens that outputs may have beyond their source: few reach a higher --max-len-b
# Bytes, from the tensors that are alive together:
_LOG_PROBS = 20  # for each of P·W: log-probabilities, and copies where a token is forced
_DRAWS = 48  # for each of P·W: shares in fp32, sorted, and their sums in fp64
_CANDIDATE = 28  # for each of P·c: log-probability, token, total, and a copy
_HISTORY = 136  # for each of P·T: tokens and log-probabilities as tensors, two copies, and as lists

_admitted: dict[torch.device, int] = {}  # bytes of the largest search so far; allocators keep what it has used


def places_of(config: SearchConfig, constraints: Sequence[Constraints] = ()) -> int:
    """Most hypotheses of a sentence at a time: with terms, a beam for each number of their tokens."""
    banks = 1 + max((sum(map(len, constraint.terms)) for constraint in constraints), default=0)
    return config.nbest if config.sampling else config.beam * banks


def search_bytes(
    model: InferenceModel, config: SearchConfig, source_tokens: int, constraints: Sequence[Constraints] = ()
) -> int:
    """Bytes that the search takes for one sentence of `source_tokens`, EOS counted, with an output of usual length.

    It is an upper bound as long as no output exceeds its source by more than 50 tokens.
    """
    places, vocabulary = places_of(config, constraints), model.vocabulary_size
    demanded = max((len(constraint.prefix) + sum(map(len, constraint.terms)) for constraint in constraints), default=0)
    limit = max(int(config.max_len_a * source_tokens + config.max_len_b), demanded)
    tokens = min(limit, max(source_tokens + _EXPECTED, config.min_len, demanded)) + 1
    each_log_prob = (_DRAWS if config.sampling else _LOG_PROBS) + model.step_bytes
    candidates = 1 if config.sampling else min(places + 1, vocabulary)
    compared = places * candidates * (places // config.diverse_groups) if config.diverse_groups > 1 else 0
    drawn = 16 * (limit + 1) * places if config.sampling else 0  # random numbers, and a copy
    return (
        places * vocabulary * each_log_prob
        + places * candidates * _CANDIDATE
        + places * (tokens * _HISTORY + 2 * model.state_bytes(tokens))  # a state, and what it is reordered into
        + compared
        + drawn
    )


def missing_memory(size: int, device: torch.device, processes: int = 1) -> int | None:
    """The free bytes if they are fewer than `size`, or None if a search of that size can begin.

    Main memory is shared by `processes`. A search no larger than an earlier one may always begin.
    """
    if size <= _admitted.get(device, 0):
        return None
    free = int(free_memory(device))
    free = free + _unused(device) if device.type == "cuda" else free // processes
    if size > free:
        return free
    _admitted[device] = size
    return None


def _unused(device: torch.device) -> int:
    """Bytes of a GPU that torch has reserved and does not use."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)

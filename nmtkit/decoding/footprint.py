"""Estimates the memory of a search before it begins: Linux overcommits memory and kills the process that uses it.

Letters: P slots of a sentence, W vocabulary, c candidates of a hypothesis, T tokens of an output.
"""

from collections.abc import Sequence

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.rules import Constraints, term_length
from nmtkit.inference.protocol import InferenceModel
from nmtkit.machine.device import is_on_gpu
from nmtkit.machine.memory import free_memory, unused_memory

_EXPECTED = 50  # tokens of an output beyond those of its source: few outputs reach a higher --max-len-b
# Bytes of the tensors that are alive at the same time:
_LOG_PROBS = 20  # for each of P·W: log-probabilities, and copies where a token is forced
_DRAWS = 48  # for each of P·W: probabilities in fp32, sorted, and their sums in fp64
_CANDIDATE = 28  # for each of P·c: log-probability, token, total, and a copy
_HISTORY = 136  # for each of P·T: tokens and log-probabilities as tensors, two copies, and as lists

_admitted: dict[str, int] = {}  # bytes of the largest search so far: allocators keep them


def search_bytes(
    model: InferenceModel, config: SearchConfig, source_tokens: int, constraints: Sequence[Constraints] = ()
) -> int:
    """Estimate the bytes that the search for one sentence of `source_tokens`, including EOS, needs.

    This is an upper bound, unless an output exceeds its source by more than 50 tokens.
    """
    vocabulary = model.vocabulary_size
    banks = 1 + max((sum(map(term_length, constraint.terms)) for constraint in constraints), default=0)
    slots = config.nbest if config.sampling else config.beam * banks
    required = max((constraint.required_tokens for constraint in constraints), default=0)
    limit = config.length_limit(source_tokens, required)
    tokens = min(limit, max(source_tokens + _EXPECTED, config.min_len, required)) + 1
    each_log_prob = (_DRAWS if config.sampling else _LOG_PROBS) + model.step_bytes
    candidates = 1 if config.sampling else min(slots + 1, vocabulary)
    compared = slots * candidates * (slots // config.diverse_groups) if config.diverse_groups > 1 else 0
    drawn = 16 * (limit + 1) * slots if config.sampling else 0  # random numbers, and a copy
    return (
        slots * vocabulary * each_log_prob
        + slots * candidates * _CANDIDATE
        + slots * (tokens * _HISTORY + 2 * model.state_bytes(tokens))  # a state, and its reordered copy
        + compared
        + drawn
    )


def missing_memory(size: int, device: str, processes: int = 1) -> int | None:
    """Return the free memory in bytes if it is less than `size`; None if a search of that size can begin.

    `processes` share the main memory. A search that is not larger than an earlier one can always begin.
    """
    if size <= _admitted.get(device, 0):
        return None
    free = int(free_memory(device))
    free = free + unused_memory(device) if is_on_gpu(device) else free // processes
    if size > free:
        return free
    _admitted[device] = size
    return None

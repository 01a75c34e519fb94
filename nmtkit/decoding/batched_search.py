"""Searches sentences in batches of similar lengths, and returns the results in the order of the sentences."""

from collections.abc import Callable, Iterator, Sequence

from nmtkit.decoding.engine import Engine, SearchBatch, Task
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.tasks import Sentence

Advance = Callable[[int], object]  #: called with the number of lines that have just been translated


def search_in_batches(
    engine: Engine,
    sentences: Sequence[Sentence],
    done: int,
    make_batch: Callable[[list[Task]], SearchBatch],
    max_tokens: int,
    advance: Advance,
) -> Iterator[list[Hypothesis]]:
    """Yield the hypotheses of each task of the sentences, in order, except for the first `done` sentences.

    `make_batch` creates a batch of at most `max_tokens` source tokens from tasks, see `batches_by_tokens`. Skipped
    sentences in a batch with others are still searched, because they may change the rounding of the others. Required
    terms and the attention make a whole batch slower, so tasks that need them form separate batches.
    """
    tasks = [task for sentence in sentences for task in sentence.tasks]
    lengths = [max(len(task.source) - 1, len(task.target or ())) for task in tasks]
    first = sum(len(sentence.tasks) for sentence in sentences[:done])
    ends_line = [task is sentence.tasks[-1] for sentence in sentences for task in sentence.tasks]
    kinds = [(bool(task.constraints.terms), task.attends) for task in tasks]
    numbers = [
        batch
        for kind in sorted(set(kinds))
        for batch in batches_by_tokens([n * (own == kind) for n, own in zip(lengths, kinds, strict=True)], max_tokens)
        if max(batch) >= first
    ]
    advance(sum(not sentence.tasks for sentence in sentences[done:]))
    results = engine(make_batch([tasks[number] for number in batch]) for batch in numbers)
    waiting: dict[int, list[Hypothesis]] = {}
    due = first
    for batch, found in zip(numbers, results, strict=True):
        advance(sum(ends_line[number] for number in batch if number >= first))
        waiting.update(zip(batch, found, strict=True))
        while due in waiting:
            yield waiting.pop(due)
            due += 1


def batches_by_tokens(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of similar lengths, longest first, as indices into `lengths`. Sentences of length 0 are omitted.

    `lengths` are in tokens without EOS. The longest sentence of a batch with its EOS, times the number of sentences, is
    at most `max_tokens`, unless the batch is a single sentence.
    """
    numbers = sorted((n for n, length in enumerate(lengths) if length), key=lambda n: lengths[n], reverse=True)
    start = 0
    while start < len(numbers):
        size = max(1, max_tokens // (lengths[numbers[start]] + 1))
        yield numbers[start : start + size]
        start += size

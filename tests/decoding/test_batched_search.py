"""Batches of sentences of similar lengths."""

from collections.abc import Iterable, Iterator

from nmtkit.decoding.batched_search import batches_by_tokens, search_in_batches
from nmtkit.decoding.config import SearchConfig, StreamConfig
from nmtkit.decoding.engine import SearchBatch, Task
from nmtkit.decoding.rules import Constraints
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.tasks import Sentence


def test_a_batch_fills_max_tokens_exactly_and_counts_eos() -> None:
    for max_tokens, sizes in ((20, [4]), (19, [3, 1]), (15, [3, 1]), (4, [1] * 4)):
        assert [len(batch) for batch in batches_by_tokens([4] * 4, max_tokens)] == sizes


def test_batches_group_similar_lengths_within_their_budget() -> None:
    lengths = [3, 0, 9, 4, 4, 30, 0, 1, 9]
    batches = list(batches_by_tokens(lengths, max_tokens=20))
    assert batches == [[5], [2, 8], [3, 4, 0, 7]]
    assert all(len(batch) == 1 or len(batch) * (lengths[batch[0]] + 1) <= 20 for batch in batches)


def test_batches_and_buffer_are_larger_on_a_gpu_unless_they_are_given() -> None:
    assert StreamConfig().sizes_on("cpu") == (4096, 4096)
    assert StreamConfig().sizes_on("cuda") == (32_768, 32_768)
    assert StreamConfig(max_tokens=10, buffer=20).sizes_on("cuda") == (10, 20)


def test_tasks_that_need_terms_or_the_attention_form_batches_of_their_own() -> None:
    terms = Constraints(terms=(((9,),),))
    tasks = [Task([n, 3], terms if n % 3 == 0 else Constraints(), attends=n % 4 == 0) for n in range(4, 28)]
    searched: list[list[Task]] = []

    def engine(batches: Iterable[SearchBatch]) -> Iterator[list[list[Hypothesis]]]:
        for batch in batches:
            searched.append(batch.tasks)
            yield [[Hypothesis(task.source, 0.0, [])] for task in batch.tasks]

    sentences = [Sentence("", [], [task]) for task in tasks]
    found = search_in_batches(
        engine, sentences, 0, lambda some: SearchBatch(some, SearchConfig()), 1000, lambda count: None
    )
    assert [nbest[0].ids for nbest in found] == [task.source for task in tasks]
    assert sorted(map(len, searched)) == [2, 4, 6, 12]
    assert all(len({(task.constraints.terms, task.attends) for task in batch}) == 1 for batch in searched)

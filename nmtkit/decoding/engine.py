"""Runs the search in this process or in workers, each with its own copy of the model."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.console.log import logger
from nmtkit.data.padding import pad
from nmtkit.decoding.config import EngineConfig, SearchConfig
from nmtkit.decoding.footprint import missing_memory, search_bytes
from nmtkit.decoding.forced import score, with_attention
from nmtkit.decoding.repetition import repeated_ngram
from nmtkit.decoding.rules import NO_CONSTRAINTS, Constraints, rules_of
from nmtkit.decoding.search import Hypothesis, TextOf, search
from nmtkit.errors import NmtkitError, RunError, UserError
from nmtkit.inference.loading import load_models
from nmtkit.inference.protocol import InferenceModel
from nmtkit.inference.shortlist import Shortlist
from nmtkit.machine.device import inference_device, is_on_gpu
from nmtkit.machine.memory import is_out_of_memory, out_of_memory
from nmtkit.machine.threads import available_cores, set_threads
from nmtkit.machine.workers import WorkerPool
from nmtkit.storage.atomic import resolve
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.wording import counted, format_bytes


@dataclass(frozen=True)
class Task:
    """A sentence to search, with constraints on its output, or with a `target` to score."""

    source: list[int]  #: ids with EOS
    constraints: Constraints = NO_CONSTRAINTS
    target: list[int] | None = None  #: ids without EOS
    attends: bool = False  #: the attention is computed also if `SearchConfig.attends` is false
    start: tuple[int, ...] = ()  #: ids between BOS and the output, as many in each task of a batch


@dataclass(frozen=True)
class SearchBatch:
    """Sentences to search or to score together, and the banned sequences of ids."""

    tasks: list[Task]
    config: SearchConfig
    banned: tuple[tuple[int, ...], ...] = ()

    @property
    def sources(self) -> list[list[int]]:
        """The source of each task."""
        return [task.source for task in self.tasks]

    @property
    def starts(self) -> list[tuple[int, ...]]:
        """The start of each task."""
        return [task.start for task in self.tasks]

    @property
    def rules(self) -> list[str]:
        """The names of the options that forbid tokens."""
        search = self.config
        values = {
            "--min-len": search.min_len,
            "--no-repeat-ngram": search.no_repeat_ngram,
            "--ban": set(self.banned) - {(UNK,)},
        }
        return [option for option, value in values.items() if value]


#: Searches batches. Yields the n best hypotheses of each sentence of a batch, in the order of the batches.
Engine = Callable[[Iterable[SearchBatch]], Iterator[list[list[Hypothesis]]]]


def load(checkpoints: Sequence[Checkpoint], engine: EngineConfig, weights: str = "auto") -> InferenceModel:
    """Load models with the options of `engine`, and set the number of threads of this process.

    Frees the memory of mapped weights, so later changes to the arrays of `checkpoints` are lost.
    Raises UserError like `load_models`, and if the shortlist cannot be read or belongs to different vocabularies.
    """
    set_threads(engine.threads)
    model = load_models(checkpoints, engine.device, engine.precision, weights)
    for release in filter(None, (checkpoint.release for checkpoint in checkpoints)):
        release()
    if engine.shortlist is not None:
        model.shortlist = Shortlist.read(engine.shortlist, checkpoints[0].source.vocab, checkpoints[0].target.vocab)
    return model


def search_batch(
    model: InferenceModel, batch: SearchBatch, text_of: TextOf, processes: int = 1
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each sentence, or the scored target of each task.

    The hypotheses of a sentence have distinct texts, which `text_of` decodes from ids. `processes` processes share the
    memory; a batch that does not fit is searched in halves. Raises UserError if memory is too small for one sentence,
    and RunError if the search of one sentence exhausts memory or the model gives no finite probabilities.
    """
    if _has_memory(model, batch, processes):
        try:
            return _search_or_score(model, batch, text_of)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if len(batch.tasks) == 1:
                tokens = counted(len(batch.tasks[0].source), "token")
                raise RunError(
                    f"{out_of_memory(model.device)} for one sentence of {tokens}: lower --max-source-tokens, or --beam "
                    "(in training --valid-beam)"
                ) from error
    _warn_of_halves()  # here the memory of the failed search has been freed
    half = len(batch.tasks) // 2
    halves = (replace(batch, tasks=batch.tasks[:half]), replace(batch, tasks=batch.tasks[half:]))
    return [found for part in halves for found in search_batch(model, part, text_of, processes)]


def check_memory(model: InferenceModel, config: SearchConfig, source_tokens: int = 1) -> None:
    """Raise UserError if the memory is too small to search one sentence of that many tokens."""
    _has_memory(model, SearchBatch([Task([EOS] * source_tokens)], config))


def _has_memory(model: InferenceModel, batch: SearchBatch, processes: int = 1) -> bool:
    """Whether the memory is enough to search a batch. Raises UserError if it is too small for one sentence."""
    if any(task.target is not None for task in batch.tasks):  # scoring does not search
        return True
    tokens, constraints = max(map(len, batch.sources)), [task.constraints for task in batch.tasks]
    size = len(batch.tasks) * search_bytes(model, batch.config, tokens, constraints)
    free = missing_memory(size, model.device, processes)
    if free is not None and len(batch.tasks) == 1:
        sampling, nbest, beam = batch.config.sampling, batch.config.nbest, batch.config.beam
        option = f"--sampling --nbest {nbest}" if sampling else f"--beam {beam}"
        lower = "--nbest" if sampling else "--beam (in training --valid-beam)"
        raise UserError(
            f"{option} needs about {format_bytes(size)} of memory for one sentence of {counted(tokens, 'token')}, but "
            f"{format_bytes(free)} is free: lower {lower} or --max-source-tokens"
        )
    return free is None


@cache
def _warn_of_halves() -> None:
    logger.warning("low on memory: splitting batches where needed; a lower --max-tokens is faster")


def _search_or_score(model: InferenceModel, batch: SearchBatch, text_of: TextOf) -> list[list[Hypothesis]]:
    targets = [task.target for task in batch.tasks if task.target is not None]
    if targets and model.shortlist is not None:
        raise UserError("a given translation may contain any token: score it without a shortlist")
    if targets:
        found = [[one] for one in score(model, batch.sources, targets, batch.config, batch.starts)]
    else:
        found = _search(model, batch, text_of)
        if batch.config.repetition_guard and not batch.config.sampling:
            _replace_repetitions(model, batch, text_of, found)
    for task, nbest in zip(batch.tasks, found, strict=True):
        if not nbest and batch.rules:
            raise UserError(
                f"no output of a sentence of {counted(len(task.source), 'token')} satisfies "
                f"{' and '.join(batch.rules)}: relax them"
            )
        if not nbest or not math.isfinite(nbest[0].score):
            raise RunError(
                "the probabilities of the model are not finite: its weights are damaged, or --precision is too "
                "narrow for them (try fp32)"
            )
    if not _needs_attention(model, batch) or found[0][0].attention is not None:  # the search has recorded it
        return found
    return with_attention(model, batch.sources, found, batch.config.alignment_layer, batch.starts)


def _needs_attention(model: InferenceModel, batch: SearchBatch) -> bool:
    return batch.config.attends or (model.attention_layers > 0 and any(task.attends for task in batch.tasks))


def _search(model: InferenceModel, batch: SearchBatch, text_of: TextOf) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each sentence. If its terms are impossible, it is searched again without them."""
    constraints = [task.constraints for task in batch.tasks]
    src, lengths = pad(batch.sources)
    layer = model.alignment_layer(batch.config.alignment_layer) if _needs_attention(model, batch) else None
    if (shortlist := model.shortlist) is not None:
        lists = [shortlist.tokens(task.source, task.constraints.tokens) for task in batch.tasks]
        restricted = model.restricted_to(lists)
        found = search(restricted, src, lengths, batch.config, constraints, batch.banned, text_of, layer, batch.starts)
    elif can_be_fixed(model.device, batch.config, constraints, batch.banned):
        from nmtkit.decoding.fixed_search import fixed_search
        from nmtkit.inference.torch_backend import fixed_model

        found = fixed_search(fixed_model(model), src, lengths, batch.config, batch.banned, batch.starts)
    else:
        found = search(model, src, lengths, batch.config, constraints, batch.banned, text_of, layer, batch.starts)
    lost = [number for number, nbest in enumerate(found) if not nbest and constraints[number].terms]
    if lost:
        tasks = [replace(batch.tasks[number], constraints=replace(constraints[number], terms=())) for number in lost]
        for number, nbest in zip(lost, _search(model, replace(batch, tasks=tasks), text_of), strict=True):
            found[number] = nbest
    return found


def _replace_repetitions(
    model: InferenceModel, batch: SearchBatch, text_of: TextOf, found: list[list[Hypothesis]]
) -> None:
    """Repeat the search without repetitions for sentences whose best output repeats itself; keep better outputs."""
    looping: dict[int, list[int]] = {}
    for number, (task, nbest) in enumerate(zip(batch.tasks, found, strict=True)):
        if nbest and (size := repeated_ngram(task.source[:-1], nbest[0].ids)):
            looping.setdefault(size, []).append(number)
    for size, numbers in looping.items():
        config = replace(batch.config, no_repeat_ngram=size)
        tasks = [batch.tasks[number] for number in numbers]
        again = _search(model, replace(batch, tasks=tasks, config=config), text_of)
        for number, task, nbest in zip(numbers, tasks, again, strict=True):
            if nbest and not repeated_ngram(task.source[:-1], nbest[0].ids):
                found[number] = nbest


def can_be_fixed(
    device: str, config: SearchConfig, constraints: Sequence[Constraints], banned: Sequence[tuple[int, ...]]
) -> bool:
    """Whether `fixed_search` supports the device and options: a GPU, one best output, the same rules for all rows."""
    is_plain = config.nbest == 1 and not config.sampling and config.diverse_groups == 1
    is_plain &= not any(constraint.prefix or constraint.terms for constraint in constraints)
    return is_on_gpu(device) and is_plain and not rules_of(config, banned)[1]


def local_engine(model: InferenceModel, text_of: TextOf) -> Engine:
    """Create an engine that searches in this process, one batch at a time. Several threads may use it.

    The hypotheses of an n-best list have distinct texts, which `text_of` decodes from their ids.
    """
    turn = Lock()

    def search_in_turn(batches: Iterable[SearchBatch]) -> Iterator[list[list[Hypothesis]]]:
        for batch in batches:
            with turn:
                found = search_batch(model, batch, text_of)
            yield found

    return search_in_turn


class WorkersNotStartedError(RunError):
    """The workers cannot load the model because its files are missing or have been replaced."""


class Workers:
    """Searches in `engine.workers` processes, each with its own copy of the model.

    The processes start and load the model with the first batch. They end when this object is released, if one of them
    dies, or if Ctrl-C interrupts communication with them; the next call then starts new ones. Calls from several
    threads can share the workers: each call holds them only while it waits for its next result.
    """

    def __init__(
        self, paths: Sequence[Path], engine: EngineConfig, weights: str, checksums: Sequence[str | None]
    ) -> None:
        share = max(1, available_cores() // engine.workers)
        shortlist = None if engine.shortlist is None else resolve(engine.shortlist)
        engine = replace(engine, threads=engine.threads or share, shortlist=shortlist)
        self._search = _WorkerSearch(tuple(resolve(path) for path in paths), engine, weights, tuple(checksums))
        self._pool: WorkerPool | None = None
        self._turn = Lock()

    def __call__(self, batches: Iterable[SearchBatch]) -> Iterator[list[list[Hypothesis]]]:
        """Search batches, and yield their results in order, see `Engine`.

        Raises RunError if a worker dies; WorkersNotStartedError if a file is missing or has been replaced when a worker
        loads it.
        """
        results = self._search_all(batches)
        while True:
            with self._turn:  # not while the caller uses a result
                found = next(results, None)
            if found is None:
                return
            yield found

    def _search_all(self, batches: Iterable[SearchBatch]) -> Iterator[list[list[Hypothesis]]]:
        if self._pool is not None and not self._pool.is_usable:  # perhaps a worker died since the last call
            pool, self._pool = self._pool, None
            pool.__exit__()  # Ctrl-C may interrupt it
        if self._pool is None:
            pool = WorkerPool(self._search.engine.workers)
            try:
                pool.run_in_each(self._search, None)  # all load the model
            except BaseException as error:
                pool.__exit__()
                if isinstance(error, NmtkitError):
                    raise WorkersNotStartedError(str(error)) from error
                raise
            self._pool = pool
        yield from self._pool.map(self._search, batches)


@dataclass(frozen=True)
class _WorkerSearch:
    """The search of a worker, which loads the model with the first call and keeps it."""

    paths: tuple[Path, ...]
    engine: EngineConfig
    weights: str
    checksums: tuple[str | None, ...]

    def __call__(self, batch: SearchBatch | None) -> list[list[Hypothesis]]:
        model, text_of = _worker_model(self)
        return [] if batch is None else search_batch(model, batch, text_of, self.engine.workers)


@cache
def _worker_model(search: _WorkerSearch) -> tuple[InferenceModel, TextOf]:
    engine = search.engine
    if inference_device(engine.device) == "cuda":  # without a number: the workers share all GPUs
        import multiprocessing

        import torch

        number = int(multiprocessing.current_process().name.rpartition(" ")[2])
        engine = replace(engine, device=f"cuda:{number % torch.cuda.device_count()}")
    checkpoints = [load_checkpoint(path) for path in search.paths]
    model = load(checkpoints, engine, search.weights)
    for path, checkpoint, expected in zip(search.paths, checkpoints, search.checksums, strict=True):
        if checkpoint.checksum != expected:
            raise RunError(f"{path} has been replaced since this command loaded it: start again")
    return model, checkpoints[0].target.decode

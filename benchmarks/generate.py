"""nmtkit beside CTranslate2 on the same checkpoint: sentences per second, taking turns on the same cores.

    pip install ctranslate2
    python benchmarks/generate.py averaged.pt test.en --beam 4 --beam 1
    python benchmarks/generate.py averaged.pt test.en --one-by-one 100

The checkpoint is converted to CTranslate2's format, and the greedy translations of both are compared first. Then each
engine, in every number format and as one process of many threads or many of one thread, waits in a process of its own
and translates the whole text in its turn; loading and tokenizing are not counted, and nmtkit's turns include the
detokenizing. Each engine has the best of the batch sizes for itself. The table has the median of the turns by the
clock, and by the processor time of all its processes, which says more on a machine that does other things as well.
Linux only: processor times are read from /proc. On a GPU (--device cuda) clock times are the ones to read.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import click
import ctranslate2

from nmtkit import Translator
from nmtkit.checkpoint import load_checkpoint
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.decoding.config import SearchConfig, StreamConfig
from nmtkit.text import read_lines

TICK = os.sysconf("SC_CLK_TCK")
OURS, THEIRS = "nmtkit", "CTranslate2"


@dataclass(frozen=True)
class Setting:
    """One way to translate the text."""

    system: str
    precision: str  # by the system's own name for it
    workers: int
    threads: int  # of each worker
    beam: int

    def __str__(self) -> str:
        return f"{self.system} {self.precision}, {self.workers} × {self.threads}, beam {self.beam}"


@dataclass(frozen=True)
class Task:
    """What all engines do."""

    checkpoint: Path
    converted: Path
    sentences: list[list[str]]  # pieces
    length: int | None  # of the output, where it is forced
    one_by_one: bool
    device: str


@dataclass(frozen=True)
class Turn:
    """What one turn took: seconds of the clock and of all processors. How many tokens it gave, </s> counted."""

    wall: float
    cpu: float
    tokens: int


Translate = Callable[[int], list[list[str]]]  # of a batch size in tokens: the output's pieces


def ours(task: Task, setting: Setting) -> Translate:
    """nmtkit, by what `Translator` offers to everyone."""
    translator = Translator.from_checkpoint(
        task.checkpoint,
        device=task.device,
        precision=setting.precision,
        threads=setting.threads,
        workers=setting.workers,
    )
    # its last step, for </s>, is one that CTranslate2 does not take where it is cut off
    lengths = {} if task.length is None else {"max_len_a": 0.0, "max_len_b": task.length - 1}
    search = SearchConfig(beam=setting.beam, **lengths)  # type: ignore[arg-type]
    ids = [translator.source.vocab.to_ids(pieces) for pieces in task.sentences]

    def translate(batch: int) -> list[list[str]]:
        buffer = 1 if task.one_by_one else len(ids)
        found = translator.stream_encoded(ids, search, StreamConfig(max_tokens=batch, buffer=buffer))
        return [list(line.candidates[0].tokens[:-1]) for line in found]

    return translate


def theirs(task: Task, setting: Setting) -> Translate:
    """CTranslate2, with the same limits and the same length penalty."""
    engine = ctranslate2.Translator(
        str(task.converted),
        device=task.device,
        compute_type=setting.precision,
        inter_threads=setting.workers,
        intra_threads=setting.threads,
    )
    length = 250 if task.length is None else task.length
    options = {
        "beam_size": setting.beam,
        "length_penalty": 0.6,
        "max_decoding_length": length,
        "min_decoding_length": task.length or 1,
    }

    def translate(batch: int) -> list[list[str]]:
        if task.one_by_one:
            results = [engine.translate_batch([pieces], **options)[0] for pieces in task.sentences]
        else:
            results = engine.translate_batch(task.sentences, max_batch_size=batch, batch_type="tokens", **options)
        return [result.hypotheses[0] for result in results]

    return translate


def serve(connection: Connection, task: Task, setting: Setting) -> None:
    """The life of an engine's process: load, then translate with each batch size that comes."""
    translate = (ours if setting.system == OURS else theirs)(task, setting)
    connection.send(None)
    while batch := connection.recv():
        wall, cpu = time.perf_counter(), processor_time()
        output = translate(batch)
        tokens = sum(task.length or len(pieces) + 1 for pieces in output)
        connection.send((Turn(time.perf_counter() - wall, processor_time() - cpu, tokens), output))


def processor_time() -> float:
    """Seconds that this process and its living workers have had."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in (own, *children))
    return sum(int(times[11]) + int(times[12]) for times in fields) / TICK


class Contestant:
    """An engine in a process of its own."""

    def __init__(self, task: Task, setting: Setting) -> None:
        self.setting, self.turns = setting, list[Turn]()
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, task, setting))
        self._process.start()
        other.close()
        self._connection.recv()

    def turn(self, batch: int) -> tuple[Turn, list[list[str]]]:
        self._connection.send(batch)
        result: tuple[Turn, list[list[str]]] = self._connection.recv()
        return result

    def choose_batch(self, sizes: tuple[int, ...]) -> None:
        """Keep the batch size with which a first turn was the fastest."""
        self.batch = min(sizes, key=lambda size: self.turn(size)[0].wall)

    def close(self) -> None:
        self._connection.send(0)
        self._process.join()


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--beam", "beams", multiple=True, default=(4, 1), help="Widths to compare.")
@click.option("--cores", default=2, help="One process of so many threads, or so many of one thread.")
@click.option("--turns", default=5)
@click.option("--lines", type=int, help="Take the first lines of the text only.")
@click.option("--batch", "batches", multiple=True, default=(512, 1024, 2048, 4096), help="Batch sizes to choose from.")
@click.option("--length", type=int, help="Force the length of the output (for a model that has learned nothing).")
@click.option("--one-by-one", is_flag=True, help="Each sentence by itself: the time to wait for one.")
@click.option("--device", default="cpu")
def main(
    checkpoint: Path,
    text: Path,
    beams: tuple[int, ...],
    cores: int,
    turns: int,
    lines: int | None,
    batches: tuple[int, ...],
    length: int | None,
    one_by_one: bool,
    device: str,
) -> None:
    """Translate TEXT with CHECKPOINT by nmtkit and by CTranslate2 in turn."""
    loaded = load_checkpoint(checkpoint)
    sentences = [
        loaded.source.vocab.to_pieces(ids) for ids in loaded.source.encode(list(read_lines(text))[:lines]) if ids
    ]
    with tempfile.TemporaryDirectory() as folder:
        to_ctranslate2(loaded, Path(folder) / "converted")
        task = Task(checkpoint, Path(folder) / "converted", sentences, length, one_by_one, device)
        compare_outputs(task)
        for beam in beams:
            contest(task, settings(beam, cores, device, one_by_one), turns, batches)


def settings(beam: int, cores: int, device: str, one_by_one: bool) -> list[Setting]:
    """All ways to be compared: formats and divisions of the cores."""
    divisions = [(1, cores)] if one_by_one or device != "cpu" else [(1, cores), (cores, 1)]
    formats = {OURS: ["fp32", "int8"], THEIRS: ["float32", "int8"]}
    if device != "cpu":
        formats = {OURS: ["bf16"], THEIRS: ["bfloat16"]}
    return [
        Setting(system, precision, workers, threads, beam)
        for system, names in formats.items()
        for precision in names
        for workers, threads in divisions
    ]


def compare_outputs(task: Task) -> None:
    """Print how many greedy translations are the same in single precision."""
    contestants = [Contestant(task, Setting(*names, 1, 1, 1)) for names in ((OURS, "fp32"), (THEIRS, "float32"))]
    outputs = [contestant.turn(1024)[1] for contestant in contestants]
    for contestant in contestants:
        contestant.close()
    end = task.length - 1 if task.length else None  # where nmtkit has </s>
    same = sum(a == b[:end] for a, b in zip(*outputs, strict=True))
    print(f"greedy, fp32: {same} of {len(task.sentences)} translations are the same", flush=True)


def contest(task: Task, ways: list[Setting], turns: int, batches: tuple[int, ...]) -> None:
    """Let all take turns, and print the medians."""
    contestants = [Contestant(task, way) for way in ways]
    for contestant in contestants:
        contestant.choose_batch(batches[:1] if task.one_by_one else batches)
    for _ in range(turns):
        for contestant in contestants:
            contestant.turns.append(contestant.turn(contestant.batch)[0])
    for contestant in contestants:
        contestant.close()
        wall = statistics.median(turn.wall for turn in contestant.turns)
        cpu = statistics.median(turn.cpu for turn in contestant.turns)
        tokens = contestant.turns[0].tokens
        count = len(task.sentences)
        rates = f"{count / wall:.1f} sentences/s, {tokens / wall:.0f} tokens/s; by processor time {count / cpu:.1f}"
        print(f"{contestant.setting}, batch {contestant.batch}: {rates} sentences/s", flush=True)


if __name__ == "__main__":
    main()

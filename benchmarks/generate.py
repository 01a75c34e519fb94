"""Benchmark: nmtkit vs. CTranslate2 on the same checkpoint and the same cores.

    pip install ctranslate2
    python benchmarks/generate.py averaged.pt test.en --beam 4 --beam 1
    python benchmarks/generate.py averaged.pt test.en --one-by-one --lines 100

The benchmark converts the checkpoint to CTranslate2's format, and first compares the greedy translations of both
engines. Then it measures each in every precision, as one process with many threads and as many processes with one
thread. Every engine runs in its own process, and the engines translate the whole text alternately, each with its own
fastest batch size. Times are from text to text, without loading. CTranslate2 uses nmtkit's tokenizers.

Each result is the median of the turns, by wall time and by the CPU time of all processes of the engine. CPU time is
more reliable on a busy machine. Linux only: CPU times are read from /proc. On a GPU (--device cuda) use wall times.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import click
import ctranslate2

from nmtkit import Translator
from nmtkit.checkpoint import load_checkpoint
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.decoding.config import SearchConfig, StreamConfig
from nmtkit.text.reading import read_lines

TICK = os.sysconf("SC_CLK_TCK")
NMTKIT, CTRANSLATE2 = "nmtkit", "CTranslate2"


@dataclass(frozen=True)
class Setting:
    """An engine and its configuration."""

    system: str
    precision: str  # in the system's own terms
    workers: int
    threads: int  # of each worker
    beam: int

    def __str__(self) -> str:
        return f"{self.system} {self.precision}, {self.workers} × {self.threads}, beam {self.beam}"


@dataclass(frozen=True)
class Task:
    """The input and the limits that all engines share."""

    checkpoint: Path
    folder: Path  # of the converted model
    lines: list[str]
    length: int | None  # forced length of the output
    one_by_one: bool
    device: str


@dataclass(frozen=True)
class Turn:
    """One translation of the text: wall and CPU seconds, and the number of output tokens with </s>."""

    wall: float
    cpu: float
    tokens: int


Translate = Callable[[int], list[list[str]]]  # from a batch size in tokens to the pieces of the outputs


def load_nmtkit(task: Task, setting: Setting) -> Translate:
    """Load nmtkit through the public API, `Translator`."""
    translator = Translator.from_checkpoint(
        task.checkpoint,
        device=task.device,
        precision=setting.precision,
        threads=setting.threads,
        workers=setting.workers,
    )
    # nmtkit takes one more step, for </s>; CTranslate2 stops without it at the maximum length
    last = 0 if task.length is None else task.length - 1
    lengths = {"max_len_a": 0.0, "max_len_b": last, "min_len": last} if last else {}
    search = SearchConfig(beam=setting.beam, **lengths)  # type: ignore[arg-type]

    def translate(batch: int) -> list[list[str]]:
        buffer = 1 if task.one_by_one else len(task.lines)
        found = translator.stream(task.lines, search, StreamConfig(max_tokens=batch, buffer=buffer))
        return [list(line.candidates[0].tokens[:-1]) for line in found]

    return translate


def load_ctranslate2(task: Task, setting: Setting) -> Translate:
    """Load CTranslate2 with the same limits and the same length penalty."""
    engine = ctranslate2.Translator(
        str(task.folder),
        device=task.device,
        compute_type=setting.precision,
        inter_threads=setting.workers,
        intra_threads=setting.threads,
    )
    checkpoint = load_checkpoint(task.checkpoint)
    source, target = checkpoint.source, checkpoint.target
    length = 250 if task.length is None else task.length
    options = {
        "beam_size": setting.beam,
        "length_penalty": 0.6,
        "max_decoding_length": length,
        "min_decoding_length": task.length or 1,
    }

    def encode(lines: Sequence[str]) -> list[list[str]]:
        return [source.vocab.to_pieces(ids) for ids in source.encode(lines)]

    def translate(batch: int) -> list[list[str]]:
        if task.one_by_one:
            results = [engine.translate_batch(encode([line]), **options)[0] for line in task.lines]
        else:
            results = engine.translate_batch(encode(task.lines), max_batch_size=batch, batch_type="tokens", **options)
        outputs = [result.hypotheses[0] for result in results]
        for pieces in outputs:
            target.decode(target.vocab.to_ids(pieces))  # to text, as a user would
        return outputs

    return translate


LOADERS = {NMTKIT: load_nmtkit, CTRANSLATE2: load_ctranslate2}


def run_engine(connection: Connection, task: Task, setting: Setting) -> None:
    """Load an engine, then translate the text once for every batch size received; 0 ends the process."""
    translate = LOADERS[setting.system](task, setting)
    connection.send(None)
    while batch := connection.recv():
        wall, cpu = time.perf_counter(), processor_time()
        output = translate(batch)
        tokens = sum(task.length or len(pieces) + 1 for pieces in output)
        connection.send((Turn(time.perf_counter() - wall, processor_time() - cpu, tokens), output))


def processor_time() -> float:
    """CPU seconds of this process and its live workers."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in (own, *children))
    return sum(int(times[11]) + int(times[12]) for times in fields) / TICK


class EngineProcess:
    """An engine in its own process."""

    def __init__(self, task: Task, setting: Setting) -> None:
        self.setting, self.turns = setting, list[Turn]()
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=run_engine, args=(other, task, setting))
        self._process.start()
        other.close()
        self._connection.recv()

    def turn(self, batch: int) -> tuple[Turn, list[list[str]]]:
        self._connection.send(batch)
        result: tuple[Turn, list[list[str]]] = self._connection.recv()
        return result

    def choose_batch(self, sizes: tuple[int, ...]) -> None:
        """Choose the fastest batch size, measured by one turn each."""
        self.batch = min(sizes, key=lambda size: self.turn(size)[0].wall)

    def close(self) -> None:
        self._connection.send(0)
        self._process.join()


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--beam", "beams", multiple=True, default=(4, 1), help="Beam size; can be given several times.")
@click.option("--cores", default=2, help="Threads of one process, or processes of one thread each.")
@click.option("--turns", default=5)
@click.option("--lines", type=int, help="Use only the first lines of the text.")
@click.option("--batch", "batches", multiple=True, default=(512, 1024, 2048, 4096), help="Batch sizes to choose from.")
@click.option("--length", type=int, help="Force the output length, for an untrained model.")
@click.option("--one-by-one", is_flag=True, help="Translate sentence by sentence, to measure latency.")
@click.option("--one-process", is_flag=True, help="Do not measure several processes of one thread each.")
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
    one_process: bool,
    device: str,
) -> None:
    """Translate TEXT with CHECKPOINT, with each toolkit in turn."""
    loaded = load_checkpoint(checkpoint)
    texts = [line for line in list(read_lines(text))[:lines] if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        to_ctranslate2(loaded, Path(folder) / CTRANSLATE2)
        task = Task(checkpoint, Path(folder) / CTRANSLATE2, texts, length, one_by_one, device)
        compare_outputs(task)
        for beam in beams:
            compare_speed(task, settings(beam, cores, device, one_by_one or one_process), turns, batches)


def settings(beam: int, cores: int, device: str, one_process: bool) -> list[Setting]:
    """Every combination of system, precision and division of the cores into workers and threads."""
    divisions = [(1, cores)] if one_process or device != "cpu" else [(1, cores), (cores, 1)]
    formats = {NMTKIT: ["fp32", "int8"], CTRANSLATE2: ["float32", "int8"]}
    if device != "cpu":
        formats = {NMTKIT: ["bf16"], CTRANSLATE2: ["bfloat16"]}
    return [
        Setting(system, precision, workers, threads, beam)
        for system, names in formats.items()
        for precision in names
        for workers, threads in divisions
    ]


def compare_outputs(task: Task) -> None:
    """Print how many greedy translations are equal in fp32."""
    engines = [EngineProcess(task, Setting(*names, 1, 1, 1)) for names in ((NMTKIT, "fp32"), (CTRANSLATE2, "float32"))]
    outputs = [engine.turn(1024)[1] for engine in engines]
    for engine in engines:
        engine.close()
    end = task.length - 1 if task.length else None  # without the token that takes the place of </s> in nmtkit
    same = sum(a == b[:end] for a, b in zip(*outputs, strict=True))
    print(f"greedy, fp32: {same} of {len(task.lines)} translations are the same", flush=True)


def compare_speed(task: Task, settings: list[Setting], turns: int, batches: tuple[int, ...]) -> None:
    """Measure the engines in alternating turns and print the medians."""
    engines = [EngineProcess(task, setting) for setting in settings]
    for engine in engines:
        engine.choose_batch(batches[:1] if task.one_by_one else batches)
    for _ in range(turns):
        for engine in engines:
            engine.turns.append(engine.turn(engine.batch)[0])
    for engine in engines:
        engine.close()
        wall = statistics.median(turn.wall for turn in engine.turns)
        cpu = statistics.median(turn.cpu for turn in engine.turns)
        tokens = engine.turns[0].tokens
        count = len(task.lines)
        by_wall = f"{count / wall:.1f} sentences/s, {tokens / wall:.0f} tokens/s"
        by_cpu = f"{count / cpu:.1f} sentences/s, {tokens / cpu:.0f} tokens/s"
        print(f"{engine.setting}, batch {engine.batch}: {by_wall}; by CPU time {by_cpu}", flush=True)


if __name__ == "__main__":
    main()

"""Benchmark: nmt-preprocess vs. plain SentencePiece on the same cores, in sentence pairs per second and memory.

    python benchmarks/preprocess.py data/multi30k/train -s en -t de --pairs 1000000 --pairs 4000000

The corpus is repeated to each number of pairs. Repeated words favor nmt-preprocess, which encodes each distinct word
once: for a fair comparison give a text of at least that many pairs. Without --spm-model, a first run trains the
SentencePiece model. Then nmt-preprocess and SentencePiece encode the corpus alternately with that model, in the same
number of processes. For nmt-preprocess, the benchmark reports both the encoding and the whole command, with start-up,
checks of the text and checksums. The SentencePiece processes only call its encoder; their reading is not timed. The
best turn of each is compared, since other load can only slow a turn down. On a busy machine, compare CPU times.
"""

import itertools
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from sentencepiece import SentencePieceProcessor

from nmtkit.text.reading import find_side, read_raw_lines

COMMAND = Path(__file__).parent.parent / "bin" / "nmt-preprocess"
BATCH = 4096  # lines per call of the encoder


@click.command()
@click.argument("prefix")
@click.option("-s", "--source-lang", required=True)
@click.option("-t", "--target-lang", required=True)
@click.option("--pairs", multiple=True, default=(1_000_000,), help="Size of the corpus; can be given several times.")
@click.option("--vocab-size", default=8000)
@click.option("--spm-model", type=click.Path(exists=True, path_type=Path), help="Use this model instead of a new one.")
@click.option("--workers", default=2)
@click.option("--repeats", default=3, help="Turns of each.")
def main(
    prefix: str,
    source_lang: str,
    target_lang: str,
    pairs: tuple[int, ...],
    vocab_size: int,
    spm_model: Path | None,
    workers: int,
    repeats: int,
) -> None:
    """Compare nmt-preprocess with plain SentencePiece on the text PREFIX.SOURCE, PREFIX.TARGET."""
    sides = find_side(prefix, source_lang), find_side(prefix, target_lang)
    for count in pairs:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            texts = folder / f"text.{source_lang}", folder / f"text.{target_lang}"
            for side, text in zip(sides, texts, strict=True):
                repeat_text(side, count, text)
            options = ["-s", source_lang, "-t", target_lang, "--trainpref", folder / "text", "--workers", workers]
            if (model := spm_model) is None:
                preprocess([*options, "--destdir", folder / "first", "--vocab-size", vocab_size])
                model = folder / "first" / "spm.model"
            options += ["--destdir", folder / "again", "--spm-model", model]
            turns = [(encode(texts, model, workers), preprocess(options)) for _ in range(repeats)]
            compare(count, [bare for bare, _ in turns], [ours for _, ours in turns])


def compare(count: int, bare: Sequence["Cost"], ours: Sequence["Cost"]) -> None:
    """Print the costs of SentencePiece and of nmt-preprocess, and their ratios."""
    limit = report("SentencePiece", count, bare, "wall")
    for part, field in (("encoding", "encoding"), ("whole", "wall")):
        print(f"  {report(f'nmt-preprocess, {part}', count, ours, field) / limit:.2f} x SentencePiece", flush=True)
    ratio = min(turn.cpu for turn in bare) / min(turn.cpu for turn in ours)
    print(f"  {ratio:.2f} x SentencePiece by CPU time", flush=True)


def report(name: str, count: int, turns: Sequence["Cost"], field: str) -> float:
    """Print and return the pairs per second of the best turn. The CPU times are those of all turns."""
    rate = count / min(getattr(turn, field) for turn in turns)
    cpu = ", ".join(f"{turn.cpu:.1f}" for turn in turns)
    print(f"{count:,} pairs: {name}: {rate:,.0f} pairs/s; CPU seconds {cpu}", flush=True)
    return float(rate)


@dataclass(frozen=True)
class Cost:
    """Wall and CPU seconds; for nmt-preprocess also the seconds of its encoding."""

    wall: float
    cpu: float
    encoding: float = 0


def repeat_text(side: Path, count: int, result: Path) -> None:
    """Write `count` lines by repeating the lines of a text."""
    lines = [line + b"\n" for line in read_raw_lines(side)]
    with result.open("wb") as file:
        file.writelines(itertools.islice(itertools.cycle(lines), count))


def preprocess(options: Sequence[object]) -> Cost:
    """Run nmt-preprocess."""
    wall, cpu = time.perf_counter(), children_cpu()
    command = [sys.executable, str(COMMAND), "--log-format", "json", *map(str, options)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    times = {event["event"]: event["time"] for event in map(json.loads, done.stderr.splitlines())}
    encoding = times["encoded"] - times["vocabulary"]
    return Cost(time.perf_counter() - wall, children_cpu() - cpu, encoding)


def children_cpu() -> float:
    """CPU seconds of all finished child processes and their descendants."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def encode(texts: tuple[Path, Path], model: Path, processes: int) -> Cost:
    """The cost of encoding both texts in `processes` processes that share the lines."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        costs = pool.starmap(encode_share, [(texts, model, number, processes) for number in range(processes)])
    return Cost(max(cost.wall for cost in costs), sum(cost.cpu for cost in costs))


def encode_share(texts: tuple[Path, Path], model: Path, number: int, of: int) -> Cost:
    """Encode every `of`-th batch of lines, starting at batch `number`; return the cost of the encoder."""
    processor = SentencePieceProcessor(model_file=str(model))
    wall = cpu = 0.0
    for text in texts:
        with text.open(encoding="utf-8", newline="\n") as file:
            batches = iter(lambda: list(itertools.islice(file, BATCH)), [])
            for lines in itertools.islice(batches, number, None, of):
                wall_start, cpu_start = time.perf_counter(), time.process_time()
                processor.encode(lines, num_threads=1)
                wall += time.perf_counter() - wall_start
                cpu += time.process_time() - cpu_start
    return Cost(wall, cpu)


if __name__ == "__main__":
    main()

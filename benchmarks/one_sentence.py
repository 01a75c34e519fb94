"""Benchmark: one sentence at a time, nmtkit vs. CTranslate2, with one and with two threads.

    python benchmarks/one_sentence.py small.pt test.en
    python benchmarks/one_sentence.py base.pt test.en --lines 20 --length 15

A line shows each system with one and two threads, by wall time or by CPU time. The speedup compares the better of the
two. --length forces the output length, for an untrained model. The processes take
turns, and each group of sentences counts with its fastest turn, which other processes on the machine disturb least.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import click
from generate import CTRANSLATE2, NMTKIT, EngineProcess, Setting, Task, Turn

from nmtkit.checkpoint import load_checkpoint
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.text.reading import read_lines

FORMATS = {"fp32": {NMTKIT: "fp32", CTRANSLATE2: "float32"}, "int8": {NMTKIT: "int8", CTRANSLATE2: "int8"}}


def measure(task: Task, settings: list[Setting], turns: int, group: int) -> dict[Setting, tuple[float, float]]:
    """Wall and CPU milliseconds a sentence of each setting."""
    total = {setting: [0.0, 0.0] for setting in settings}
    for start in range(0, len(task.lines), group):
        part = replace(task, lines=task.lines[start : start + group])
        engines = [EngineProcess(part, setting) for setting in settings]
        found: dict[Setting, list[Turn]] = {setting: [] for setting in settings}
        for _ in range(turns + 1):
            for engine in engines:
                found[engine.setting].append(engine.turn(512)[0])
        for engine in engines:
            engine.close()
        for setting, times in found.items():
            total[setting][0] += min(turn.wall for turn in times)
            total[setting][1] += min(turn.cpu for turn in times)
    count = len(task.lines) / 1000  # seconds to milliseconds
    return {setting: (wall / count, cpu / count) for setting, (wall, cpu) in total.items()}


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--lines", default=60, show_default=True)
@click.option("--group", default=30, show_default=True, help="Sentences of one turn.")
@click.option("--turns", default=5, show_default=True)
@click.option("--length", type=int, help="Force the output length, for an untrained model.")
def main(checkpoint: Path, text: Path, lines: int, group: int, turns: int, length: int | None) -> None:
    """Print a table for CHECKPOINT."""
    texts = [line for line in list(read_lines(text)) if line.strip()][:lines]
    with tempfile.TemporaryDirectory() as folder:
        to_ctranslate2(load_checkpoint(checkpoint), Path(folder) / CTRANSLATE2)
        task = Task(checkpoint, Path(folder) / CTRANSLATE2, texts, length, True, "cpu")
        for beam in (4, 1):
            for form, names in FORMATS.items():
                settings = [Setting(system, names[system], 1, threads, beam) for system in names for threads in (1, 2)]
                found = measure(task, settings, turns, group)
                for kind, index in (("wall", 0), ("CPU", 1)):
                    times = {s: min(found[x][index] for x in settings if x.system == s) for s in names}
                    shown = ", ".join(f"{x.system} {x.threads} threads {found[x][index]:.2f}" for x in settings)
                    ratio = times[CTRANSLATE2] / times[NMTKIT]
                    click.echo(f"beam {beam} {form} {kind} ms a sentence: {shown}; speedup {ratio:.2f}")


if __name__ == "__main__":
    main()

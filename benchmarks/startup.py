"""Benchmark: start-up of a translation, nmtkit vs. CTranslate2 in Python.

    python benchmarks/startup.py averaged.pt
    python benchmarks/startup.py averaged.pt --precision int8 --runs 20

Each run is a new process that loads a model and translates one sentence; runs of all programs alternate. Columns: the
median wall time, the median CPU time, and the largest resident memory of the process. CTranslate2 is measured if it is
installed, with nmtkit's checkpoint in its format and with SentencePiece.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import click

TRANSLATOR = """
from nmtkit import Translator
translator = Translator.from_checkpoint({path!r}, device="cpu", precision={precision!r}, threads=1)
print(translator.translate([{line!r}])[0])
"""
CTRANSLATE2 = """
import ctranslate2, sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file={tokenizer!r})
translator = ctranslate2.Translator({folder!r}, device="cpu", intra_threads=1, compute_type={precision!r})
result = translator.translate_batch([model.encode({line!r}, out_type=str)], beam_size=4)
print(model.decode(result[0].hypotheses[0]))
"""


def programs(checkpoint: Path, line: str, precision: str, folder: Path) -> dict[str, list[str]]:
    """The command line of each program; exports the checkpoint to `folder` for CTranslate2, and in int8."""
    values = {"path": str(checkpoint), "line": line, "precision": precision}
    generate, engine = f"{Path(__file__).parents[1] / 'bin/nmt-generate'}", ("--precision", precision, "--threads", "1")
    found = {
        "python -c pass": ["-c", "pass"],
        "nmt-generate --help": [generate, "--help"],
        "nmt-generate": [generate, "--checkpoint", str(checkpoint), *engine, "--quiet"],
        "Translator": ["-c", TRANSLATOR.format(**values)],
    }
    if precision == "int8":
        stored = export(checkpoint, folder / "int8.pt", "--to", "int8")
        found["nmt-generate, stored int8"] = [generate, "--checkpoint", str(stored), *engine, "--quiet"]
        found["Translator, stored int8"] = ["-c", TRANSLATOR.format(**values | {"path": str(stored)})]
    if find_spec("ctranslate2") is not None:
        kind = {"fp32": "float32"}.get(precision, precision)
        for name, stored_kind in {"": "float32", ", stored int8": "int8"}.items():
            if stored_kind in ("float32", kind):
                to = folder / f"ct2-{stored_kind}"
                export(checkpoint, to, "--to", "ctranslate2", "--quantization", stored_kind)
                values = {
                    "folder": str(to),
                    "tokenizer": str(next(to.glob("*.model"))),
                    "precision": kind,
                    "line": line,
                }
                found[f"CTranslate2 in Python{name}"] = ["-c", CTRANSLATE2.format(**values)]
    return found


def export(checkpoint: Path, output: Path, *options: str) -> Path:
    """Export a checkpoint in a process of its own, since a child begins with the resident memory of its parent."""
    command = [sys.executable, f"{Path(__file__).parents[1] / 'bin/nmt-export'}", f"{checkpoint}", *options, "--quiet"]
    subprocess.run([*command, "--output", f"{output}"], check=True)
    return output


def run(command: list[str], line: str) -> tuple[float, float, float]:
    """Wall time and CPU time in seconds, and the resident memory in MB, of one run."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin
    process.stdin.write(f"{line}\n".encode())
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise click.ClickException(f"{' '.join(command)} failed")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 << 10 if sys.platform == "linux" else 1 << 20)


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, path_type=Path))
@click.option("--line", default="A dog runs on the street.", show_default=True, help="The sentence to translate.")
@click.option("--precision", type=click.Choice(["fp32", "int8"]), default="fp32", show_default=True)
@click.option("--runs", default=9, show_default=True)
def main(checkpoint: Path, line: str, precision: str, runs: int) -> None:
    """Measure how long a new process takes to translate one sentence."""
    with tempfile.TemporaryDirectory() as folder:
        commands = programs(checkpoint.absolute(), line, precision, Path(folder))
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
        for turn in range(runs + 1):  # the first one compiles bytecode and fills the page cache
            for name, command in commands.items():
                measured = run(command, line)
                if turn:
                    results[name].append(measured)
    click.echo(f"{'':34s}{'wall s':>9s}{'CPU s':>9s}{'MB':>7s}")
    for name, values in results.items():
        wall, processor, memory = zip(*values, strict=True)
        click.echo(f"{name:34s}{statistics.median(wall):9.3f}{statistics.median(processor):9.3f}{max(memory):7.0f}")


if __name__ == "__main__":
    main()

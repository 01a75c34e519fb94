"""Measures a teacher and one of its students, in nmtkit, in the browser's engine and in Marian, and prints JSON.

    python -m measure_browser teacher.pt seed-1 test.en.gz test.de.gz > seed-1/measures.json

The engine runs in node. Marian runs if `pymarian` is installed.
"""

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from corpora import MULTI30K

from nmtkit import Translator
from nmtkit.scoring.bleu import bleu, chrf
from nmtkit.text.reading import read_lines

TURNS = 3  # systems alternate, so that a change of the machine's load affects all of them
WORKER = "engine/worker"
Run = Callable[[Sequence[str]], list[str]]


def in_nmtkit(checkpoint: Path, beam: int, precision: str, shortlist: Path | None = None) -> Run:
    translator = Translator.from_checkpoint(checkpoint, precision=precision, threads=1, shortlist=shortlist)
    return lambda lines: translator.translate(lines, beam=beam)


def outside(*command: str | Path) -> Run:
    """Translate with a program that reads and writes lines."""

    def run(lines: Sequence[str]) -> list[str]:
        text = "".join(f"{line}\n" for line in lines)
        done = subprocess.run([*map(str, command)], input=text, stdout=subprocess.PIPE, check=True, text=True)
        return done.stdout.split("\n")[:-1]

    return run


def systems(teacher: Path, folder: Path) -> dict[str, tuple[Run, float]]:
    """The systems by name, each with the megabytes of its files."""
    student, browser, int8 = folder / "student", folder / "browser-fp32", folder / "browser-int8"
    lists, node = student / "shortlist.bin", ("node", Path(__file__).parent / "translate.mjs")
    found = {
        "teacher, beam 5": (in_nmtkit(teacher, 5, "fp32"), size(teacher)),
        "student": (in_nmtkit(student / "averaged.pt", 1, "fp32"), size(student / "averaged.pt")),
        "student, int8, shortlist": (in_nmtkit(student / "int8.pt", 1, "int8", lists), size(student / "int8.pt")),
        "student, browser": (outside(*node, browser, WORKER), size(browser)),
        "student, browser, int8, shortlist": (outside(*node, int8, WORKER), size(int8)),
    }
    if marian := shutil.which("pymarian"):
        options = "--beam-size 1 --cpu-threads 1 --mini-batch 64 --maxi-batch 100 --maxi-batch-sort src --quiet"
        vocabularies = ("-v", browser / "vocab.spm", browser / "vocab.spm")
        decode = outside(marian, "decode", "-m", browser / "model.bin", *vocabularies, *options.split())
        found["student, pymarian"] = decode, size(browser / "model.bin")
    return found


def size(path: Path) -> float:
    return sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path])) / 1e6


def processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(teacher: Path, folder: Path, source: list[str], reference: list[str]) -> list[dict[str, Any]]:
    """The quality, speed and size of each system. Starting a program does not count."""
    runs, seconds, outputs = systems(teacher, folder), dict[str, list[float]](), dict[str, list[str]]()
    for _ in range(TURNS):
        for name, (run, _) in runs.items():
            times = [processor_seconds()]
            for lines in (source[:1], source):
                outputs[name] = run(lines)
                times.append(processor_seconds())
            seconds.setdefault(name, []).append(times[2] - 2 * times[1] + times[0])
    return [
        {
            **{"system": name, "bleu": bleu(outputs[name], reference, MULTI30K.target).value},
            **{"chrf": chrf(outputs[name], reference).value, "megabytes": megabytes},
            "speed": (len(source) - 1) / min(seconds[name]),
        }
        for name, (_, megabytes) in runs.items()
    ]


if __name__ == "__main__":
    texts = (list(read_lines(Path(name))) for name in sys.argv[3:])
    print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]), *texts)))

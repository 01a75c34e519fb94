"""Measures BLEU, speed and size of a teacher and its students on a test set, and prints them as JSON.

    python -m measure multi30k/seed-1 test.en.gz test.de.gz > measures.json

The models are `teacher/averaged.pt`, `plain/averaged.pt` and `student/averaged.pt` in the folder. The student's folder
also contains its shortlist.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from nmtkit import Translator
from nmtkit.checkpoint import load_checkpoint
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.scoring.bleu import bleu
from nmtkit.text.reading import read_lines

TURNS = 3  # settings alternate, so that a change of the machine's load affects all of them


class Setting(NamedTuple):
    """A model and its search: beam size, number format, and whether it uses the model's shortlist."""

    model: str
    beam: int
    precision: str
    shortlist: bool = False

    def translator(self, folder: Path) -> Translator:
        shortlist = folder / self.model / "shortlist.bin" if self.shortlist else None
        checkpoint = folder / self.model / "averaged.pt"
        return Translator.from_checkpoint(checkpoint, precision=self.precision, threads=1, shortlist=shortlist)


TEACHER, STUDENT = Setting("teacher", 5, "fp32"), Setting("student", 1, "fp32", shortlist=True)
SETTINGS = (
    *(TEACHER, Setting("teacher", 1, "fp32"), Setting("teacher", 5, "int8")),
    *(Setting("plain", 5, "fp32"), Setting("plain", 1, "fp32")),
    *(Setting("student", 5, "fp32"), Setting("student", 1, "fp32"), Setting("student", 1, "int8")),
    *(STUDENT, Setting("student", 1, "int8", shortlist=True)),
)


def measure(folder: Path, source: list[str], reference: list[str], language: str) -> list[dict[str, Any]]:
    """The results of all settings."""
    translators = {setting: setting.translator(folder) for setting in SETTINGS}
    seconds: dict[Setting, list[float]] = {setting: [] for setting in SETTINGS}
    scores = {}
    for _ in range(TURNS):
        for setting, translator in translators.items():
            start = time.process_time()
            translations = translator.translate(source, beam=setting.beam)
            seconds[setting].append(time.process_time() - start)
            scores[setting] = bleu(translations, reference, language).value
    sizes = {model: size(folder / model / "averaged.pt") for model in ("teacher", "plain", "student")}
    return [
        setting._asdict()
        | {"bleu": scores[setting], "speed": len(source) / median(seconds[setting])}
        | sizes[setting.model]
        for setting in SETTINGS
    ]


def size(path: Path) -> dict[str, float]:
    """The number of parameters, and the size of the model exported in int8, in MB."""
    checkpoint = load_checkpoint(path)
    with tempfile.TemporaryDirectory() as temporary:
        exported = Path(temporary) / "int8"
        to_ctranslate2(checkpoint, exported, quantization="int8")
        megabytes = (exported / "model.bin").stat().st_size / 1e6
    return {"parameters": sum(weight.size for weight in checkpoint.weights.values()), "int8_megabytes": megabytes}


def main(folder: Path, source: Path, reference: Path) -> None:
    language = reference.name.removesuffix(".gz").rpartition(".")[2]
    print(json.dumps(measure(folder, list(read_lines(source)), list(read_lines(reference)), language)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

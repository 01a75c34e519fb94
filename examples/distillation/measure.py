"""Measures a teacher and its students on a test set: BLEU, speed and size. Writes the results as JSON.

    python measure.py work/multi30k/seed-1 --source test.en.gz --reference test.de.gz --target-lang de \\
        --output measures.json

The models are `teacher/averaged.pt`, `plain/averaged.pt` and `student/averaged.pt` in the folder. The student's folder
also has its shortlist.
"""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click

from nmtkit.checkpoint import load_checkpoint
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.decoding.translator import Translator
from nmtkit.scoring.bleu import bleu
from nmtkit.storage.atomic import staged_file
from nmtkit.text.reading import read_lines

TURNS = 3  # the settings are measured in turn, so that a change of the machine's load affects all of them
BEAM = 5


class Setting(NamedTuple):
    """A model with the beam and the number format of its search, and whether it uses the model's shortlist."""

    model: str
    beam: int
    precision: str
    shortlist: bool = False


TEACHER, STUDENT = Setting("teacher", BEAM, "fp32"), Setting("student", 1, "fp32", shortlist=True)
PLAIN, WHOLE = Setting("plain", 1, "fp32"), STUDENT._replace(shortlist=False)
SETTINGS = (
    *(TEACHER, TEACHER._replace(beam=1), TEACHER._replace(precision="int8")),
    *(PLAIN._replace(beam=BEAM), PLAIN),
    *(WHOLE._replace(beam=BEAM), WHOLE, WHOLE._replace(precision="int8")),
    *(STUDENT, STUDENT._replace(precision="int8")),
)


def measure(folder: Path, source: Sequence[str], reference: Sequence[str], language: str) -> dict[str, Any]:
    """The results of all settings, the sizes of the models, and the translations of the teacher and the student."""
    translators = {setting: _translator(folder, setting) for setting in SETTINGS}
    seconds: dict[Setting, list[float]] = {setting: [] for setting in SETTINGS}
    translations: dict[Setting, list[str]] = {}
    for _ in range(TURNS):
        for setting, translator in translators.items():
            start = time.process_time()
            translations[setting] = translator.translate(source, beam=setting.beam)
            seconds[setting].append(time.process_time() - start)
    results = [
        setting._asdict()
        | {
            "bleu": bleu(translations[setting], reference, language).value,
            "sentences_per_second": len(source) / median(seconds[setting]),
        }
        for setting in SETTINGS
    ]
    sizes = {model: _sizes(folder, model) for model in dict.fromkeys(setting.model for setting in SETTINGS)}
    return {"results": results, "sizes": sizes, "translations": [translations[TEACHER], translations[STUDENT]]}


def _translator(folder: Path, setting: Setting) -> Translator:
    shortlist = folder / setting.model / "shortlist.bin" if setting.shortlist else None
    checkpoint = _checkpoint(folder, setting.model)
    return Translator.from_checkpoint(checkpoint, precision=setting.precision, threads=1, shortlist=shortlist)


def _checkpoint(folder: Path, model: str) -> Path:
    return folder / model / "averaged.pt"


def _sizes(folder: Path, model: str) -> Mapping[str, float]:
    """The number of parameters, and the size of the model exported in int8, in MB."""
    checkpoint = load_checkpoint(_checkpoint(folder, model))
    with tempfile.TemporaryDirectory() as temporary:
        exported = Path(temporary) / "int8"
        to_ctranslate2(checkpoint, exported, quantization="int8")
        size = (exported / "model.bin").stat().st_size
    return {"parameters": sum(tensor.numel() for tensor in checkpoint.weights.values()), "int8_megabytes": size / 1e6}


@command("measure.py")
@click.argument("folder", type=PathName())
@click.option("--source", required=True, type=PathName(), metavar="FILE", help="Source side of the test set.")
@click.option("--reference", required=True, type=PathName(), metavar="FILE", help="Its other side.")
@click.option("--target-lang", required=True, metavar="LANG", help="Language of the translation.")
@click.option("--output", required=True, type=PathName(), metavar="FILE", help="The JSON file to write.")
def main(folder: Path, source: Path, reference: Path, target_lang: str, output: Path) -> None:
    """Measure the models in FOLDER."""
    sides = {"source": list(read_lines(source)), "reference": list(read_lines(reference))}
    measured = measure(folder, sides["source"], sides["reference"], target_lang)
    with staged_file(output) as file:
        file.write(json.dumps(measured | sides, ensure_ascii=False).encode())


if __name__ == "__main__":
    main()

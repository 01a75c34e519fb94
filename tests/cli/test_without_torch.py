"""Translation on a CPU where the search is compiled imports no torch: not in commands, workers or a Translator."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE
from repository import BIN, ROOT
from running_server import Server

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.conversion.int8 import to_int8
from nmtkit.inference.shortlist import Shortlist, fingerprint
from nmtkit.machine import native_build
from nmtkit.machine.threads import available_cores
from nmtkit.model.lora_config import LoraConfig

pytestmark = pytest.mark.skipif(not native_build.available("fp32"), reason="the search is not compiled")
LINES = b"the dog runs on the street\n\na cat\n"

# Ways to translate, with files of these names in their folder.
WAYS: dict[str, tuple[str, ...]] = {
    "beam search": ("--beam", "4", "--nbest", "2"),
    "greedy": ("--beam", "1"),
    "int8": ("--precision", "int8"),
    "stored int8": ("--checkpoint", "int8.pt"),
    "low-rank additions": ("--checkpoint", "lora.pt"),
    "ensemble": ("--checkpoint", "other.pt"),
    "shortlist": ("--shortlist", "shortlist"),
    "terms": ("--constraints", "terms"),
    "prefix": ("--prefix", "terms"),
    "rules": ("--min-len", "3", "--no-repeat-ngram", "2", "--ban", "dog"),
    "sampling": ("--sampling", "--top-k", "9", "--top-p", "0.9", "--nbest", "2"),
    "diverse beams": ("--beam", "4", "--diverse-groups", "2"),
    "scoring": ("--score", "targets"),
    "alignment": ("--format", "pharaoh"),
    "alignment in int8": ("--format", "jsonl", "--alignment", "--alignment-layer", "1", "--precision", "int8"),
    "workers": ("--workers", "2"),
    "evaluation": ("--sacrebleu", "--reference", "targets"),
}

TWO_CORES = pytest.mark.skipif(available_cores() < 2, reason="each worker needs a core")


@pytest.fixture(scope="module")
def folder(make_checkpoint: Callable[..., Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of `WAYS`, and a package torch that cannot be imported."""
    folder = tmp_path_factory.mktemp("without_torch")
    checkpoint = make_checkpoint()
    save_checkpoint(folder / "model.pt", checkpoint)
    save_checkpoint(folder / "other.pt", make_checkpoint(2))
    save_checkpoint(folder / "int8.pt", to_int8(checkpoint))
    additions = {
        f"encoder.0.self_attention.out.lora_{part}.0": np.ones(shape, np.float32)
        for part, shape in (("a", (2, 16)), ("b", (16, 2)))
    }
    lora = LoraConfig(lora_rank=2)
    save_checkpoint(folder / "lora.pt", replace(checkpoint, weights=checkpoint.weights | additions, lora=lora))
    (folder / "terms").write_text("der\n\n\n")
    (folder / "targets").write_text("der hund\n\neine katze\n")
    size, ids = len(checkpoint.source.vocab), np.arange(4, 40, dtype=np.int32)
    offsets = np.zeros(size + 1, np.int64)
    vocabularies = fingerprint(checkpoint.source.vocab, checkpoint.target.vocab)
    with (folder / "shortlist").open("wb") as file:
        Shortlist(offsets, ids[:0], ids, size, vocabularies).write(file)
    (folder / "packages/torch").mkdir(parents=True)
    (folder / "packages/torch/__init__.py").write_text("raise ImportError('torch is imported')\n")
    return folder


@pytest.fixture
def without_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that start from now on fail if they import torch."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "packages"), str(ROOT)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(folder: Path, *command: str, input: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, *command], cwd=folder, input=input, capture_output=True, timeout=PATIENCE, check=False
    )


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("way", WAYS)
def test_nmt_generate_translates(way: str, folder: Path) -> None:
    options = ("--max-len-b", "3", *WAYS[way]) if way != "scoring" else WAYS[way]
    own = () if way in ("stored int8", "low-rank additions") else ("--checkpoint", "model.pt")
    done = run(folder, f"{BIN}/nmt-generate", *own, *options, input=LINES)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(b"\n") in (3, 6)


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("options", [(), pytest.param(("--workers", "2"), marks=TWO_CORES)])
def test_nmt_serve_answers(options: tuple[str, ...], folder: Path) -> None:
    server = Server(folder / "model.pt", *options)
    assert len(server.translate(text=["the dog runs", "a cat"], alignment=True)) == 2
    assert server.end()[0] == 128 + signal.SIGTERM


@pytest.mark.usefixtures("without_torch")
def test_nmt_score_scores(folder: Path) -> None:
    done = run(folder, f"{BIN}/nmt-score", "targets", "--reference", "targets", "--target-lang", "de")
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.usefixtures("without_torch")
def test_a_translator_translates_and_scores(folder: Path) -> None:
    program = (
        "from nmtkit import Translator; translator = Translator.from_checkpoint('model.pt');"
        "print(len(translator.translate(['a cat', 'the dog'])), len(translator.score(['a cat'], ['der hund'])))"
    )
    done = run(folder, "-c", program)
    assert (done.stdout, done.returncode) == (b"2 1\n", 0), done.stderr.decode()


@pytest.mark.usefixtures("without_torch")
def test_a_model_that_needs_torch_asks_for_it_in_one_line(folder: Path) -> None:
    done = run(folder, f"{BIN}/nmt-generate", "--checkpoint", "model.pt", "--precision", "bf16", input=LINES)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"torch is imported" in done.stderr


def test_four_packages_are_enough_to_translate(folder: Path, tmp_path: Path) -> None:
    """docs/how-to/install.md names them."""
    for name in ("click", "numpy", "sentencepiece", "sentencex"):
        (package,) = importlib.import_module(name).__path__
        (tmp_path / name).symlink_to(package)
        if (libraries := Path(f"{package}.libs")).exists():
            (tmp_path / libraries.name).symlink_to(libraries)
    (tmp_path / "nmtkit").symlink_to(ROOT / "nmtkit")
    command = [sys.executable, "-S", "-c", "from nmtkit.cli.start import generate; generate()"]
    options = ["--checkpoint", str(folder / "model.pt"), "--split-sentences", "--quiet"]
    done = subprocess.run(
        [*command, *options],
        input=LINES,
        capture_output=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 3), done.stderr

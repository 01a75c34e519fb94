"""Shared fixtures: the commands, datasets, and a tiny model with random weights."""

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
from commands import TINY, Run, Train
from patience import PATIENCE
from repository import BIN

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.cli.start import load_command
from nmtkit.console.log import logger
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.text.spm_training import train_sentencepiece
from nmtkit.text.tokenizer import SentencePieceTokenizer, Tokenizer

pytest_plugins = ["fault_fixtures"]

# A shell that runs the tests in the background ignores SIGINT in them, and so in the commands that they start; nohup
# ignores SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

torch.set_num_threads(1)  # tensors are too small for threads to pay off

# Without a GPU, Triton's kernels are interpreted. Triton reads this when it is imported, as several tests do.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Seed torch, so that the random numbers of a test do not depend on the tests before it."""
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def kept_signal_handlers() -> Iterator[None]:
    """Restore those that a command sets for its process: child processes of later tests would ignore SIGTERM."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def run_command() -> Run:
    """Run a command of the checkout in a process: run_command("nmt-generate", "--beam", 1, input=b"…")."""

    def run(name: str, *arguments: object, input: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [sys.executable, str(BIN / name), *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, input=input, capture_output=True, env=environment, timeout=PATIENCE, check=False)

    return run


def stdin_with(content: bytes, piped: bool) -> TextIO:
    """An open file with this content, or a pipe, whose buffer holds at most 64 KiB."""
    if not piped:
        file = tempfile.TemporaryFile("w+")  # noqa: SIM115
        file.buffer.write(content)
        file.seek(0)
        return file
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(content)
    return os.fdopen(reader)


@pytest.fixture
def run_here(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Like run_command, but within this process, which avoids the start-up time of torch."""
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level

    def run(
        name: str, *arguments: object, input: bytes = b"", piped: bool = False
    ) -> "subprocess.CompletedProcess[bytes]":
        main = load_command(name.removeprefix("nmt-"))
        capfdbinary.readouterr()
        with stdin_with(input, piped) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            with pytest.raises(SystemExit) as exit:
                main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        assert isinstance(exit.value.code, int)
        return subprocess.CompletedProcess([name], exit.value.code, out, err)

    yield run
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A small SentencePiece tokenizer with byte pieces."""
    words = ["der", "hund", "die", "katze", "the", "dog", "a", "cat", "läuft", "runs", "über", "on", "straße", "street"]
    generator = random.Random(1)
    text = [" ".join(generator.choices(words, k=6)) for _ in range(200)]
    model = train_sentencepiece(
        text, vocab_size=330, model_type="bpe", character_coverage=1.0, byte_fallback=True, threads=1
    )
    return SentencePieceTokenizer(model)


@pytest.fixture(scope="session")
def make_checkpoint(tokenizer: Tokenizer) -> Callable[..., Checkpoint]:
    """A checkpoint of a tiny model with weights drawn from `seed`; keywords change its TransformerConfig."""

    def make(seed: int = 1, **model_options: Any) -> Checkpoint:
        sizes = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "heads": 2}
        config = TransformerConfig(**(sizes | model_options))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = Transformer(config, len(tokenizer.vocab), len(tokenizer.vocab))
        return Checkpoint(config, as_arrays(collect_weights(model)), "en", "de", tokenizer, tokenizer, {"update": seed})

    return make


@pytest.fixture(scope="session")
def tiny_checkpoint(make_checkpoint: Callable[..., Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a checkpoint by `make_checkpoint`."""
    path = tmp_path_factory.mktemp("checkpoint") / "tiny.pt"
    save_checkpoint(path, make_checkpoint())
    return path


@pytest.fixture(scope="session")
def datasets(run_command: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two datasets of the same 240 pairs: `joined` with a joint SentencePiece vocabulary, `separate` with words.

    The target is the reversed source in capitals. The validation split has a sentence longer than any in training.
    """
    folder, random_words = tmp_path_factory.mktemp("datasets"), random.Random(1)
    words = [a + b + c for a in "ktpm" for b in "aeo" for c in "lsn"]
    for split, pairs, longest in (("train", 240, 8), ("valid", 16, 8), ("valid", 1, 40)):
        with (folder / f"{split}.en").open("a") as source, (folder / f"{split}.de").open("a") as target:
            for _ in range(pairs):
                sentence = random_words.choices(words, k=random_words.randint(longest // 4, longest))
                print(*sentence, file=source)
                print(*(word.upper() for word in reversed(sentence)), file=target)
    kinds = {"joined": ("--vocab-size", 70), "separate": ("--tokenizer", "space", "--separate-vocab")}
    text = ("-s", "en", "-t", "de", "--trainpref", folder / "train", "--validpref", folder / "valid")
    for kind, arguments in kinds.items():
        done = run_command("nmt-preprocess", *text, "--destdir", folder / kind, *arguments)
        assert done.returncode == 0, done.stderr.decode()
    return {kind: folder / kind for kind in kinds}


@pytest.fixture(scope="session")
def other_validation(run_command: Run, datasets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset `joined` with half of its validation split."""
    folder, text = tmp_path_factory.mktemp("other_validation"), datasets["joined"].parent
    for language in ("en", "de"):
        lines = (text / f"valid.{language}").read_text().splitlines(keepends=True)
        (folder / f"valid.{language}").write_text("".join(lines[: len(lines) // 2]))
    splits = ("--trainpref", text / "train", "--validpref", folder / "valid", "--vocab-from", datasets["joined"])
    done = run_command("nmt-preprocess", "-s", "en", "-t", "de", *splits, "--destdir", folder / "data")
    assert done.returncode == 0, done.stderr.decode()
    return folder / "data"


@pytest.fixture
def train(run_here: Run, datasets: dict[str, Path]) -> Train:
    """Train the tiny model, train(folder, "--max-updates", 3), and return the finished process."""

    def run(
        save_dir: Path, *arguments: object, dataset: Path = datasets["joined"], code: int = 0
    ) -> "subprocess.CompletedProcess[bytes]":
        result = run_here("nmt-train", dataset, "--save-dir", save_dir, *TINY, *arguments)
        assert result.returncode == code, result.stderr.decode()
        assert result.stdout == b""
        return result

    return run

"""Benchmark: nmt-generate on a long stream, in lines per second and memory over time.

    python benchmarks/stream.py --lines 10000000

Numbered lines are piped through the real command, whose search is replaced by one that copies the source. So the
benchmark measures reading, tokenizing, batching, detokenizing and writing. Each output line is compared with its input
line. Linux only: memory is read from /proc.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import click

from nmtkit.cli.generate import main as generate
from nmtkit.decoding import engine
from nmtkit.decoding.search import Hypothesis

WORDS = ("dogs", "run", "over", "snow")
CHUNK = 1000  # lines per write and comparison


def line(number: int) -> str:
    """A unique line of one to five words."""
    return " ".join([f"{number:,}", *WORDS[: number % 5]])


def chunks(lines: int) -> list[range]:
    return [range(first, min(first + CHUNK, lines)) for first in range(0, lines, CHUNK)]


def make_checkpoint(path: Path) -> None:
    """Save an untrained model with a tokenizer trained on the lines."""
    from nmtkit.checkpoint import Checkpoint, collect_weights, save_checkpoint
    from nmtkit.model.config import TransformerConfig
    from nmtkit.model.transformer import Transformer
    from nmtkit.text.tokenizer import SentencePieceTokenizer, train_sentencepiece

    text = map(line, range(0, 9_999_999, 9998))
    settings = {"model_type": "bpe", "character_coverage": 1.0, "byte_fallback": False, "threads": 1}
    tokenizer = SentencePieceTokenizer(train_sentencepiece(text, vocab_size=200, **settings))  # type: ignore[arg-type]
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=16, heads=2)
    weights = collect_weights(Transformer(config, len(tokenizer.vocab), len(tokenizer.vocab)))
    save_checkpoint(path, Checkpoint(config, weights, "en", "en", tokenizer, tokenizer, {}))


def echo(model: object, batch: engine.SearchBatch, *_: object, **__: object) -> list[list[Hypothesis]]:
    """Replacement for `engine.search_batch` that copies the source."""
    return [[Hypothesis(row[:-1], 0.0, [0.0] * len(row))] for row in batch.sources]


def resident_mib(process: int) -> float:
    fields = Path(f"/proc/{process}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@click.command()
@click.option("--lines", default=200_000, show_default=True)
@click.option("--buffer", default=4096, show_default=True)
@click.option("--as-command", "checkpoint", type=Path, hidden=True, help="Run as the measured command.")
def main(lines: int, buffer: int, checkpoint: Path | None) -> None:
    """Send numbered lines through nmt-generate."""
    if checkpoint is not None:
        engine.search_batch = echo
        generate(["--checkpoint", str(checkpoint), "--device", "cpu", "--buffer", str(buffer), "--quiet"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tiny.pt"
        make_checkpoint(file)
        command = [sys.executable, __file__, "--buffer", str(buffer), "--as-command", str(file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1 << 16) as process:
            measure(process, lines)


def measure(process: "subprocess.Popen[bytes]", lines: int) -> None:
    """Feed the process, compare its output, and print its memory after each tenth of the lines."""
    assert process.stdin
    assert process.stdout
    feeder = threading.Thread(target=feed, args=(process, lines), daemon=True)
    feeder.start()
    output = process.stdout
    start = time.monotonic()
    tenth = 1
    for chunk in chunks(lines):
        expected = "".join(f"{line(number)}\n" for number in chunk).encode()
        if output.read(len(expected)) != expected:
            raise click.ClickException(f"lines {chunk.start} to {chunk.stop} have come out otherwise")
        if chunk.start == 0:
            start = time.monotonic()  # the model is loaded
        if chunk.stop * 10 >= tenth * lines:
            tenth += 1
            click.echo(f"{chunk.stop:>12,} lines {resident_mib(process.pid):8.1f} MiB")
    seconds = time.monotonic() - start
    if output.read() or process.wait():
        raise click.ClickException("more came out than went in")
    click.echo(f"{lines:,} lines in {seconds:.1f} s: {lines / seconds:,.0f} lines/s")


def feed(process: "subprocess.Popen[bytes]", lines: int) -> None:
    assert process.stdin
    for chunk in chunks(lines):
        process.stdin.write("".join(f"{line(number)}\n" for number in chunk).encode())
    process.stdin.close()


if __name__ == "__main__":
    main()

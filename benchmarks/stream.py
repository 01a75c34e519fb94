"""How nmt-generate takes a long stream: lines a second, and memory from the first line to the last.

    python benchmarks/stream.py --lines 10000000

Numbered lines go through a pipe into the command itself, whose search is replaced by one that gives the source back:
what is measured is reading, tokenizing, batching, detokenizing and writing. Each line that comes out is compared with
the one that went in. Linux only: memory is read from /proc.
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
PORTION = 1000  # lines that are written and compared at once


def line(number: int) -> str:
    """A line of one to five words, like no other."""
    return " ".join([f"{number:,}", *WORDS[: number % 5]])


def portions(lines: int) -> list[range]:
    return [range(first, min(first + PORTION, lines)) for first in range(0, lines, PORTION)]


def make_checkpoint(path: Path) -> None:
    """An untrained model, with a tokenizer that knows the lines."""
    from nmtkit.checkpoint import Checkpoint, collect_weights, save_checkpoint
    from nmtkit.model.config import TransformerConfig
    from nmtkit.model.transformer import Transformer
    from nmtkit.tokenizer import SentencePieceTokenizer, train_sentencepiece

    text = map(line, range(0, 9_999_999, 9998))
    settings = {"model_type": "bpe", "character_coverage": 1.0, "byte_fallback": False, "threads": 1}
    tokenizer = SentencePieceTokenizer(train_sentencepiece(text, vocab_size=200, **settings))  # type: ignore[arg-type]
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=16, heads=2)
    weights = collect_weights(Transformer(config, len(tokenizer.vocab), len(tokenizer.vocab)))
    save_checkpoint(path, Checkpoint(config, weights, "en", "en", tokenizer, tokenizer, {}))


def echo(model: object, batch: engine.SearchBatch, *_: object, **__: object) -> list[list[Hypothesis]]:
    """In place of `engine.search_batch`."""
    return [[Hypothesis(row[:-1], 0.0, [0.0] * len(row))] for row in batch.rows]


def resident_mib(process: int) -> float:
    fields = Path(f"/proc/{process}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@click.command()
@click.option("--lines", default=200_000, show_default=True)
@click.option("--buffer", default=4096, show_default=True)
@click.option("--as-command", "checkpoint", type=Path, hidden=True, help="Be the command that is measured.")
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
    """Feed the process, compare what it gives, and print its memory at each tenth of the way."""
    assert process.stdin
    assert process.stdout
    feeder = threading.Thread(target=feed, args=(process, lines), daemon=True)
    feeder.start()
    output = process.stdout
    start = time.monotonic()
    tenth = 1
    for portion in portions(lines):
        expected = "".join(f"{line(number)}\n" for number in portion).encode()
        if output.read(len(expected)) != expected:
            raise click.ClickException(f"lines {portion.start} to {portion.stop} have come out otherwise")
        if portion.start == 0:
            start = time.monotonic()  # the model is loaded
        if portion.stop * 10 >= tenth * lines:
            tenth += 1
            click.echo(f"{portion.stop:>12,} lines {resident_mib(process.pid):8.1f} MiB")
    seconds = time.monotonic() - start
    if output.read() or process.wait():
        raise click.ClickException("more came out than went in")
    click.echo(f"{lines:,} lines in {seconds:.1f} s: {lines / seconds:,.0f} lines/s")


def feed(process: "subprocess.Popen[bytes]", lines: int) -> None:
    assert process.stdin
    for portion in portions(lines):
        process.stdin.write("".join(f"{line(number)}\n" for number in portion).encode())
    process.stdin.close()


if __name__ == "__main__":
    main()

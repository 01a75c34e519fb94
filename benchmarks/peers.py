"""Benchmark: nmt-generate vs. the commands of other toolkits, in output tokens per second without start-up.

    nmt-preprocess -s en -t de --trainpref train --validpref val --destdir data-bin --vocab-size 8000
    python benchmarks/peers.py data-bin test.en --opennmt VENV/bin --marian VENV/bin/pymarian

All toolkits use the small model (3+3 layers, 256, 1024, 4 heads) after a single update, fp32, and forced output
lengths: 12 pieces, or the length of the source for Marian, which has no minimum length. benchmarks/train.py says how
to install OpenNMT-py; install Marian by `pip install pymarian`. Each command translates the whole text and then a few
lines of it. The rate is the difference in tokens divided by the difference in seconds, which excludes start-up.
nmt-generate reads raw text, so its time includes tokenizing and detokenizing; the others read pieces.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from train import prepare_opennmt

from nmtkit.data.corpus import Dataset
from nmtkit.text.reading import read_lines
from nmtkit.text.vocabulary import SPECIALS

BIN = Path(__file__).parent.parent / "bin"
PIECES = 12  # of each output
FEW = 20  # lines, which take little more than start-up

Command = list[str]


@dataclass(frozen=True)
class Toolkit:
    """A toolkit and its command that translates one file into another, with one sentence per line."""

    name: str
    command: Callable[[Path, Path], Command]
    raw: bool = False  # whether it reads text instead of pieces

    def seconds(self, source: Path, output: Path, threads: int) -> float:
        """Wall time of the command."""
        begin = time.perf_counter()
        call([*self.command(source, output)], threads)
        return time.perf_counter() - begin


def call(command: Command, threads: int) -> None:
    """Run a command; if it fails, raise an error with the end of its stderr."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def nmtkit(data: Path, folder: Path, beam: int, threads: int) -> list[Toolkit]:
    """nmtkit, in fp32 and in its default precision."""
    options = ["--arch", "transformer_small", "--max-updates", "1", "--batch-tokens", "1024", "--quiet"]
    call([sys.executable, str(BIN / "nmt-train"), str(data), *options, "--save-dir", str(folder / "nmtkit")], threads)

    def command(precision: str, source: Path, output: Path) -> Command:
        return [
            *(sys.executable, str(BIN / "nmt-generate"), "--checkpoint", str(folder / "nmtkit/checkpoint_last.pt")),
            *("--input", str(source), "--output", str(output), "--quiet"),
            *("--beam", str(beam), "--precision", precision, "--threads", str(threads)),
            *("--min-len", str(PIECES), "--max-len-a", "0", "--max-len-b", str(PIECES)),
        ]

    return [
        Toolkit(f"nmtkit {precision}", lambda *files, precision=precision: command(precision, *files), raw=True)
        for precision in ("fp32", "int8")
    ]


def opennmt(data: Path, folder: Path, programs: Path, beam: int, threads: int) -> Toolkit:
    """OpenNMT-py, fp32."""
    config = prepare_opennmt(Dataset.open(data), folder, updates=1)
    call([str(programs / "onmt_train"), "-config", str(config)], threads)

    def command(source: Path, output: Path) -> Command:
        return [
            *(str(programs / "onmt_translate"), "-model", str(folder / "model_step_1.pt"), "-src", str(source)),
            *("-output", str(output), "-beam_size", str(beam), "-batch_type", "tokens", "-batch_size", "4096"),
            *("-min_length", str(PIECES), "-max_length", str(PIECES)),
        ]

    return Toolkit("OpenNMT-py fp32", command)


def marian(data: Path, folder: Path, program: Path, beam: int, threads: int) -> Toolkit:
    """Marian, fp32. Reads the training data that `opennmt` has written."""
    dataset = Dataset.open(data)
    vocabulary = folder / "vocab.yml"
    pieces = ["</s>", "<unk>", *dataset.source.vocab.pieces[len(SPECIALS) :]]
    vocabulary.write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}, ensure_ascii=False))
    vocabularies = ["--vocabs", str(vocabulary), str(vocabulary), "--cpu-threads", str(threads), "--quiet"]
    call(
        [
            *(str(program), "train", "--model", str(folder / "marian.npz"), "--after", "1u", "--type", "transformer"),
            *("--train-sets", str(folder / "source"), str(folder / "target"), *vocabularies, "--tied-embeddings-all"),
            *("--enc-depth", "3", "--dec-depth", "3", "--dim-emb", "256", "--transformer-dim-ffn", "1024"),
            *("--transformer-heads", "4", "--mini-batch", "64", "--no-shuffle"),
        ],
        threads,
    )

    def command(source: Path, output: Path) -> Command:
        return [
            *(str(program), "decode", "--models", str(folder / "marian.npz"), *vocabularies, "--quiet-translation"),
            *("--input", str(source), "--output", str(output), "--beam-size", str(beam)),
            *("--mini-batch", "64", "--maxi-batch", "100", "--maxi-batch-sort", "src"),
            *("--max-length-factor", "1", "--word-penalty", "-1000"),  # the longest outputs score best
        ]

    return Toolkit("Marian fp32", command)


def tokens(toolkit: Toolkit, output: Path, lines: int) -> int:
    """Number of tokens of an output, with the ends of sentences."""
    if toolkit.raw:  # detokenized, so its tokens cannot be counted
        return lines * (PIECES + 1)
    return sum(len(line.split()) + 1 for line in read_lines(output))


@click.command()
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.argument("text", type=click.Path(exists=True, path_type=Path))
@click.option("--opennmt", "opennmt_bin", type=click.Path(path_type=Path), help="Folder of its commands.")
@click.option("--marian", "marian_command", type=click.Path(path_type=Path), help="Its command, pymarian.")
@click.option("--beam", default=4, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--turns", default=3, show_default=True)
def main(
    data: Path, text: Path, opennmt_bin: Path, marian_command: Path | None, beam: int, threads: int, turns: int
) -> None:
    """Translate TEXT with each toolkit alternately; DATA is a dataset with the source language of TEXT."""
    source = Dataset.open(data).source
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lines = [line for line in read_lines(text) if line.strip()]
        for name, rows in (
            ("raw", lines),
            ("pieces", [" ".join(source.vocab.to_pieces(ids)) for ids in source.encode(lines)]),
        ):
            (folder / name).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
            (folder / f"{name}.few").write_text("".join(f"{row}\n" for row in rows[:FEW]), encoding="utf-8")
        toolkits = [*nmtkit(data, folder, beam, threads), opennmt(data, folder, opennmt_bin, beam, threads)]
        if marian_command is not None:
            toolkits.append(marian(data, folder, marian_command, beam, threads))
        rates: dict[str, list[float]] = {toolkit.name: [] for toolkit in toolkits}
        for _ in range(turns):
            for toolkit in toolkits:
                name = "raw" if toolkit.raw else "pieces"
                output, few = folder / "output", folder / "output.few"
                seconds = toolkit.seconds(folder / name, output, threads)
                seconds -= toolkit.seconds(folder / f"{name}.few", few, threads)
                count = tokens(toolkit, output, len(lines)) - tokens(toolkit, few, FEW)
                rates[toolkit.name].append(count / seconds)
        ours = statistics.median(rates["nmtkit fp32"])
        for name, seen in rates.items():
            median = statistics.median(seen)
            click.echo(f"{name:16s} {median:8.0f} output tokens/s; nmtkit fp32 has {ours / median:.2f} x as many")


if __name__ == "__main__":
    main()

"""Benchmark: nmt-train alone or vs. OpenNMT-py, in target tokens per second.

    nmt-preprocess -s en -t de --trainpref train --validpref val --destdir data-bin --vocab-size 8000
    python benchmarks/train.py data-bin --threads 2 --peer opennmt --peer-command VENV/bin/onmt_train

Both train the small model (3+3 layers, 256, 1024, 4 heads) on the same pieces in updates of 4,096 target tokens.
Install OpenNMT-py 3.5.1 into its own environment: `pip install OpenNMT-py`. If its old torch is unavailable, use `pip
install --no-deps OpenNMT-py` with a current torch and its other dependencies.

The benchmark compares the rates that each toolkit logs every ten updates, without the first ten. Turns alternate, since
the speed of a machine varies over time. Tokens per CPU second are more reliable on a busy machine.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click

from nmtkit.data.corpus import Dataset
from nmtkit.data.sentences import Sentences
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import SPECIALS

NMT_TRAIN = Path(__file__).parent.parent / "bin" / "nmt-train"
UPDATES_A_LINE = 10

OPENNMT = """
save_data: {folder}/run
src_vocab: {folder}/vocab
tgt_vocab: {folder}/vocab
share_vocab: true
overwrite: true
data: {{corpus_1: {{path_src: {folder}/source, path_tgt: {folder}/target, transforms: []}}}}
save_model: {folder}/model
save_checkpoint_steps: 1000000
valid_steps: 1000000
train_steps: {updates}
report_every: {updates_a_line}
seed: 1
num_workers: 0
encoder_type: transformer
decoder_type: transformer
position_encoding: true
layers: 3
heads: 4
hidden_size: 256
word_vec_size: 256
transformer_ff: 1024
dropout: [0.1]
attention_dropout: [0.0]
share_embeddings: true
share_decoder_embeddings: true
optim: adam
adam_beta2: 0.98
learning_rate: 2
decay_method: noam
warmup_steps: 400
label_smoothing: 0.1
max_grad_norm: 0
param_init_glorot: true
batch_type: tokens
batch_size: 4096
bucket_size: 1000000
normalization: tokens
accum_count: [1]
"""


def write_pieces(sentences: Sentences, tokenizer: Tokenizer, path: Path) -> None:
    """Write one side of a split as text: pieces separated by spaces, without </s>."""
    with path.open("w", encoding="utf-8") as file:
        for i in range(len(sentences)):
            print(*tokenizer.vocab.to_pieces(sentences[i][:-1].tolist()), file=file)


def prepare_opennmt(dataset: Dataset, folder: Path, updates: int) -> Path:
    """Write the training split, vocabulary and configuration for OpenNMT-py; return the path of the configuration."""
    split = dataset.split("train")
    write_pieces(split.source, dataset.source, folder / "source")
    write_pieces(split.target, dataset.target, folder / "target")
    pieces = dataset.source.vocab.pieces[len(SPECIALS) :]
    (folder / "vocab").write_text("".join(f"{piece}\t1\n" for piece in pieces), encoding="utf-8")
    path = folder / "opennmt.yaml"
    path.write_text(OPENNMT.format(folder=folder, updates=updates, updates_a_line=UPDATES_A_LINE))
    return path


class Rate(NamedTuple):
    """Target tokens per second of training, by wall time and by CPU time."""

    wall: float
    processor: float


def measure(command: list[str], pattern: str, threads: int) -> Rate:
    """Run a training; return the medians over its log lines, without the first."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    rates, output = [], []
    last = (0.0, 0.0)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if match := re.search(pattern, line):
                now = (time.perf_counter(), processor_seconds(process.pid))
                elapsed, used = now[0] - last[0], now[1] - last[1]
                wall, last = float(match[1].replace(",", "")), now
                rates.append(Rate(wall, wall * elapsed / used))
    if process.returncode or len(rates) < 2:
        raise click.ClickException(f"{command[0]}: exit code {process.returncode}\n{''.join(output[-20:])}")
    return Rate(*map(statistics.median, zip(*rates[1:], strict=True)))


def processor_seconds(process: int) -> float:
    """CPU seconds of a process and its live descendants, over all threads (Linux)."""
    folder = Path(f"/proc/{process}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    children = {int(child) for path in folder.glob("task/*/children") for child in path.read_text().split()}
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(map(processor_seconds, children))


@click.command()
@click.argument("dataset", type=click.Path(exists=True, path_type=Path))
@click.option("--threads", default=2, show_default=True)
@click.option("--processes", default=1, show_default=True, help="Processes of nmt-train, which share the threads.")
@click.option("--updates", default=40, show_default=True, help="Updates per turn.")
@click.option("--turns", default=3, show_default=True, help="Turns per toolkit.")
@click.option("--precision", default="fp32", show_default=True, help="For nmt-train; OpenNMT-py computes in fp32.")
@click.option("--max-tokens", default="1024", show_default=True, help="Target tokens per micro-batch of nmt-train.")
@click.option("--packing", default="auto", show_default=True, help="For nmt-train.")
@click.option("--peer", type=click.Choice(["none", "opennmt"]), default="none", show_default=True)
@click.option("--peer-command", default="onmt_train", show_default=True, help="Its training command.")
def main(
    dataset: Path,
    threads: int,
    processes: int,
    updates: int,
    turns: int,
    precision: str,
    max_tokens: str,
    packing: str,
    peer: str,
    peer_command: str,
) -> None:
    """Train on DATASET in alternating turns and print target tokens per second."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        ours = [
            *(sys.executable, *(torchrun if processes > 1 else []), str(NMT_TRAIN), str(dataset)),
            *("--arch", "transformer_small", "--device", "cpu"),
            *("--batch-tokens", "4096", "--max-tokens", max_tokens, "--precision", precision, "--packing", packing),
            *(
                "--threads",
                str(threads // processes),
                "--max-updates",
                str(updates),
                "--log-every",
                str(UPDATES_A_LINE),
            ),
            *("--log-format", "plain", "--warmup-updates", "400", "--save-minutes", "0"),
        ]
        commands = {"nmtkit": (ours, r"tokens_per_second ([\d.,]+)")}
        if peer == "opennmt":
            config = prepare_opennmt(Dataset.open(dataset), folder, updates)
            commands["OpenNMT-py"] = ([peer_command, "-config", str(config)], r"; *[\d.]+/ *([\d.]+) tok/s")
        rates: dict[str, list[Rate]] = {name: [] for name in commands}
        for turn in range(turns):
            for name, (command, pattern) in commands.items():
                save_dir = ["--save-dir", str(folder / str(turn))] if name == "nmtkit" else []
                rates[name].append(measure([*command, *save_dir], pattern, threads))
                report(f"turn {turn + 1}", name, rates[name][-1])
        medians = {name: Rate(*map(statistics.median, zip(*seen, strict=True))) for name, seen in rates.items()}
        for name, median in medians.items():
            report("median", name, median)
            if name != "nmtkit":
                click.echo(
                    f"nmtkit has {medians['nmtkit'].wall / median.wall:.2f} x its tokens/s, "
                    f"{medians['nmtkit'].processor / median.processor:.2f} x by processor time"
                )


def report(when: str, name: str, rate: Rate) -> None:
    """Print one row."""
    click.echo(f"{when:8s} {name:12s} {rate.wall:8.0f} target tokens/s {rate.processor:8.0f} a processor second")


if __name__ == "__main__":
    main()

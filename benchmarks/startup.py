"""Benchmark: start-up time and memory of training on a large corpus, without the model.

    python benchmarks/startup.py --pairs 100000000

The corpus is synthetic. One process, or two concurrent ones, open the dataset, check the lengths of all pairs and wait
for the micro-batches of their first update, at the beginning or in the middle of an epoch. They continue until two more
parts of the epoch have been planned. Linux only: memory is read from /proc.
"""

import itertools
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import click
import numpy as np

from nmtkit.data import corpus, description
from nmtkit.data.batching import PART, START, DataPosition, count_parts
from nmtkit.data.binary import TokenFileWriter
from nmtkit.data.lines import LINE_DTYPE, dropped_path
from nmtkit.data.mixture import Mixture, MixturePosition
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import EOS, SPECIALS, Vocabulary
from nmtkit.training.loader import Loader

BLOCK = 1 << 20
LONGEST = 250


def make_dataset(folder: Path, pairs: int, shards: int) -> None:
    """Write a dataset of sentences of about 25 tokens, all of the same word; one line in twenty was dropped.

    Without shards (0), each side is one file.
    """
    random = np.random.default_rng(1)
    tokenizer = SpaceTokenizer(Vocabulary([*SPECIALS, "a"]))
    corpus.write_tokenizers(folder, ("en", "de"), tokenizer, tokenizer)
    numbers: list[int] | list[None] = list(range(shards)) or [None]
    sizes = np.diff(np.linspace(0, pairs, len(numbers) + 1, dtype=np.int64)).tolist()
    parts = [
        description.ShardSummary(
            size, {language: write_side(folder, language, number, size, random) for language in ("en", "de")}
        )
        for number, size in zip(numbers, sizes, strict=True)
    ]
    tokens = {language: sum(part.tokens[language] for part in parts) for language in ("en", "de")}
    dropped = np.arange(0, pairs, 20, dtype=LINE_DTYPE)
    dropped.tofile(dropped_path(folder, "train"))
    texts = [("text", pairs + len(dropped))]
    row = description.SplitSummary(
        "train", pairs, tokens, {"en": 0, "de": 0}, {"empty": len(dropped)}, texts, parts if shards else []
    )
    with mock.patch.object(description, "sha256", return_value=""):  # read on request only for a large dataset
        description.write_description(folder, ("en", "de"), tokenizer, tokenizer, [row])


def write_side(folder: Path, language: str, shard: int | None, pairs: int, random: np.random.Generator) -> int:
    """Write the files of one side, or of a shard of it; return the number of tokens in them."""
    with TokenFileWriter(description.split_stem(folder, "train", language, shard), len(SPECIALS) + 1) as writer:
        for begin in range(0, pairs, BLOCK):
            lengths = np.clip(random.gamma(3, 8, min(BLOCK, pairs - begin)), 2, LONGEST).astype(np.int32)
            tokens = np.full(lengths.sum(), len(SPECIALS), np.uint16)
            tokens[np.cumsum(lengths) - 1] = EOS
            writer.write(tokens, lengths)
    return writer.tokens


def drop_page_cache(folder: Path) -> None:
    """Ask the system to drop the files of a folder from its page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def kilobytes(path: str, name: str) -> int:
    """A field of a /proc file of this process, in kB."""
    (line,) = [line for line in Path(path).read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])


class StartupCost(NamedTuple):
    """Start-up times in seconds and memory in MB of one process."""

    checked: float  # until all lengths are checked
    ready: float  # until the first update is ready
    updates_per_second: float
    own: float  # anonymous memory that the data adds
    mapped: float  # memory-mapped files
    share: float  # proportional share of the mapped files


def measure(folder: Path, place: DataPosition, rank: int, ranks: int, max_tokens: int) -> StartupCost:
    """Start at `place` and continue until two more parts of the epoch have been planned."""
    own, start = kilobytes("/proc/self/status", "RssAnon"), time.perf_counter()
    split = corpus.Dataset.open(folder).split("train")
    split.check_lengths("--max-tokens", max_tokens, "")
    checked = time.perf_counter()
    mixture = Mixture([(split.source.lengths, split.target.lengths)], [1.0], 25_000, max_tokens, seed=1)
    updates = Loader([split], mixture, rank, ranks, num_workers=1).updates(MixturePosition(place))
    work = next(updates)
    work.share()
    ready = time.perf_counter()
    more = 2 * work.update.updates_per_epoch // count_parts(len(split))
    for work in itertools.islice(updates, more):
        work.share()
    end = time.perf_counter()
    return StartupCost(
        checked - start,
        ready - start,
        more / (end - ready),
        (kilobytes("/proc/self/status", "RssAnon") - own) / 1024,
        kilobytes("/proc/self/status", "RssFile") / 1024,
        kilobytes("/proc/self/smaps_rollup", "Pss_File") / 1024,
    )


@click.command()
@click.option("--pairs", default=100_000_000, help="Sentence pairs; above about 40 million, without checksums.")
@click.option("--max-tokens", default=4096)
@click.option("--shards", default=0, help="Shards of the dataset; 0: one file for each side.")
def main(pairs: int, max_tokens: int, shards: int) -> None:
    """Print a table with one row per process."""
    print("| from | process | lengths checked | first update | updates/s | own memory | mapped | share of that |")
    print("|---|---|---|---|---|---|---|---|")
    middle = DataPosition(3, pairs // PART // 2, 77)
    places = {"beginning, nothing in memory": START, "beginning": START, f"part {middle.part} of epoch 3": middle}
    with tempfile.TemporaryDirectory() as name:
        make_dataset(Path(name), pairs, shards)
        for (where, place), ranks in itertools.product(places.items(), (1, 2)):
            if "nothing" in where:
                drop_page_cache(Path(name))
            with multiprocessing.get_context("spawn").Pool(ranks) as pool:
                tasks = [(Path(name), place, rank, ranks, max_tokens) for rank in range(ranks)]
                for rank, cost in enumerate(pool.starmap(measure, tasks, chunksize=1), 1):
                    print(
                        f"| {where} | {rank} of {ranks} | {cost.checked:.1f} s | {cost.ready:.1f} s "
                        f"| {cost.updates_per_second:.0f} | {cost.own:.0f} MB | {cost.mapped:.0f} MB "
                        f"| {cost.share:.0f} MB |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

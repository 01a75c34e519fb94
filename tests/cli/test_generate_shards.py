"""--shard: the parts, one after the other, are the whole."""

import gzip
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from commands import Run
from written_datasets import write_dataset

from nmtkit.checkpoint import load_checkpoint
from nmtkit.text.input_stream import Shard

LINES = ["the dog runs", "", "a cat on the street", "die katze", "läuft", " ", "the street", "der hund läuft über"]


@pytest.fixture
def generate(run_here: Run, tiny_checkpoint: Path) -> Run:
    """Run nmt-generate with a small beam, to be compared to the last byte."""
    options = ("--beam", 2, "--max-len-b", 3, "--precision", "fp32", "--quiet")
    return partial(run_here, "nmt-generate", "--checkpoint", tiny_checkpoint, *options)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "input.en"
    path.write_text("\n".join(LINES))  # the last line has no end
    return path


def joined(run: Callable[..., bytes], count: int) -> bytes:
    return b"".join(run("--shard", f"{number}/{count}") for number in range(1, count + 1))


@pytest.mark.parametrize("lines", [0, 2, 8, 241, 10**9 + 1])
@pytest.mark.parametrize("count", [1, 3])
def test_shards_are_contiguous_and_their_sizes_differ_by_at_most_a_line_or_a_buffer(lines: int, count: int) -> None:
    buffer = 10
    shares = [Shard(number, count).of(lines, buffer) for number in range(1, count + 1)]
    assert (shares[0].start, shares[-1].stop) == (0, lines)
    assert all(one.stop == next.start for one, next in pairwise(shares))
    sizes = {share.stop - share.start for share in shares}
    large = lines >= 8 * buffer * count
    assert max(sizes) - min(sizes) <= (buffer if large else 1)
    assert not large or all(share.start % buffer == 0 for share in shares)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_joined_outputs_of_large_shards_equal_the_whole_byte_for_byte(
    precision: str, run_here: Run, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    text = tmp_path / "input.en"
    text.write_text("".join(f"{line} {number}\n" for number in range(7) for line in LINES))
    options = ("--max-len-b", 3, "--format", "jsonl", "--buffer", 3, "--precision", precision, "--quiet")
    run = partial(run_here, "nmt-generate", "--checkpoint", tiny_checkpoint, "--input", text, *options)
    assert joined(lambda *shard: run(*shard).stdout, 2) == run().stdout != b""


@pytest.mark.parametrize("count", [3, len(LINES) + 3])
@pytest.mark.parametrize("options", [(), ("--nbest", 2), ("--format", "pharaoh")], ids=str)
def test_joined_shard_outputs_equal_the_whole(
    count: int, options: tuple[object, ...], generate: Run, text: Path
) -> None:
    def run(*arguments: object) -> bytes:
        done = generate("--input", text, *options, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert joined(run, count) == run() != b""


def test_compressed_files_stdin_and_datasets_are_sharded(
    generate: Run, text: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    packed = tmp_path / "input.en.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    dataset = write_dataset(tmp_path / "data", load_checkpoint(tiny_checkpoint))
    whole = generate("--input", text).stdout
    assert joined(lambda *shard: generate("--input", packed, *shard).stdout, 3) == whole
    assert joined(lambda *shard: generate(*shard, input=text.read_bytes()).stdout, 3) == whole
    assert joined(lambda *shard: generate(dataset, *shard).stdout, 2) == generate(dataset).stdout != b""


def test_parallel_files_are_sharded_with_the_input(generate: Run, text: Path, tmp_path: Path) -> None:
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("".join(f"{word}\n" for word in ("der", "", "die", "", "a", "", "", "dog")))
    run = partial(generate, "--input", text, "--prefix", prefixes)
    assert joined(lambda *shard: run(*shard).stdout, 3) == run().stdout
    prefixes.write_text("der\n")
    done = run("--shard", "1/3")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"has 1 line, the input has 8" in done.stderr


@pytest.mark.parametrize("layout", ["text", "jsonl"])
def test_a_half_finished_shard_is_resumed(layout: str, generate: Run, text: Path, tmp_path: Path) -> None:
    run = partial(generate, "--input", text, "--format", layout, "--shard", "2/2", "--output", tmp_path / "part")
    assert run().returncode == 0
    whole = (tmp_path / "part").read_bytes()
    (tmp_path / "part").unlink()
    (tmp_path / "part.partial").write_bytes(whole[: whole.index(b"\n", whole.index(b"\n") + 1) + 3])
    done = run("--resume")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "part").read_bytes() == whole


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "-1/3"])
def test_an_invalid_shard_is_refused(shard: str, generate: Run, text: Path) -> None:
    done = generate("--input", text, "--shard", shard)
    assert done.returncode == 2
    assert f"--shard {shard}: expected I/N".encode() in done.stderr


def test_shards_of_a_pipe_and_scores_of_a_shard_are_refused(generate: Run, text: Path) -> None:
    done = generate("--shard", "1/2", input=b"a dog\n", piped=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"use --input FILE" in done.stderr
    done = generate("--input", text, "--shard", "1/2", "--sacrebleu", "--reference", text)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"score them with nmt-score" in done.stderr

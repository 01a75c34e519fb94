"""nmt-generate in a pipeline: it answers what has come, and whatever ends it, nothing is lost or doubled."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from commands import Run
from repository import BIN

from nmtkit.decoding.translator import Translator
from nmtkit.text.input_stream import chunks_as_they_come

LINES = [b"the dog runs", b"", b"a cat", b" \t ", b"die katze", b"der hund", b"a dog on the street"] * 40
TEXT = b"".join(line + b"\n" for line in LINES)


@pytest.fixture
def options(tiny_checkpoint: Path) -> list[str]:
    """A model that is quick to answer, in small batches that make up small chunks."""
    fast = "--max-len-b 3 --beam 2 --buffer 9 --max-tokens 30 --device cpu --threads 1 --precision fp32"
    return ["--checkpoint", str(tiny_checkpoint), *fast.split()]


@pytest.fixture
def start(options: list[str]) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Start nmt-generate, with pipes to talk to it."""
    running = []

    def run(*arguments: object, **settings: object) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(BIN / "nmt-generate"), *options, *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process: subprocess.Popen[bytes] = subprocess.Popen(command, **{**pipes, **settings})  # type: ignore[call-overload]
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        process.wait()


@pytest.fixture
def generate(run_here: Run, options: list[str]) -> Run:
    return partial(run_here, "nmt-generate", *options)


@pytest.fixture
def expected(generate: Run) -> bytes:
    """What comes out when nothing disturbs."""
    done = generate(input=TEXT)
    assert (done.returncode, done.stdout.count(b"\n")) == (0, len(LINES)), done.stderr
    return done.stdout


# What has come is answered ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--workers", 2)])
def test_a_co_process_gets_each_translation_before_it_writes_the_next_line(
    arguments: tuple[object, ...], start: Callable[..., "subprocess.Popen[bytes]"], expected: bytes
) -> None:
    process = start(*arguments, bufsize=0)
    assert process.stdin
    assert process.stdout
    for line, translation in zip(LINES, expected.splitlines(keepends=True), strict=True):
        process.stdin.write(line[:2])  # nor does a part of a line confuse it
        process.stdin.write(line[2:] + b"\n")
        assert process.stdout.readline() == translation
    process.stdin.write(b"no line feed")
    process.stdin.close()
    assert process.stdout.read().count(b"\n") == 1
    assert process.wait() == 0


def test_a_reader_returns_available_lines_and_reads_ahead_within_its_limit() -> None:
    read: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    stream = chunks_as_they_come(source(), 7)
    seen: list[int] = []
    for chunk in stream:
        seen += chunk
        assert 1 <= len(chunk) <= 7
        time.sleep(0.002)
        assert len(read) <= len(seen) + 8  # the last one waits for its place
    assert seen == list(range(100))


def test_an_error_of_the_source_is_raised_after_the_items_read_before_it() -> None:
    def source() -> Iterator[int]:
        yield from range(3)
        raise OSError("gone")

    seen: list[int] = []
    with pytest.raises(OSError, match="gone"):
        seen.extend(item for chunk in chunks_as_they_come(source(), 2) for item in chunk)
    assert seen == [0, 1, 2]


# Whatever ends it ------------------------------------------------------------------------------------------------


def written(file: Path, lines: int) -> None:
    """Wait until a half-written output has so many lines."""
    for _ in range(1200):
        if file.exists() and file.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.05)
    raise AssertionError(f"{file} has not grown")


def resumed(generate: Run, output: Path, expected: bytes, *arguments: object) -> None:
    """What is left of an output is its beginning, and --resume makes it whole."""
    left = output.with_name("out.de.partial").read_bytes()
    assert not output.exists()
    assert len(left) > 0
    assert expected.startswith(left)
    done = generate("--output", output, "--resume", *arguments, input=TEXT)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert output.read_bytes() == expected
    assert [path.name for path in output.parent.iterdir()] == ["out.de"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_generation_and_the_output_is_resumed(
    number: int,
    code: int,
    start: Callable[..., "subprocess.Popen[bytes]"],
    generate: Run,
    expected: bytes,
    tmp_path: Path,
) -> None:
    output = tmp_path / "out.de"
    process = start("--output", output, "--log-format", "plain")
    assert process.stdin
    assert process.stderr
    process.stdin.write(TEXT[: len(TEXT) // 2])
    process.stdin.flush()
    written(tmp_path / "out.de.partial", 20)
    process.send_signal(number)
    messages = process.stderr.read().decode().splitlines()
    assert process.wait() == code
    assert messages[-1] == f"nmt-generate: {'interrupted' if number == signal.SIGINT else 'terminated'}"
    assert "out.de.partial contains the translations so far: --resume continues it" in messages[-2]
    resumed(generate, output, expected)


def test_an_output_with_the_name_of_a_compressed_file_is_refused(generate: Run, tmp_path: Path) -> None:
    done = generate("--output", tmp_path / "out.de.gz")
    assert done.returncode == 2
    assert b"out.de.gz: the output is not compressed: omit .gz" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without /dev/full")
def test_a_full_disk_behind_stdout_gives_a_one_line_error(start: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start(stdout=full)
        _, messages = process.communicate(TEXT)
    assert process.returncode == 1
    assert messages.decode().splitlines() == ["nmt-generate: cannot write to stdout: No space left on device"]


def test_a_killed_worker_stops_generation_and_the_output_is_resumed(
    start: Callable[..., "subprocess.Popen[bytes]"], generate: Run, expected: bytes, tmp_path: Path
) -> None:
    process = start("--workers", 2, "--output", tmp_path / "out.de")
    assert process.stdin
    process.stdin.write(TEXT[: len(TEXT) // 2])
    process.stdin.flush()
    written(tmp_path / "out.de.partial", 20)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {int(number): Path(f"/proc/{number}/cmdline").read_bytes() for number in workers}
    victims = [number for number, command in commands.items() if b"resource_tracker" not in command]
    assert len(victims) == 2, commands
    for victim in victims:
        os.kill(victim, signal.SIGSTOP)
    process.stdin.write(TEXT[len(TEXT) // 2 :])
    process.stdin.flush()
    time.sleep(0.5)  # until they have work: idle workers that die are replaced
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    _, messages = process.communicate()
    assert process.returncode == 1
    assert "nmt-generate: a worker process died (exit code -9" in messages.decode().splitlines()[-1]
    resumed(generate, tmp_path / "out.de", expected)


# --resume --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "arguments", "word"),
    [
        (b"x\n" * (len(LINES) + 2), (), "out.de.partial has more lines than the input: use the same input"),
        (b"x\n" * 2, (), "out.de.partial are translated differently now"),
        (b"x\n" * 3, ("--nbest", 2), "out.de.partial are translated differently now"),
        (b"x\n" * 2, ("--format", "jsonl"), "out.de.partial are translated differently now"),
        (b"x\ny\n", ("--format", "tsv"), "out.de.partial are translated differently now"),
        (b"x\n", ("--sacrebleu", "--reference", "ref.de"), "score the finished file"),
    ],
)
def test_a_partial_output_that_does_not_match_is_not_resumed(
    left: bytes, arguments: tuple[object, ...], word: str, generate: Run, tmp_path: Path
) -> None:
    (tmp_path / "out.de.partial").write_bytes(left)
    done = generate("--output", tmp_path / "out.de", "--resume", *arguments, "--quiet", input=TEXT)
    assert done.returncode == 2
    assert word in done.stderr.decode().splitlines()[-1]
    assert b"--resume continues it" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.de.partial"]
    assert (tmp_path / "out.de.partial").read_bytes() == left


def test_resume_without_a_partial_output_and_the_reverse_start_at_the_first_line(
    generate: Run, expected: bytes, tmp_path: Path
) -> None:
    for arguments in (("--resume",), ()):
        done = generate("--output", tmp_path / "out.de", *arguments, input=TEXT)
        assert done.returncode == 0
        assert (tmp_path / "out.de").read_bytes() == expected
        (tmp_path / "out.de.partial").write_bytes(b"old\n" * 9999)


def test_resuming_requires_a_regular_output_file(generate: Run) -> None:
    for arguments, word in (((), b"--resume needs --output FILE"), (("--output", "/dev/null"), b"not a regular file")):
        done = generate("--resume", *arguments, input=TEXT)
        assert (done.returncode, word in done.stderr) == (2, True)


def test_differently_rounded_scores_do_not_prevent_resuming(generate: Run, tmp_path: Path) -> None:
    whole = generate("--format", "tsv", input=TEXT).stdout
    left = re.sub(rb"-[0-9]+\.[0-9]+", b"-1.5", whole)
    (tmp_path / "out.partial").write_bytes(left)
    done = generate("--output", tmp_path / "out", "--format", "tsv", "--resume", input=TEXT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes().startswith(left[: left.rindex(b"-1.5")])


# The command checks itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [0, 2])
def test_a_lost_or_doubled_line_is_an_error(
    copies: int, generate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Translator.stream_chunks

    def faulty(*arguments: object, **settings: object) -> Iterator[object]:
        translations = stream(*arguments, **settings)  # type: ignore[arg-type]
        yield from [next(translations)] * copies
        yield from translations

    monkeypatch.setattr(Translator, "stream_chunks", faulty)
    done = generate("--output", tmp_path / "out.de", input=TEXT)
    assert done.returncode == 1
    assert f"{len(LINES)} lines were read, but" in done.stderr.decode().splitlines()[-1]
    assert not (tmp_path / "out.de").exists()

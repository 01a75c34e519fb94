"""Raw text to a dataset: through the plain function, and through the real command where exit codes matter."""

import bz2
import gzip
import itertools
import json
import logging
import lzma
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE
from repository import BIN

from nmtkit.data.corpus import Dataset, Split
from nmtkit.errors import UserError
from nmtkit.preprocessing import dedup
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.dedup import HASH, hash_pairs
from nmtkit.preprocessing.learning import sample_positions
from nmtkit.preprocessing.pipeline import preprocess
from nmtkit.text import reading as text
from nmtkit.text.reading import Block
from nmtkit.text.vocabulary import EOS, SPECIALS, UNK

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Pairs = Sequence[tuple[str, str]]

COMMAND = BIN / "nmt-preprocess"
ENGLISH = "the a small big dog cat house street runs sleeps sees over under quickly and"
GERMAN = "der die das ein kleiner großer hund katze straße läuft schläft über unter schnell und"


def make_pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Sentence pairs of random words; every tenth has an empty side, every seventh is a repeat."""
    generator = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    for number in range(count):
        sides = [" ".join(generator.choices(words.split(), k=generator.randint(1, 12))) for words in (ENGLISH, GERMAN)]
        if number % 10 == 9:
            sides[number % 2] = " " * (number % 3)
        pairs.append(pairs[-3] if number % 7 == 6 else (sides[0], sides[1]))
    return pairs


def write_pairs(prefix: Path, pairs: Pairs, compress: Callable[[bytes], bytes] = bytes, suffix: str = "") -> str:
    for side, language in enumerate(("en", "de")):
        content = "".join(f"{pair[side]}\n" for pair in pairs).encode()
        Path(f"{prefix}.{language}{suffix}").write_bytes(compress(content))
    return str(prefix)


def make(
    folder: Path,
    train: Sequence[str] = (),
    *,
    cleaning: CleaningConfig | None = None,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    name: str = "dataset",
    workers: int = 1,
    **vocabulary: Any,
) -> Dataset:
    """Preprocess into `folder/name`: segmented text unless the vocabulary's options say otherwise."""
    files = FilesConfig("en", "de", tuple(train), tuple(valid), tuple(test), folder / name, workers)
    return preprocess(files, VocabularyConfig(**{"tokenizer": "space", **vocabulary}), cleaning or CleaningConfig())


def texts(dataset: Dataset, split: Split) -> list[tuple[str, str]]:
    """The sentences of a split, decoded."""
    assert all(split.source[number][-1] == split.target[number][-1] == EOS for number in range(len(split)))
    return [
        (
            dataset.source.decode(split.source[number][:-1].tolist()),
            dataset.target.decode(split.target[number][:-1].tolist()),
        )
        for number in range(len(split))
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few lines, so that a small text makes many."""
    monkeypatch.setattr(text, "BLOCK_BYTES", 300)


# What is kept and what is dropped


@pytest.mark.usefixtures("small_blocks")
def test_training_text_is_cleaned_and_test_text_is_not(tmp_path: Path) -> None:
    pairs = make_pairs(300)
    prefix = write_pairs(tmp_path / "text", pairs)
    cleaning = CleaningConfig(max_length=10, max_ratio=3, dedup="pair")
    dataset = make(tmp_path, [prefix], cleaning=cleaning, valid=[prefix], test=[prefix, prefix])

    expected, dropped, seen = [], Counter[str](), set()
    for pair in pairs:
        lengths = [len(side.split()) for side in pair]
        repeat = pair in seen
        seen.add(pair)
        if min(lengths) == 0:
            dropped["empty"] += 1
        elif repeat:
            dropped["duplicate"] += 1
        elif max(lengths) > 10:
            dropped["too long"] += 1
        elif max(lengths) > 3 * min(lengths):
            dropped["ratio"] += 1
        else:
            expected.append(pair)
    assert len(dropped) == 4
    train = dataset.split("train")
    assert texts(dataset, train) == expected
    assert dataset.summaries["train"].dropped == dropped
    assert [tuple(text) for text in dataset.summaries["train"].corpora] == [(prefix, 300)]
    lines = np.delete(np.arange(300), np.fromfile(dataset.folder / "train.dropped", "<u8").astype(np.int64))
    assert [pairs[line] for line in lines] == expected

    assert dataset.split_names == ["train", "valid", "test", "test1"]
    for name in ("valid", "test", "test1"):
        assert texts(dataset, dataset.split(name)) == [(source.strip(), target.strip()) for source, target in pairs]
        assert dataset.summaries[name].dropped == {}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chunk", [16, dedup.HASHES_PER_CHUNK])
def test_duplicates_are_found_across_corpora_blocks_and_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(dedup, "HASHES_PER_CHUNK", chunk)
    pairs = list(dict.fromkeys(pair for pair in make_pairs(100) if pair[0].strip() and pair[1].strip()))
    first, second = write_pairs(tmp_path / "first", pairs), write_pairs(tmp_path / "second", [("new", "neu"), *pairs])
    dataset = make(tmp_path, [first, second], cleaning=CleaningConfig(dedup="pair"))
    assert texts(dataset, dataset.split("train")) == [*pairs, ("new", "neu")]


# Vocabularies


def test_vocabularies_of_segmented_text_are_ordered_by_frequency(tmp_path: Path) -> None:
    prefix = write_pairs(tmp_path / "text", [("b b a rare", "a b b"), ("c a <pad>", "c </s>")])
    joined = make(tmp_path, [prefix], min_count=2)
    assert joined.source is joined.target
    assert joined.source.vocab.pieces == [*SPECIALS, "b", "a", "c"]
    assert joined.split("train").source[1].tolist() == [*joined.source.vocab.to_ids(["c", "a"]), UNK, EOS]
    separate = make(tmp_path, [prefix], joined_vocab=False, vocab_size=6)
    assert separate.source.vocab.pieces == [*SPECIALS, "a", "b"]
    assert separate.target.vocab.pieces == [*SPECIALS, "b", "a"]


@pytest.mark.parametrize(("total", "wanted"), [(0, 0), (1, 1), (10, 10), (10, 3), (1000, 999), (100, 7)])
def test_a_sample_is_spread_over_the_text_without_duplicates(total: int, wanted: int) -> None:
    places = list(sample_positions(total, wanted, seed=1))
    assert (len(places), places) == (wanted, sorted({*places}))
    assert all(number * total // wanted <= place < total for number, place in enumerate(places))


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("joined_vocab", [True, False])
def test_sentencepiece_learns_vocabularies_and_loses_no_text(
    tmp_path: Path, model_type: str, joined_vocab: bool
) -> None:
    pairs = [pair for pair in make_pairs(200) if pair[0].strip() and pair[1].strip()]
    options: dict[str, Any] = {"tokenizer": "sentencepiece", "model_type": model_type, "character_coverage": 1.0}
    prefix = write_pairs(tmp_path / "text", pairs)
    dataset = make(tmp_path, [prefix], joined_vocab=joined_vocab, vocab_size=40, **options)
    assert texts(dataset, dataset.split("train")) == pairs
    assert (dataset.source is dataset.target) == joined_vocab
    assert len(dataset.source.vocab) == len(dataset.target.vocab) == 40
    assert (dataset.source.vocab == dataset.target.vocab) == joined_vocab
    assert dataset.summaries["train"].unknown == {"en": 0, "de": 0}


def test_text_that_does_not_suit_the_vocabulary_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = write_pairs(tmp_path / "train", [("a b", "x y z x y z x y z"), ("c d", "x")] * 30 + [("a@@ b", "x")])
    test = write_pairs(tmp_path / "test", [("ab a", "x y z x y z x y Z"), ("a@@ b", "y")])
    make(tmp_path, [train], test=[test], min_count=31)
    (warning,) = caplog.messages
    assert "of the tokens of test.en are unknown" in warning
    make(tmp_path, [train], test=[test], tokenizer="sentencepiece", vocab_size=16)
    assert sum("test.en: 1 of 2 lines have subword marks" in message for message in caplog.messages) == 1
    assert "train.en" not in caplog.text  # where a few lines may have marks by chance


def test_byte_fallback_leaves_no_unknown_tokens(tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train", make_pairs(100))
    test = write_pairs(tmp_path / "test", [("日本", "\U0001f600 ok")])
    options: dict[str, Any] = {"tokenizer": "sentencepiece", "character_coverage": 1.0}
    plain = make(tmp_path, [train], test=[test], vocab_size=60, **options)
    bytewise = make(tmp_path, [train], test=[test], vocab_size=320, byte_fallback=True, **options)
    assert plain.summaries["test"].unknown["en"] > 0
    assert bytewise.summaries["test"].unknown == {"en": 0, "de": 0}
    assert texts(bytewise, bytewise.split("test")) == [("日本", "\U0001f600 ok")]


def test_a_vocabulary_is_reused_from_a_model_or_a_dataset(tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train", make_pairs(100))
    test = write_pairs(tmp_path / "test", make_pairs(20, seed=5))
    options: dict[str, Any] = {"tokenizer": "sentencepiece", "vocab_size": 60}
    first = make(tmp_path, [train], test=[test], **options)
    by_model = make(
        tmp_path, test=[test], name="second", tokenizer="sentencepiece", spm_model=first.folder / "spm.model"
    )
    by_dataset = make(tmp_path, test=[test], name="third", tokenizer="sentencepiece", vocab_from=first.folder)
    for again in (by_model, by_dataset):
        assert again.split_names == ["test"]
        assert again.source.vocab == first.source.vocab
        assert contents(again.folder)["test.de.bin"] == contents(first.folder)["test.de.bin"]
    with pytest.raises(UserError, match="its tokenizer needs raw text"):
        make(tmp_path, test=[test], name="other", tokenizer="space", vocab_from=first.folder)


def test_separate_vocabularies_are_reused_for_the_same_languages_only(tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train", make_pairs(30))
    first = make(tmp_path, [train], joined_vocab=False)
    again = make(tmp_path, [train], name="second", vocab_from=first.folder)
    assert contents(again.folder) == contents(first.folder)
    files = FilesConfig("de", "en", testpref=(train,), destdir=tmp_path / "third")
    with pytest.raises(UserError, match="its separate vocabularies are for different languages"):
        preprocess(files, VocabularyConfig(vocab_from=first.folder), CleaningConfig())


@pytest.mark.usefixtures("small_blocks")
def test_sentencepiece_is_trained_on_the_sample_only(tmp_path: Path) -> None:
    prefix = write_pairs(tmp_path / "text", [("abc", "cba")] * 99 + [("z", "q")])
    options: dict[str, Any] = {"tokenizer": "sentencepiece", "vocab_size": 9, "character_coverage": 1.0}
    assert {"z", "q"} < set(make(tmp_path, [prefix], **{**options, "vocab_size": 11}).source.vocab.pieces)
    assert not {"z", "q"} & set(make(tmp_path, [prefix], **options, spm_sample=2).source.vocab.pieces)


def test_subwords_are_also_learned_from_capitals(tmp_path: Path) -> None:
    prefix = write_pairs(tmp_path / "text", [("abc def", "def abc")] * 10)
    options: dict[str, Any] = {"tokenizer": "sentencepiece", "character_coverage": 1.0, "joined_vocab": True}
    pieces = make(tmp_path, [prefix], **options, vocab_size=34, vocab_capitals=1.0).source.vocab.pieces
    assert {"▁abc", "▁ABC", "▁Abc", "▁def", "▁DEF", "▁Def"} < set(pieces)


def test_the_default_size_of_the_vocabulary_depends_on_the_number_of_pairs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    letters = random.Random(1)
    words = ["".join(letters.choices("abcdefghijkl", k=6)) for _ in range(3000)]
    for pairs, size in ((1000, 1000), (1001, 2000)):
        prefix = write_pairs(tmp_path / str(pairs), [(words[i], words[-i]) for i in range(pairs)])
        with caplog.at_level(logging.INFO, "nmtkit"):
            dataset = make(tmp_path, [prefix], tokenizer="sentencepiece", joined_vocab=True)
        assert len(dataset.source.vocab) == size
        assert f"vocabulary of {size} subwords, chosen for {pairs} pairs" in caplog.text


# The same for every number of workers


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "options",
    [
        {"tokenizer": "space", "joined_vocab": False},
        {"tokenizer": "sentencepiece", "model_type": "unigram", "vocab_size": 50, "spm_sample": 200},
        {"tokenizer": "sentencepiece", "model_type": "bpe", "vocab_size": 50, "joined_vocab": False},
    ],
)
def test_the_output_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, options: dict[str, Any]) -> None:
    prefix = write_pairs(tmp_path / "text", make_pairs(400))
    cleaning = CleaningConfig(max_length=30, max_ratio=4, dedup="pair")
    one, two, three = (
        contents(make(tmp_path, [prefix], test=[prefix], cleaning=cleaning, name=f"{n}", workers=n, **options).folder)
        for n in (1, 2, 3)
    )
    assert one == two == three


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_compressed_text_gives_the_same_bytes(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    pairs = make_pairs(50)
    plain = make(tmp_path, [write_pairs(tmp_path / "text", pairs)])
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").unlink()
    packed = make(tmp_path, [write_pairs(tmp_path / "text", pairs, compress, suffix)], name="packed")
    assert contents(plain.folder) == contents(packed.folder)


# The real command


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with the sides of a sound text, to be spoilt."""
    write_pairs(tmp_path / "train", make_pairs(120))
    write_pairs(tmp_path / "test", make_pairs(20, seed=9))
    return tmp_path


def arguments(folder: Path, *more: object) -> list[str]:
    fixed = ["-s", "en", "-t", "de", "--trainpref", folder / "train", "--testpref", folder / "test"]
    return [str(part) for part in (*fixed, "--destdir", folder / "dataset", "--tokenizer", "space", *more)]


def test_the_command_prints_a_summary(corpus: Path, run_command: Run) -> None:
    done = run_command("nmt-preprocess", *arguments(corpus, "--log-format", "json", "--workers", 2))
    assert (done.returncode, done.stdout) == (0, b"")
    events = {event.get("split"): event for event in map(json.loads, done.stderr.splitlines())}  # and nothing else
    dataset = Dataset.open(corpus / "dataset")
    assert events["train"]["sentences"] == len(dataset.split("train"))
    assert events["train"]["dropped"] == f"{dataset.summaries['train'].dropped['empty']} empty"
    assert events["test"]["dropped"] == "nothing"
    assert events["test"]["en tokens"] == dataset.summaries["test"].tokens["en"]


def test_a_second_run_gives_the_same_dataset_and_bad_input_does_not_change_it(corpus: Path, run_here: Run) -> None:
    assert run_here("nmt-preprocess", *arguments(corpus)).returncode == 0
    first = contents(corpus / "dataset")
    assert run_here("nmt-preprocess", *arguments(corpus)).returncode == 0
    assert contents(corpus / "dataset") == first
    (corpus / "test.de").write_bytes(b"\xff\n" * 20)
    assert run_here("nmt-preprocess", *arguments(corpus)).returncode == 2
    assert contents(corpus / "dataset") == first
    assert not [path for path in corpus.iterdir() if path.name.startswith(".")]


def both(split: str, content: bytes) -> dict[str, bytes | None]:
    return {f"{split}.en": content, f"{split}.de": content}


# What is written into the folder (None: removed), further options, and the message.
BAD_INPUT: dict[str, tuple[dict[str, bytes | None], list[str], str]] = {
    "different line counts": ({"train.de": b"ein Satz\n"}, [], r"train\.en has 120 lines and .*train\.de has 1:"),
    "a missing side": ({"test.de": None}, [], r"no file .*test\.de"),
    "an empty text": (both("train", b""), [], r"train\.en and .*train\.de are empty: omit this corpus"),
    "a blank text": (both("train", b"\n\n"), [], r"train\.de: no line has text on both sides"),
    "not UTF-8": (
        {"test.en": b"ok\n" * 7 + b"caf\xe9\n" + b"ok\n" * 12},
        [],
        r"test\.en, line 8 is not UTF-8 \(byte 0xe9 at column 4\)",
    ),
    "a damaged archive": (
        {"test.de": None, "test.de.gz": gzip.compress(b"ein Satz\n" * 20)[:-9]},
        [],
        r"test\.de\.gz is damaged or truncated",
    ),
    "nothing left": (
        {"train.en": b"a b\n\na\n", "train.de": b"x\nx\nx y z\n"},
        ["--max-ratio", "1.5", "--max-length", "2"],
        "every sentence pair of .* was dropped .1 empty, 1 ratio, 1 too long.: relax --max-length or --max-ratio",
    ),
    "no model": (
        {},
        ["--tokenizer", "sentencepiece", "--spm-model", "no.model"],
        r"--spm-model no\.model: No such file",
    ),
    "a destination that is something else": (
        {"thesis/chapter1": b"It was a dark and stormy night.\n"},
        ["--destdir", "{folder}/thesis"],
        "thesis exists, and this command did not write all of it",
    ),
    "one language twice": ({}, ["-t", "en"], "--source-lang and --target-lang are both en"),
    "a language with a slash": ({}, ["-t", "../de"], r"--target-lang '\.\./de'"),
    "a folder of checkpoints": (
        {"run/checkpoint_3.pt": b""},
        ["--vocab-from", "{folder}/run"],
        r"--vocab-from .*/run is a folder without dataset\.json: use .*/run/checkpoint_3\.pt",
    ),
    "two vocabularies": ({}, ["--spm-model", "a", "--vocab-from", "b"], "are mutually exclusive"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gives_a_one_line_error_and_no_dataset(corpus: Path, run_here: Run, case: str) -> None:
    changes, more, message = BAD_INPUT[case]
    for name, content in changes.items():
        path = corpus / name
        path.parent.mkdir(exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    before = sorted(corpus.rglob("*"))
    options = [part.format(folder=corpus) for part in more]
    done = run_here("nmt-preprocess", *arguments(corpus, "--quiet", *options))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
    assert re.match(f"nmt-preprocess: .*{message}", done.stderr.decode())
    assert sorted(corpus.rglob("*")) == before


IDLE_OPTIONS = [
    ("--tokenizer space --byte-fallback", "--byte-fallback"),
    ("--tokenizer sentencepiece --min-count 2", "--min-count"),
    ("--tokenizer sentencepiece --spm-model a --vocab-size 99", "--vocab-size"),
    ("--vocab-from a --separate-vocab", "--separate-vocab"),
]


@pytest.mark.parametrize(("options", "named"), IDLE_OPTIONS, ids=[options for options, _ in IDLE_OPTIONS])
def test_an_option_without_effect_is_refused(corpus: Path, run_here: Run, options: str, named: str) -> None:
    done = run_here("nmt-preprocess", *arguments(corpus, *options.split()))
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert done.stderr.decode().startswith(f"nmt-preprocess: {named.split()[0]} has no effect ")


def test_a_vocabulary_is_required_without_training_text(corpus: Path) -> None:
    with pytest.raises(UserError, match="give --trainpref, --vocab-from or --spm-model"):
        make(corpus, test=[str(corpus / "test")])
    with pytest.raises(UserError, match="no text: give --trainpref"):
        make(corpus)


# Runs that are cut off


@pytest.fixture
def long_run(corpus: Path) -> Any:
    """A run of the command that has begun to write, with work for some seconds before it."""
    write_pairs(corpus / "train", list(itertools.islice(itertools.cycle(make_pairs(2000)), 60_000)))
    command = [sys.executable, str(COMMAND), *arguments(corpus, "--quiet", "--workers", "2")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    while not [*corpus.glob(".dataset.*.partial/train.en.bin")]:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


def started_workers(process: "subprocess.Popen[bytes]") -> list[int]:
    """The two worker processes of a running command, by Linux's /proc, once both have started."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                arguments = (status.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == process.pid and b"spawn_main" in arguments:
                found.append(int(status.parent.name))
        if len(found) == 2:
            return found
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the processes are looked up in /proc")


@needs_proc
def test_kill_9_leaves_no_dataset_or_processes_and_the_next_run_cleans_up(
    corpus: Path, long_run: "subprocess.Popen[bytes]", run_command: Run
) -> None:
    workers = started_workers(long_run)
    long_run.kill()
    long_run.wait()
    assert not (corpus / "dataset").exists()
    assert [*corpus.glob(".dataset.*.partial")]
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    write_pairs(corpus / "train", make_pairs(20))
    assert run_command("nmt-preprocess", *arguments(corpus)).returncode == 0
    assert sorted(path.name for path in corpus.iterdir()) == ["dataset", "test.de", "test.en", "train.de", "train.en"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_run_with_its_exit_code_and_leaves_nothing(
    corpus: Path, long_run: "subprocess.Popen[bytes]", number: signal.Signals
) -> None:
    long_run.send_signal(number)
    _, errors = long_run.communicate(timeout=PATIENCE)
    assert long_run.returncode == 128 + number
    assert errors.count(b"\n") == 1
    assert sorted(path.name for path in corpus.iterdir()) == ["test.de", "test.en", "train.de", "train.en"]


@needs_proc
def test_a_killed_worker_gives_exit_code_1_and_no_dataset(corpus: Path, long_run: "subprocess.Popen[bytes]") -> None:
    os.kill(started_workers(long_run)[0], signal.SIGKILL)
    _, errors = long_run.communicate(timeout=PATIENCE)
    assert (long_run.returncode, errors.count(b"\n")) == (1, 1)
    assert b"a worker process died (exit code -9" in errors
    assert sorted(path.name for path in corpus.iterdir()) == ["test.de", "test.en", "train.de", "train.en"]


def test_pairs_that_differ_only_in_the_boundary_between_the_sides_are_no_duplicates(tmp_path: Path) -> None:
    source, target = (Block(tmp_path, 1, 3, text) for text in (b"ab\na\nab\n", b"c\nbc\nc\n"))
    hashes = np.frombuffer(hash_pairs(source, target, CleaningConfig(dedup="pair")), HASH)
    assert hashes[0] == hashes[2] != hashes[1]

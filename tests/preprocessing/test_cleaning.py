"""Cleaning of the training text in nmt-preprocess, and its page."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE
from repository import BIN

from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.pipeline import preprocess
from nmtkit.text import reading as text
from nmtkit.text.vocabulary import SPECIALS

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Pairs = Sequence[tuple[str, str]]

NOISE = [("same", "same"), ("the dog sees", "der"), ("", "der hund"), ("the dog", "собака"), ("собака", "hund")]
ALL = CleaningConfig(drop_identical=True, max_ratio=2.5, target_script=("Latin",), dedup="source")


def write(prefix: Path, pairs: Pairs) -> str:
    for side, language in enumerate(("en", "de")):
        Path(f"{prefix}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return str(prefix)


def make(
    folder: Path, pairs: Pairs, cleaning: CleaningConfig, name: str = "dataset", workers: int = 1, **vocabulary: Any
) -> Dataset:
    """Preprocess the pairs as training, validation and test text."""
    prefix = write(folder / "text", pairs)
    files = FilesConfig(
        "en", "de", (prefix,), (prefix,), (prefix,), folder / name, workers, report=folder / f"{name}.html"
    )
    return preprocess(files, VocabularyConfig(**{"tokenizer": "space", **vocabulary}), cleaning)


def kept(dataset: Dataset) -> list[int]:
    """The numbers of the lines of the training text that were kept, from 0."""
    file = dataset.folder / "train.dropped"
    dropped = set(np.fromfile(file, "<u8").tolist()) if file.exists() else set()
    lines = sum(count for _, count in dataset.summaries["train"].corpora)
    return [line for line in range(lines) if line not in dropped]


def good(count: int) -> list[tuple[str, str]]:
    return [(f"the dog sees {number}", f"der hund sieht {number}") for number in range(count)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_each_pair_is_kept_or_counted_under_its_first_reason(tmp_path: Path) -> None:
    dataset = make(tmp_path, [*good(3), *NOISE, *good(4)], ALL)
    assert kept(dataset) == [0, 1, 2, 7, 11]
    assert dataset.summaries["train"].dropped == {"empty": 1, "identical": 1, "script": 1, "duplicate": 3, "ratio": 1}


def test_dataset_and_page_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 300)
    pairs = (good(40) + NOISE) * 5
    options: dict[str, Any] = {"tokenizer": "sentencepiece", "vocab_size": 40, "spm_sample": 100}
    results = []
    for workers in (1, 3):
        folder = make(tmp_path, pairs, ALL, workers=workers, **options).folder
        results.append((contents(folder), (tmp_path / "dataset.html").read_bytes()))
    assert results[0] == results[1]


def test_the_vocabulary_is_learned_from_pairs_that_no_filter_drops(tmp_path: Path) -> None:
    dataset = make(tmp_path, [("a", "b"), ("c", "c"), ("a", "b")], CleaningConfig(drop_identical=True, dedup="pair"))
    assert dataset.source.vocab.pieces == [*SPECIALS, "a", "b"]
    pairs = [("abc", "cba")] * 50 + [("xyz", "xyz")] * 50
    options: dict[str, Any] = {"tokenizer": "sentencepiece", "vocab_size": 9, "character_coverage": 1.0}
    learned = make(tmp_path, pairs, CleaningConfig(drop_identical=True), **options)
    assert set("abc") < set(learned.source.vocab.pieces)
    assert not set("xyz") & set(learned.source.vocab.pieces)


DUPLICATES = [("a b", "x"), ("a b", "y"), ("c d", "x"), ("A-B", "X"), ("e 1", "z"), ("e 2", "z."), ("a b", "x")]


@pytest.mark.parametrize(
    ("dedup", "normalized", "expected"),
    [
        ("none", False, [0, 1, 2, 3, 4, 5, 6]),
        ("pair", False, [0, 1, 2, 3, 4, 5]),
        ("source", False, [0, 2, 3, 4, 5]),
        ("target", False, [0, 1, 3, 4, 5]),
        ("pair", True, [0, 1, 2, 4]),
        ("source", True, [0, 2, 4]),
        ("target", True, [0, 1, 4]),
    ],
)
def test_duplicates_of_pairs_sources_or_targets_are_dropped(
    tmp_path: Path, dedup: str, normalized: bool, expected: list[int]
) -> None:
    assert kept(make(tmp_path, DUPLICATES, CleaningConfig(dedup=dedup, dedup_normalized=normalized))) == expected


NEXT_LINE, REMOVED = "\x85", "\x01"  # white space for Unicode; a character that SentencePiece removes


def test_a_side_that_is_blank_or_has_no_tokens_is_empty(tmp_path: Path) -> None:
    blank = [(NEXT_LINE, "der hund"), ("the dog", NEXT_LINE)]
    lacking = [(REMOVED, "der hund"), ("the dog", REMOVED), (REMOVED, REMOVED), (REMOVED, REMOVED), ("", "der")]
    vocabulary: dict[str, Any] = {"tokenizer": "sentencepiece", "vocab_size": 40}
    dataset = make(tmp_path, [*good(10), *blank, *lacking], CleaningConfig(), **vocabulary)
    assert dataset.summaries["train"].dropped == {"empty": 7}
    assert kept(dataset) == list(range(10))


# The page


class Cells(HTMLParser):
    """Collects the texts of table cells, and the names of all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.elements = Counter[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_the_page_shows_reasons_and_examples_as_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script><img src=x>&amp;\x1b[31m\u202e"
    make(tmp_path, [*good(3), (hostile, hostile), ("x", "x")], CleaningConfig(drop_identical=True))
    page = (tmp_path / "dataset.html").read_text(encoding="utf-8")
    found = Cells()
    found.feed(page)
    assert not {"script", "img", "iframe"} & set(found.elements)
    shown = hostile.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert [cell.strip() for cell in found.cells].count(shown) == 2
    row = found.cells.index("identical")
    assert found.cells[row : row + 3] == ["identical", "--drop-identical", "2"]
    assert found.cells[row + 3].startswith("40.00%")
    assert {"50% at most", "longest", "once only"} <= {*re.findall("<th[^>]*>(.*?)</th>", page)}


@pytest.mark.parametrize("report", ["d/page.html", "d"])
def test_the_page_is_not_written_into_the_dataset_folder(report: str, tmp_path: Path) -> None:
    files = FilesConfig(
        "en", "de", (write(tmp_path / "text", good(3)),), destdir=tmp_path / "d", report=tmp_path / report
    )
    with pytest.raises(UserError, match="may contain no other files"):
        preprocess(files, VocabularyConfig(tokenizer="space"), CleaningConfig())
    assert not (tmp_path / "d").exists()


# The command


@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        (["--dedup"], "1 duplicate"),
        (["--dedup", "target"], "3 duplicate"),
        (["--config", "{}/on.toml"], "1 duplicate"),
        (["--config", "{}/off.toml"], "nothing"),
    ],
)
def test_dedup_is_a_flag_with_an_optional_value(
    tmp_path: Path, run_here: Run, options: list[str], dropped: str
) -> None:
    prefix = write(tmp_path / "text", [("a", "x"), ("b", "x"), ("a", "x"), ("c", "x"), ("d", "y")])
    (tmp_path / "on.toml").write_text("dedup = true\n")
    (tmp_path / "off.toml").write_text("dedup = false\n")
    more = [option.format(tmp_path) for option in options]
    sides = ["-s", "en", "-t", "de", "--trainpref", prefix, "--tokenizer", "space", "--destdir", str(tmp_path / "d")]
    done = run_here("nmt-preprocess", *sides, *more, "--log-format", "json")
    assert done.returncode == 0
    (event,) = (event for event in map(json.loads, done.stderr.splitlines()) if event["event"] == "encoded")
    assert event["dropped"] == dropped


def test_cleaning_without_training_text_is_refused(tmp_path: Path, run_here: Run) -> None:
    prefix = write(tmp_path / "text", good(3))
    done = run_here("nmt-preprocess", "-s", "en", "-t", "de", "--validpref", prefix, "--destdir", tmp_path, "--dedup")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"--dedup has no effect without --trainpref" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--min-langid 0.9", "--min-langid has no effect without --langid-model"),
        ("--dedup-normalized", "--dedup-normalized has no effect without --dedup"),
        ("--source-script Martian", "--source-script 'Martian' is not a Unicode script"),
        ("--dedup both", "'--dedup': 'both' is not one of none, pair, source, target"),
    ],
)
def test_a_wrong_option_of_cleaning_is_refused(tmp_path: Path, run_here: Run, options: str, message: str) -> None:
    prefix = write(tmp_path / "text", good(3))
    sides = ["-s", "en", "-t", "de", "--trainpref", prefix, "--tokenizer", "space", "--destdir", str(tmp_path / "d")]
    done = run_here("nmt-preprocess", *sides, *options.split())
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert message in done.stderr.decode().replace("nmt-preprocess: ", "")
    assert not (tmp_path / "d").exists()


PEAK_MEMORY = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        """The largest memory of a process of the command, in the units of getrusage."""
        prefix = write(tmp_path / str(count), [(f"the dog {n} sees", f"der hund {n} sieht") for n in range(count)])
        command = [sys.executable, str(BIN / "nmt-preprocess"), "-s", "en", "-t", "de", "--trainpref", prefix]
        command += ["--destdir", str(tmp_path / "d"), "--vocab-from", str(tmp_path / "dataset"), "--quiet"]
        command += ["--dedup", "source", "--dedup-normalized", "--source-script", "Latin"]
        command += ["--report", str(tmp_path / "page.html")]
        done = subprocess.run(
            [sys.executable, "-c", PEAK_MEMORY, *command], capture_output=True, check=True, timeout=PATIENCE
        )
        return int(done.stdout)

    make(tmp_path, good(5), CleaningConfig())
    unit = 1 if sys.platform == "darwin" else 1024
    assert peak(300_000) - peak(30_000) < (16 << 20) // unit

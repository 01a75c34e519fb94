"""Options of a --config file that the command line excludes: the command does the same as without the file."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from foreign_models import FsmtModel

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

LINES = "the dog runs\n\na cat\n"
WithFile = Callable[[dict[str, Any]], tuple[object, ...]]


@pytest.fixture
def with_file(tmp_path: Path) -> WithFile:
    """The arguments for a --config file with these options."""

    def write(options: dict[str, Any]) -> tuple[object, ...]:
        (tmp_path / "options.json").write_text(json.dumps(options))
        return "--config", tmp_path / "options.json"

    return write


@pytest.fixture
def generate(run_here: Run, tiny_checkpoint: Path) -> Run:
    """Run nmt-generate with the tiny checkpoint."""
    fixed = ("--checkpoint", tiny_checkpoint, "--device", "cpu", "--precision", "fp32", "--quiet")
    return partial(run_here, "nmt-generate", *fixed, input=LINES.encode())


@pytest.mark.parametrize(
    ("in_file", "given"),
    [
        ({"beam": 2, "diverse_groups": 2, "diversity": 0.9}, ("--sampling",)),
        ({"sampling": True, "top_k": 3, "seed": 7}, ("--no-sampling",)),
        ({"format": "jsonl", "alignment": True, "alignment_layer": 1}, ("--format", "text")),
        ({"beam": 2, "prefix": "missing", "length_penalty": 0.2}, ("--score", "given.txt")),
        ({"sacrebleu": True, "reference": "missing", "target_lang": "de"}, ("--shard", "1/2")),
        ({"tokenized_bleu": True, "attention_html": "page.html"}, ("--resume", "--output", "out.txt")),
        ({"dataset": "missing", "split": "valid", "verify": True}, ("--input", "given.txt")),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_generation_ignores_options_of_the_file_that_the_command_line_excludes(
    in_file: dict[str, Any],
    given: tuple[object, ...],
    generate: Run,
    with_file: WithFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.txt").write_text("der hund\n\neine katze\n")
    expected, found = generate(*given), generate(*with_file(in_file), *given)
    assert expected.returncode == 0, expected.stderr
    assert (found.returncode, found.stdout) == (0, expected.stdout), found.stderr


def test_an_import_ignores_the_tokenizer_of_the_file_beside_one_of_the_command_line(
    run_here: Run, with_file: WithFile, tmp_path: Path
) -> None:
    model = FsmtModel(tmp_path / "fsmt", 1).write_fairseq(tmp_path / "model")
    codes = model.parent / "bpecodes"
    importing = partial(run_here, "nmt-import", model, "--output", tmp_path / "model.pt")
    done = importing(*with_file({"spm_model": ["missing"]}), "--bpe-codes", codes)
    assert done.returncode == 0, done.stderr
    done = importing(*with_file({"bpe_codes": str(codes)}), "--spm-model", "missing.model")
    assert (done.returncode, b"missing.model" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("in_file", "given"),
    [
        ({"tokenizer": "sentencepiece", "model_type": "unigram", "seed": 3}, ("--tokenizer", "space")),
        ({"spm_model": "missing", "min_count": 2, "joined_vocab": False}, ("--vocab-from", "first")),
        ({"vocab_from": "missing", "vocab_size": 99}, ("--spm-model", "spm.model")),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_preprocessing_ignores_options_of_the_file_that_the_command_line_excludes(
    in_file: dict[str, Any],
    given: tuple[object, ...],
    run_here: Run,
    with_file: WithFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("the dog runs\na cat\n" * 3)
    preprocess = partial(run_here, "nmt-preprocess", "-s", "en", "-t", "de", "--trainpref", "train")
    assert preprocess("--destdir", "first", "--vocab-size", 30).returncode == 0
    (tmp_path / "spm.model").write_bytes((tmp_path / "first/spm.model").read_bytes())
    expected = preprocess("--destdir", "expected", *given)
    assert expected.returncode == 0, expected.stderr
    found = preprocess("--destdir", "found", *with_file(in_file), *given)
    assert found.returncode == 0, found.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "found").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "expected").iterdir()
    }


@pytest.mark.parametrize(
    ("in_file", "given", "updates"), [({"last": 2}, ("--best", 1), [1]), ({"best": 1}, ("--last", 2), [2, 3])]
)
def test_averaging_ignores_the_choice_of_the_file_beside_one_of_the_command_line(
    in_file: dict[str, Any],
    given: tuple[object, ...],
    updates: list[int],
    run_here: Run,
    with_file: WithFile,
    make_checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for update in (1, 2, 3):
        checkpoint = make_checkpoint(seed=update)
        checkpoint.progress = {"update": update, "best_metric": "valid_loss", "valid_loss": float(update)}
        save_checkpoint(run / f"checkpoint_{update}.pt", checkpoint)
    done = run_here("nmt-average", run, *with_file(in_file), *given, "--output", tmp_path / "mean.pt")
    assert done.returncode == 0, done.stderr
    averaged = load_checkpoint(tmp_path / "mean.pt").progress["averaged"]
    assert averaged == [f"checkpoint_{update}.pt" for update in updates]

"""nmt-generate as users run it: whatever comes in, as many lines go out."""

import gzip
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from log_messages import without_cut_outputs
from patience import PATIENCE
from repository import BIN
from written_datasets import PAIRS, write_dataset

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.data.corpus import Dataset
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.inputs import SplitInput
from nmtkit.decoding.requests import Request
from nmtkit.decoding.translator import Translator
from nmtkit.scoring.bleu import bleu, chrf
from nmtkit.text.spm_training import train_sentencepiece
from nmtkit.text.tokenizer import SentencePieceTokenizer, SpaceTokenizer, Tokenizer
from nmtkit.text.vocabulary import UNK, Vocabulary

FAST = ("--beam", 2, "--max-len-b", 3)


@pytest.fixture
def generate(run_here: Run, tiny_checkpoint: Path) -> Run:
    """Run nmt-generate with the tiny checkpoint and a small beam."""
    return partial(run_here, "nmt-generate", "--checkpoint", tiny_checkpoint, *FAST)


@pytest.fixture
def generate_apart(run_command: Run, tiny_checkpoint: Path) -> Run:
    """The same as a process of its own."""
    return partial(run_command, "nmt-generate", "--checkpoint", tiny_checkpoint, *FAST)


def refused(done: "subprocess.CompletedProcess[bytes]", *words: str, code: int = 2) -> None:
    """The command has ended with one line that says all `words`, and with nothing on stdout."""
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b""), message
    assert message.startswith("nmt-generate: ")
    assert message.count("\n") == 1
    assert all(word in message for word in words), message


# The contract of the stream ------------------------------------------------------------------------------------

ODD_LINES = [
    b"the dog runs",
    b"",
    b" \t ",
    b"a cat\r",
    b"\r",
    "der hund\u2028die katze".encode(),
    b"dog\x00cat",
    b"dog\x0ccat\x0b\x1c\x1d\x1e",
    "dog\u0085cat\u3000".encode(),
    b"broken \xff\xfe utf-8",
    b"\xed\xa0\x80 a surrogate",
    b"dog " * 20_000,
    b"x" * 100_000,
    b"last line without its line feed",
]


def test_a_dash_is_stdin_or_stdout(generate: Run) -> None:
    plain = generate(input=b"a dog\nthe cat\n")
    assert generate("--input", "-", "--output", "-", input=b"a dog\nthe cat\n").stdout == plain.stdout != b""


def test_every_input_line_gives_one_output_line_whatever_it_contains(generate_apart: Run) -> None:
    done = generate_apart("--max-source-tokens", 60, input=b"\n".join(ODD_LINES))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b"\n")
    lines = done.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(ODD_LINES)
    blank = [number for number, line in enumerate(lines) if not line]
    assert {1, 2, 4} <= set(blank)
    assert b"\r" not in done.stdout
    messages = done.stderr.decode()
    assert "2 lines truncated to 60 tokens" in messages
    assert "2 lines had bytes that are not UTF-8" in messages
    assert "translated | sentences 14 | tokens " in messages
    assert re.search(r" \| precision (bf16|fp32)(, (not compiled|AVX2|AVX-512( with VNNI)?))?\n", messages)


# Formats and files ---------------------------------------------------------------------------------------------


def test_formats_give_the_same_translations(generate: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """n-best output has n lines for each line in text, a row a hypothesis in tsv, an object a line in jsonl."""
    source = tmp_path / "input.en"
    source.write_bytes(b"the dog runs\r\n\r\na\tcat\n")
    outputs = {}
    for layout in ("text", "tsv", "jsonl"):
        path = tmp_path / f"output.{layout}"
        done = generate("--nbest", 2, "--format", layout, "--input", source, "--output", path)
        assert (done.returncode, done.stdout) == (0, b""), done.stderr
        outputs[layout] = path.read_text(encoding="utf-8").split("\n")[:-1]
    objects = [json.loads(line) for line in outputs["jsonl"]]
    assert [(row["line"], row["source"]) for row in objects] == [(1, "the dog runs"), (2, ""), (3, "a\tcat")]
    texts = [hypothesis["text"] for row in objects for hypothesis in row["hypotheses"]]
    assert outputs["text"] == [*texts[:3], "", *texts[3:]]
    rows = [line.split("\t") for line in outputs["tsv"]]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"], ["2", "1"], ["3", "1"], ["3", "2"]]
    assert [row[3] for row in rows] == [text.replace("\t", " ") for text in texts]

    translator = Translator.from_checkpoint(tiny_checkpoint, device="cpu")
    expected = translator.stream(["the dog runs", "", "a\tcat"], SearchConfig(beam=2, max_len_b=3, nbest=2))
    for row, translation in zip(objects, expected, strict=True):
        for hypothesis, candidate in zip(row["hypotheses"], translation.candidates, strict=True):
            assert hypothesis["text"] == candidate.text
            assert hypothesis["tokens"] == list(candidate.tokens)
            assert hypothesis["token_log_probs"] == pytest.approx(candidate.token_log_probs, rel=1e-4)
            assert hypothesis["score"] == pytest.approx(candidate.score, rel=1e-4)


def test_averaged_weights_are_used_unless_trained_weights_are_requested(
    make_checkpoint: Callable[..., Checkpoint], run_here: Run, tmp_path: Path
) -> None:
    trained, averaged = make_checkpoint(seed=1), make_checkpoint(seed=2)
    save_checkpoint(tmp_path / "trained.pt", trained)
    save_checkpoint(tmp_path / "averaged.pt", averaged)
    save_checkpoint(tmp_path / "both.pt", replace(trained, ema=averaged.weights))

    def translate(name: str, *arguments: object) -> bytes:
        options = ("--max-len-b", 3, "--device", "cpu", "--quiet", *arguments)
        done = run_here("nmt-generate", "--checkpoint", tmp_path / name, *options, input=b"the dog runs\na cat\n")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert translate("both.pt") == translate("averaged.pt") != translate("trained.pt")
    assert translate("both.pt", "--weights", "trained") == translate("trained.pt")
    missing = run_here("nmt-generate", "--checkpoint", tmp_path / "trained.pt", "--weights", "ema", input=b"a cat\n")
    refused(missing, "--weights ema", "without --ema")


def test_a_split_is_translated_and_scored(generate: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "data", load_checkpoint(tiny_checkpoint))
    done = generate(folder, "--sacrebleu", "--tokenized-bleu", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stdout == generate(input="\n".join(source for source, _ in PAIRS).encode()).stdout
    scores = without_cut_outputs(done.stderr.decode().splitlines())
    assert [line.partition("|")[0] for line in scores] == ["BLEU", "chrF2", "BLEU"]
    assert "|tok:13a|" in scores[0]
    assert "|tok:none|" in scores[2]

    reference = tmp_path / "reference.de"
    reference.write_bytes(done.stdout)
    done = generate(folder, "--sacrebleu", "--reference", reference, "--quiet")
    assert b"chrF2|nrefs:1|" in done.stderr
    assert b" = 100.00" in done.stderr

    reference.write_text("eins\nzwei\n", encoding="utf-8")
    refused(generate(folder, "--sacrebleu", "--reference", reference, "--quiet"), "has 2 lines, the input has 3")


@pytest.mark.parametrize("piped", [False, True])
def test_an_empty_input_is_not_scored(generate: Run, tmp_path: Path, piped: bool) -> None:
    (tmp_path / "reference.de").touch()
    done = generate("--sacrebleu", "--reference", tmp_path / "reference.de", "--quiet", piped=piped)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert b"there is nothing to score" in done.stderr


def test_subword_marks_in_the_reference_give_a_warning_where_words_are_counted(generate: Run, tmp_path: Path) -> None:
    reference = tmp_path / "reference.de"
    reference.write_text("der h@@ und\n\n▁ei ne ▁kat ze\n", encoding="utf-8")
    for score, warned in (("--sacrebleu", True), ("--tokenized-bleu", False)):
        done = generate(score, "--reference", reference, "--quiet", input=b"the dog\n\na cat\n")
        assert done.returncode == 0, done.stderr
        assert ("in 2 of 3 lines of the reference" in done.stderr.decode()) == warned


@pytest.mark.parametrize("kind", ["sentencepiece", "space"])
def test_an_unknown_piece_of_a_reference_matches_no_unknown_piece_of_a_translation(
    kind: str, make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"model_type": "bpe", "character_coverage": 1.0, "byte_fallback": False, "threads": 1}
    tokenizer: Tokenizer = SentencePieceTokenizer(train_sentencepiece(["the dog runs"] * 20, vocab_size=24, **settings))
    if kind == "space":
        tokenizer = SpaceTokenizer(tokenizer.vocab)
    checkpoint = replace(make_checkpoint(), source=tokenizer, target=tokenizer)
    folder = write_dataset(tmp_path / "data", checkpoint, [("dog", "猫 " * 5)])
    split = Dataset.open(folder).split("test")
    ids = split.target[0][:-1].tolist()
    (reference,) = SplitInput(split, lambda ids: Request("", ids=ids)).references(checkpoint.target)
    assert ids.count(UNK) == 5
    output = checkpoint.target.decode(ids)
    assert bleu([output], [output], "de").value > 99
    assert bleu([output], [reference], "de").value == 0
    assert chrf([output], [reference]).value == 0


def test_a_reference_with_a_different_line_count_is_refused_before_translating(
    generate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, reference = tmp_path / "input.en.gz", tmp_path / "reference.de"
    source.write_bytes(gzip.compress(b"the dog\n\na cat"))
    reference.write_text("der hund\n\n", encoding="utf-8")
    scored = ("--sacrebleu", "--reference", reference, "--quiet")
    done = generate(*scored, input=b"the dog\n\na cat", piped=True)  # a pipe can be counted at the end only
    assert (done.returncode, done.stdout.count(b"\n")) == (2, 3)
    assert b"has 2 lines, the input has 3" in done.stderr
    monkeypatch.setattr(Translator, "stream", lambda *_: pytest.fail("the input was translated"))
    refused(generate("--input", source, *scored), "has 2 lines, the input has 3")


def test_reading_from_a_terminal_prints_a_hint(tiny_checkpoint: Path) -> None:
    terminal, its_end = pty.openpty()
    command = [sys.executable, f"{BIN}/nmt-generate", "--checkpoint", f"{tiny_checkpoint}", "--beam", "1"]
    process = subprocess.Popen(command, stdin=its_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.write(terminal, b"the dog\n\x04")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out.count(b"\n")) == (0, 1)
    assert err.splitlines()[0].endswith(b"reading from the terminal: press Enter to translate a line, Ctrl-D to finish")


def test_a_dataset_of_another_vocabulary_or_direction_is_refused(
    generate: Run, make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    from nmtkit.text.tokenizer import SpaceTokenizer
    from nmtkit.text.vocabulary import SPECIALS

    other = make_checkpoint()
    other.source = SpaceTokenizer(Vocabulary([*SPECIALS, "dog"]))
    refused(generate(write_dataset(tmp_path / "data", other)), "different vocabularies", "--input")
    other = make_checkpoint()
    other.source_language, other.target_language = other.languages[::-1]
    refused(generate(write_dataset(tmp_path / "opposite", other)), "is de-en", "translates en-de")


# Mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sacrebleu"], ["--reference FILE"]),
        (["--split", "valid"], ["--split has no effect without a DATASET"]),
        (["data", "--input", "text.en"], ["mutually exclusive"]),
        (["--reference", "text.de"], ["--sacrebleu"]),
        (["--nbest", 9], ["--nbest 9", "--beam 2"]),
        (["--beam", 0], ["--beam: 0"]),
        (["--precision", "fp7"], ["--precision", "fp32"]),
        (["--precision", "fp16", "--device", "cpu"], ["--precision fp16", "use fp32"]),
        *[([flag, 10**20], [flag, "too large"]) for flag in ("--beam", "--workers")],
    ],
)
def test_invalid_options_are_refused(arguments: list[object], words: list[str], generate: Run) -> None:
    refused(generate(*arguments), *words)


def test_a_missing_checkpoint_option_is_reported(run_command: Run) -> None:
    refused(run_command("nmt-generate"), "--checkpoint", "--help")
    refused(run_command("nmt-generate", __file__), f"is a file: for a checkpoint write --checkpoint {__file__}")


def test_errors_name_files_that_cannot_be_used(
    generate: Run, generate_apart: Run, run_here: Run, tmp_path: Path
) -> None:
    refused(run_here("nmt-generate", "--checkpoint", tmp_path / "none.pt"), "none.pt", "No such file")
    refused(run_here("nmt-generate", "--checkpoint", tmp_path), "is a folder", "nmt-import converts")
    refused(generate(Path(__file__)), "not a dataset", f"--input {__file__}")
    refused(generate("--input", tmp_path / "none.en"), "none.en", "No such file")
    refused(generate("--output", tmp_path, input=b"a dog\n"), str(tmp_path), "directory")
    refused(generate_apart("--output", tmp_path / "none" / "out.de", input=b"a dog\n"), "out.de", "No such file")


def test_a_missing_file_is_reported_before_torch_is_imported(tiny_checkpoint: Path, tmp_path: Path) -> None:
    code = "import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); import nmtkit.cli.generate as c"
    for option in ("--checkpoint", "--input", "--glossary"):
        arguments = ("--checkpoint", tiny_checkpoint, option, tmp_path / "none")
        command = [sys.executable, "-c", f"{code}; c.main()", *map(str, arguments)]
        done = subprocess.run(command, cwd=BIN.parent, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout) == (2, "False\n")
        assert done.stderr.endswith(f": cannot read {tmp_path / 'none'}: No such file or directory\n")


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is missing")
@pytest.mark.parametrize("pipe", ["/dev/stdout", ">(cat)"])
def test_an_output_of_the_shell_is_written_directly(pipe: str, generate: Run, tiny_checkpoint: Path) -> None:
    command = [sys.executable, BIN / "nmt-generate", "--checkpoint", tiny_checkpoint, *FAST]
    done = subprocess.run(
        ["bash", "-c", f'"$@" --output {pipe}', "bash", *map(str, command)],
        input=b"a dog\n",
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == generate(input=b"a dog\n").stdout


def test_unknown_source_tokens_are_reported_and_many_give_a_warning(
    run_here: Run, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    checkpoint, path = load_checkpoint(tiny_checkpoint), tmp_path / "space.pt"
    source = SpaceTokenizer(Vocabulary(checkpoint.source.vocab.pieces))
    save_checkpoint(path, replace(checkpoint, source=source))
    for text, percent, doubted in ((b"\xe2\x96\x81the " * 8 + b"dog\n", "10", False), (b"the-dog\n\n", "33.33", True)):
        done = run_here("nmt-generate", "--checkpoint", path, *FAST, input=text)
        assert done.returncode == 0, done.stderr
        messages = done.stderr.decode()
        assert f" | en unknown % {percent} | precision " in messages
        assert ("of the tokens of stdin are unknown" in messages) == doubted

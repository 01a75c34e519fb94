"""nmt-generate with documents and with lines that have tags."""

import csv
import io
import re
import subprocess
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import Run
from sample_documents import SAMPLES

from nmtkit.checkpoint import Checkpoint, save_checkpoint

PAGE = "<!DOCTYPE html>\r\n<title>the dog</title>\r\n<p>A <b>cat</b> runs. The dog!</p><p translate=no>keep</p>\r\n"


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint: Callable[..., Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model that answers with words."""
    path = tmp_path_factory.mktemp("model") / "tiny.pt"
    save_checkpoint(path, make_checkpoint(5))
    return path


@pytest.fixture
def generate(run_here: Run, checkpoint: Path) -> Run:
    return partial(run_here, "nmt-generate", "--checkpoint", checkpoint, "--beam", 2, "--min-len", 2, "--max-len-b", 3)


def refused(done: "subprocess.CompletedProcess[bytes]", *words: str) -> None:
    message = done.stderr.decode()
    assert (done.returncode, done.stdout, message.count("\n")) == (2, b"", 1), message
    assert all(word in message for word in words), message


def test_a_docx_keeps_everything_but_its_text(generate: Run, tmp_path: Path) -> None:
    source, output = tmp_path / "report.docx", tmp_path / "bericht.docx"
    source.write_bytes(SAMPLES["docx"][0])
    done = generate("--input", source, "--output", output)
    assert done.returncode == 0, done.stderr.decode()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(output) as new:
        assert old.namelist() == new.namelist()
        before, after = (archive.read("word/document.xml").decode() for archive in (old, new))
        assert new.read("word/media/a.bin") == old.read("word/media/a.bin")
    assert "brown fox" in before
    assert "brown fox" not in after
    assert all(after.count(tag) == before.count(tag) for tag in ("<w:hyperlink", "<w:footnoteReference", "<w:p>"))
    assert "<w:delText>gone</w:delText>" in after
    assert re.search("sentences 1[0-9]", done.stderr.decode())


def test_a_page_is_translated_by_its_ending_or_from_stdin(generate: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.HTML"
    page.write_bytes(PAGE.encode())
    done = generate("--input", page)
    assert re.sub(r"[^<>\r\n]+(?![^<]*>)", "", done.stdout.decode()) == re.sub(r"[^<>\r\n]+(?![^<]*>)", "", PAGE)
    assert "</p><p translate=no>keep</p>\r\n" in done.stdout.decode()
    assert generate("--document", "html", input=PAGE.encode()).stdout == done.stdout
    lines = generate("--markup", "html", "--input", page, "--quiet").stdout
    assert lines.count(b"\n") == PAGE.count("\n")


def test_columns_of_a_table_are_translated(generate: Run) -> None:
    table = b'id,text,text2\r\n1,"the dog, a cat",dog\r\n2,a cat,dog\r\n'
    done = generate("--document", "csv", "--columns", "text", input=table)
    rows = [*csv.reader(io.StringIO(done.stdout.decode(), newline=""))]
    assert [[row[0], row[2]] for row in rows] == [["id", "text2"], ["1", "dog"], ["2", "dog"]]
    assert rows[0][1] == "text"
    assert rows[1][1] != "the dog, a cat"
    numbered = generate("--document", "csv", "--columns", "2, 3", "--protect", "text|dog", input=table).stdout
    assert re.findall(rb"text2?|dog", numbered) == re.findall(rb"text2?|dog", table)


def test_keys_of_json_are_translated(generate: Run) -> None:
    done = generate("--document", "json", "--keys", "b.*", input=b'{"a": "the dog", "b": ["a cat {x}", 1]}')
    assert re.fullmatch(rb'\{"a": "the dog", "b": \["(?!a cat).*\{x\}.*", 1\]\}', done.stdout)


def test_lines_of_markup_stay_lines_and_can_be_resumed(generate: Run, tmp_path: Path) -> None:
    lines, output = tmp_path / "lines.html", tmp_path / "out.html"
    lines.write_text("the <b>dog</b>\n\n<p>a cat</p><p>the dog</p>\r\n<i>12</i>\nthe dog\nruns\n")
    assert generate("--markup", "html", "--input", lines, "--output", output).returncode == 0
    whole = output.read_bytes()
    assert [re.findall("<.*?>", line) for line in whole.decode().split("\n")] == [
        re.findall("<.*?>", line) for line in lines.read_text().split("\n")
    ]
    output.rename(tmp_path / "out.html.partial")
    (tmp_path / "out.html.partial").write_bytes(whole[: whole.index(b"</p>")])
    assert generate("--markup", "html", "--input", lines, "--output", output, "--resume").returncode == 0
    assert output.read_bytes() == whole
    plain = generate(input=b"the dog\n").stdout
    assert re.sub(rb"<.*?>", b"", whole.splitlines()[0]) == plain.strip()


@pytest.mark.parametrize(
    "options",
    [
        ("--nbest", 2),
        ("--format", "jsonl"),
        ("--score", "x"),
        ("--resume",),
        ("--shard", "1/2"),
        ("--sacrebleu", "--reference", "x"),
        ("--prefix", "x"),
        ("--markup", "xml", "--document", "html"),
        ("--columns", "1"),
        ("--keys", "a"),
    ],
)
def test_options_for_lines_are_refused_for_documents(options: tuple[str, ...], generate: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(PAGE)
    refused(generate("--input", page, "--output", tmp_path / "out.html", *options), options[0])
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize("options", [("--nbest", 2), ("--alignment", "--format", "jsonl"), ("--constraints", "x")])
def test_options_that_need_plain_lines_are_refused_for_markup(options: tuple[str, ...], generate: Run) -> None:
    refused(generate("--markup", "html", *options, input=b""), options[0], "--markup")


@pytest.mark.parametrize(
    ("name", "word"),
    [("a.pdf", "pdftotext"), ("a.XLSX", ".csv"), ("a.pptx", ".odt"), ("a.doc", ".docx"), ("a.epub", "xhtml")],
)
def test_other_documents_are_refused_with_a_way_out(name: str, word: str, generate: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"text")
    refused(generate("--input", tmp_path / name), name, word)


def test_a_document_that_cannot_be_read_is_named_and_leaves_no_output(generate: Run, tmp_path: Path) -> None:
    for name in ("a.docx", "a.xlf"):
        (tmp_path / name).write_bytes(b"text")
        refused(generate("--input", tmp_path / name, "--output", tmp_path / f"out{name[1:]}"), name)
    assert {path.name for path in tmp_path.iterdir()} == {"a.docx", "a.xlf"}
    refused(generate(input=SAMPLES["docx"][0]), "stdin", "--document docx")
    refused(generate("--input", tmp_path / "a.xlf", "--output", tmp_path / "b.docx"), "b.docx", "xliff")


def test_lines_that_look_like_a_document_are_translated_with_one_warning(generate: Run) -> None:
    done = generate(input=b"<p>the dog</p>\n<b>a cat</b>\n")
    assert done.stdout.count(b"\n") == 2
    assert done.stderr.count(b"--markup html") == 1
    assert b"--markup" not in generate("--markup", "html", input=b"<p>the dog</p>\n").stderr


def test_a_run_with_nearly_only_empty_translations_warns(generate: Run, checkpoint: Path, run_here: Run) -> None:
    empty = run_here(
        "nmt-generate", "--checkpoint", checkpoint, "--max-len-a", 0, "--max-len-b", 0, input=b"dog\n\ncat\n"
    )
    assert b"2 of 2 translated lines are empty" in empty.stderr
    assert b"are empty" not in generate(input=b"The dog runs.\n\n\n\n").stderr

"""nmt-generate with documents, and with lines that have tags or protected text."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Run
from sample_documents import SAMPLES

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.decoding.translator import Translator
from nmtkit.documents.document import Options
from nmtkit.documents.formats import READERS, translate_document
from nmtkit.text.segment import Segment, place, words


@pytest.fixture(scope="module")
def model(make_checkpoint: Callable[..., Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.pt"
    save_checkpoint(path, make_checkpoint())
    return path


def upper(_: object, segments: Sequence[Segment], **options: object) -> list[Segment]:
    return [place(s, s.text.upper(), [(i, i) for i in range(len(words(s.text)))]) for s in segments]


@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("a.docx", (), Options()),
        ("a.HTML", ("--ignore-tags", "b,i"), Options(kept=frozenset("bi"))),
        ("a.srt", (), Options()),
        ("a.txt", ("--document", "csv", "--columns", "2"), Options(columns=("2",))),
        ("a.json", ("--document", "json", "--keys", "a,b.*"), Options(keys=("a", "b.*"))),
    ],
)
def test_a_file_is_translated_as_a_document_by_its_ending_or_by_options(
    name: str,
    options: tuple[str, ...],
    settings: Options,
    model: Path,
    run_here: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    format = options[1] if options[:1] == ("--document",) else name[2:].lower()
    content = SAMPLES[format][0]
    source, output = tmp_path / name, tmp_path / f"translated-{name}"
    source.write_bytes(content)
    monkeypatch.setattr(Translator, "translate_segments", upper)
    run_here("nmt-generate", "--checkpoint", model, "--input", source, "--output", output, *options)
    settings = replace(settings, target_language="de")
    expected = translate_document(content, format, lambda segments: upper(None, segments), settings)
    if format == "docx":
        assert output.read_bytes() != content
        texts = (READERS[format](file, settings).segments for file in (output.read_bytes(), expected))
        assert next(texts) == next(texts)
    else:
        assert output.read_bytes() == expected != content


def test_tags_of_lines_stay_and_do_not_change_the_translation(model: Path, run_here: Run) -> None:
    search = ("--checkpoint", model, "--beam", "1")
    tagged = b"the <b>dog</b> <i class='x'>runs</i>\n\n<br/>\n  a <u>cat\n"
    marked = run_here("nmt-generate", *search, "--markup", "html", input=tagged).stdout.decode().splitlines()
    plain = run_here("nmt-generate", *search, input=b"the dog runs\n\n\na cat\n").stdout.decode().splitlines()
    plain = [re.sub(r"[\x00-\x08\x0b-\x1f]", "", line) for line in plain]  # HTML has no control characters
    for tag in ("<b>", "</b>", "<i class='x'>", "</i>"):
        assert marked[0].count(tag) == 1
        marked[0] = marked[0].replace(tag, "")
    assert marked[0] == plain[0]
    assert marked[1:3] == ["", "<br/>"]
    assert marked[3].replace("<u>", "").split() == plain[3].split()


def test_protected_text_is_kept_once(model: Path, run_here: Run) -> None:
    result = run_here("nmt-generate", "--checkpoint", model, "--protect", r"\{\w+\}", input=b"the {name} runs {x}\n")
    text = result.stdout.decode()
    assert text.count("{name}") == text.count("{x}") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "page.html", "--nbest", "2"), "--nbest is not for a document (html): omit it"),
        (("--markup", "html", "--format", "jsonl"), "--format is not for lines with markup: omit it"),
        (("--input", "page.html", "--output", "page.txt"), "the output is a document too: end its name with .html"),
        (("--columns", "2"), "the options of documents and markup need --document FORMAT or --markup"),
        (("--protect", "("), "--protect (: not a regular expression"),
        (("--document", "docx"), "stdin: the document is a damaged zip file"),
    ],
)
def test_options_that_contradict_a_document_are_rejected(
    arguments: tuple[str, ...],
    message: str,
    model: Path,
    run_here: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("page.html").write_text("<p>the dog</p>")
    result = run_here("nmt-generate", "--checkpoint", model, *arguments, input=b"the dog\n")
    assert result.returncode == 2
    assert message in result.stderr.decode()
    assert not Path("page.txt").exists()

"""Sentence pairs in TSV and TMX give the same dataset as two texts."""

import gzip
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from commands import Run

PAIRS = [("the dog & a cat runs", "der hund & eine katze läuft"), ("a cat < a dog", "eine katze"), ("b", "c")] * 20


def units(language: str) -> str:
    return "".join(
        f'<tu><tuv xml:lang="EN-us"><seg>{escape(source)}</seg></tuv>\n'
        f'<tuv lang="{language}"><seg><bpt i="1">&lt;b></bpt>{escape(target)}<ept i="1">&lt;/b></ept></seg></tuv></tu>'
        for source, target in PAIRS
    )


def tmx(body: str, encoding: str = "utf-8") -> bytes:
    return f'<?xml version="1.0" encoding="{encoding}"?>\n<tmx><header/><body>{body}</body></tmx>'.encode(encoding)


FILES = {
    "pairs.tsv": "".join(f"{source}\t{target}\r\n" for source, target in PAIRS).encode(),
    "pairs.tsv.gz": gzip.compress("".join(f"{source}\t{target}\n" for source, target in PAIRS).encode()),
    "memory.TMX": tmx("<tu><tuv xml:lang='fr'><seg>x</seg></tuv></tu>" + units("deu")),
    "memory.tmx": tmx(units("de-DE"), "utf-16"),
    "namespace.tmx": tmx(units("de")).replace(b"<tmx>", b'<tmx xmlns="http://www.lisa.org/tmx14">'),
}


def make(run: Run, folder: Path, name: str) -> dict[str, bytes]:
    destination = folder / "data"
    options = ("-s", "en", "-t", "de", "--destdir", destination, "--vocab-size", 60, "--workers", 2)
    done = run("nmt-preprocess", "--trainpref", folder / name, *options)
    assert done.returncode == 0, done.stderr
    assert ("skipped 1 unit" in done.stderr.decode()) == (name == "memory.TMX")
    return {path.name: path.read_bytes() for path in destination.iterdir() if path.name != "dataset.json"}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_pairs_gives_the_dataset_of_its_sides(name: str, run_here: Run, tmp_path: Path) -> None:
    for language, texts in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / f"train.{language}").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / name).write_bytes(FILES[name])
    assert make(run_here, tmp_path, name) == make(run_here, tmp_path, "train")
    assert {path.name for path in tmp_path.iterdir()} == {name, "train.en", "train.de", "data"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"a\tb\nc\n", "a.tsv, line 2: 1 column: a source, a tab and a target are expected"),
        ("a.tsv", b"a\tb\xff\n", "a.tsv, line 1"),
        ("a.tmx", b"<tmx><tu>", "a.tmx: not well-formed"),
        ("a.tmx", tmx("<tu><tuv xml:lang='fr'><seg>x</seg></tuv></tu>"), "a.tmx has no unit in en and de"),
    ],
)
def test_a_malformed_file_of_pairs_is_rejected(
    name: str, content: bytes, message: str, run_here: Run, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    options = ("-s", "en", "-t", "de", "--destdir", tmp_path / "data", "--vocab-size", 60)
    done = run_here("nmt-preprocess", "--trainpref", tmp_path / name, *options)
    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert [path.name for path in tmp_path.iterdir()] == [name]

"""Reading text: what a line is, which files are found, and which file and line an error names."""

import bz2
import gzip
import itertools
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtkit.decoding.stats import StreamStats
from nmtkit.errors import UserError
from nmtkit.text import reading as text
from nmtkit.text.reading import Block, find_side, read_lines, read_parallel, read_raw_lines
from nmtkit.wording import counted

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_text_reads_like_plain_text(tmp_path: Path, suffix: str) -> None:
    content = "ein Haus\n\nzwei Häuser\u2028noch dieselbe Zeile\r\nohne Zeilenende"
    (tmp_path / f"a.de{suffix}").write_bytes(COMPRESS[suffix](content.encode()))
    path = find_side(str(tmp_path / "a"), "de")
    assert list(read_lines(path)) == content.split("\n")


def test_a_plain_file_is_read_rather_than_a_compressed_one_beside_it(tmp_path: Path) -> None:
    for name in ("a.de.gz", "a.de"):
        (tmp_path / name).touch()
    assert find_side(str(tmp_path / "a"), "de") == tmp_path / "a.de"


def test_a_missing_side_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file .*a\.de \(nor a\.de\.gz, a\.de\.xz, a\.de\.bz2\)"):
        find_side(str(tmp_path / "a"), "de")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
@pytest.mark.parametrize("damage", ["empty", "cut", "changed"])
def test_a_damaged_file_is_reported(tmp_path: Path, suffix: str, damage: str) -> None:
    content = COMPRESS[suffix]("\n".join(map(str, range(5000))).encode())
    middle = len(content) // 2
    bad = {"empty": b"", "cut": content[:middle], "changed": content[:middle] + bytes(8) + content[middle + 8 :]}
    path = tmp_path / f"a{suffix}"
    path.write_bytes(bad[damage])
    with pytest.raises(UserError, match=f"a{suffix}"):
        list(read_lines(path))


def test_text_that_is_not_utf8_is_reported_with_file_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.de"
    path.write_bytes(b"gut\nStra\xdfe\n")
    with pytest.raises(UserError, match=r"a\.de, line 2 is not UTF-8 \(byte 0xdf at column 5\)"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_byte_order_mark_is_no_character_of_the_first_line(tmp_path: Path, suffix: str) -> None:
    source, target = tmp_path / f"t.en{suffix}", tmp_path / f"t.de{suffix}"
    source.write_bytes(COMPRESS[suffix]("\ufeffa man\n\ufeffb\n".encode()))
    target.write_bytes(COMPRESS[suffix](b"ein Mann\nb\n"))
    assert list(read_lines(source)) == ["a man", "\ufeffb"]
    ((one, other),) = read_parallel(source, target)
    assert (one.lines(), other.lines()) == (["a man", "\ufeffb"], ["ein Mann", "b"])
    source.write_bytes(COMPRESS[suffix]("\ufeff".encode()))
    assert list(read_lines(source)) == []


@pytest.mark.parametrize(
    ("compress", "program"),
    [(gzip.compress, "gzip"), (lzma.compress, "xz"), (bz2.compress, "bzip2"), (b"(\xb5/\xfd$\x03".__add__, "zstd")],
)
def test_compressed_text_without_its_suffix_is_refused_with_the_program_that_decompresses_it(
    compress: Callable[[bytes], bytes], program: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(compress(b"a man\n"))
    with pytest.raises(UserError, match=program):
        list(read_raw_lines(tmp_path / "a"))


def write_pair(folder: Path, source: str, target: str) -> tuple[Path, Path]:
    paths = folder / "a.en", folder / "a.de"
    for path, content in zip(paths, (source, target), strict=True):
        path.write_text(content, encoding="utf-8", newline="")
    return paths


def test_a_bad_line_in_a_later_block_is_reported_with_its_number_in_the_file(tmp_path: Path) -> None:
    block = Block(tmp_path / "a.de", first=101, count=3, content=b"\nok\n\xff\n")
    with pytest.raises(UserError, match=r"a\.de, line 103 is not UTF-8 \(byte 0xff at column 1\)"):
        block.lines()


def test_lenient_decoding_replaces_invalid_bytes_and_flags_the_line() -> None:
    stats = StreamStats(0)
    assert stats.decode([b"gut", b"Stra\xdfe", b"", b"Ende"]) == ["gut", "Stra\ufffde", "", "Ende"]
    assert stats.not_utf8 == 1


def test_utf16_is_refused_by_name_and_other_bytes_that_are_not_utf8_are_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeff犬。\n".encode("utf-16-le"))
    with pytest.raises(UserError, match="UTF-16"):
        list(read_raw_lines(tmp_path / "a"))
    (tmp_path / "a").write_bytes(b"\xff\xfebroken\n")
    assert list(read_raw_lines(tmp_path / "a")) == [b"\xff\xfebroken"]
    (tmp_path / "b").write_bytes("\ufeff犬\n".encode("utf-16-be"))
    (tmp_path / "a").write_bytes(b"two\nlines\n")  # not: other numbers of lines
    with pytest.raises(UserError, match="UTF-16"):
        list(read_parallel(tmp_path / "a", tmp_path / "b"))


@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 18])
def test_blocks_hold_the_same_lines_of_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
    sources = ["", "a", "b" * 20, "", "", "ç", ""]
    targets = ["x", "", "yy", "", "z" * 30, "", "end"]
    paths = write_pair(tmp_path, "".join(f"{line}\n" for line in sources), "\n".join(targets))
    blocks = list(read_parallel(*paths))
    assert [line for source, _ in blocks for line in source.lines()] == sources
    assert [line for _, target in blocks for line in target.lines()] == targets
    counts = [source.count for source, _ in blocks]
    assert counts == [target.count for _, target in blocks] == [len(target.lines()) for _, target in blocks]
    assert [source.first for source, _ in blocks] == list(itertools.accumulate(counts, initial=1))[:-1]


@pytest.mark.parametrize(("source", "target"), [(0, 1), (5, 4), (1, 900), (900, 1)])
def test_different_line_counts_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: int, target: int
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    paths = write_pair(tmp_path, "a line\n" * source, "eine Zeile\n" * target)
    with pytest.raises(UserError, match=rf"a\.en has {counted(source, 'line')} and .*a\.de has {target}:"):
        list(read_parallel(*paths))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_several_compressed_streams_are_read_as_one_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one\n") + COMPRESS[suffix](b"two\n"))
    assert list(read_lines(path)) == ["one", "two"]

"""The token file and its index."""

import struct
from pathlib import Path

import numpy as np
import pytest

from nmtkit.data.binary import HEADER, TokenFile, TokenFileWriter, token_type
from nmtkit.errors import UserError

SENTENCES = [[5, 3], [3], [7, 8, 9, 3], [6, 65_535, 3]]


def write(stem: Path, blocks: list[list[list[int]]], vocabulary_size: int = 1000) -> None:
    dtype = token_type(vocabulary_size)
    with TokenFileWriter(stem, dtype) as writer:
        for block in blocks:
            tokens = np.array([number for sentence in block for number in sentence], dtype)
            writer.write(tokens, np.array([len(sentence) for sentence in block], np.int32))


@pytest.mark.parametrize("vocabulary_size", [1000, 65_536, 65_537])
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_sentences_come_back_however_they_were_written(tmp_path: Path, vocabulary_size: int, cut: int) -> None:
    write(tmp_path / "a", [SENTENCES[:cut], SENTENCES[cut:]], vocabulary_size)
    file = TokenFile(tmp_path / "a")
    assert [file[number].tolist() for number in range(len(file))] == SENTENCES
    assert file.lengths[:].tolist() == [2, 1, 4, 3]
    assert file.lengths[:].dtype == np.int32
    assert file.tokens == 10


def test_sentences_are_looked_up_together_as_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "a", [SENTENCES])
    file = TokenFile(tmp_path / "a")
    for chosen in ([2, 0, 3, 3], [1], []):
        tokens, lengths = file.gather(np.array(chosen, np.int64))
        assert tokens.tolist() == [token for number in chosen for token in SENTENCES[number]]
        assert lengths.tolist() == [len(SENTENCES[number]) for number in chosen]
        assert file.lengths[np.array(chosen, np.int64)].tolist() == lengths.tolist()
    assert file.lengths[1:3].tolist() == file.lengths[1:99].tolist()[:2] == [1, 4]


def test_the_files_are_what_the_documentation_says(tmp_path: Path) -> None:
    write(tmp_path / "a", [SENTENCES])
    assert (tmp_path / "a.bin").read_bytes() == struct.pack("<10H", *(token for ids in SENTENCES for token in ids))
    expected = b"NMTKINDX" + struct.pack("<IIQQ5Q", 1, 2, 4, 10, 0, 2, 3, 7, 10)
    assert (tmp_path / "a.idx").read_bytes() == expected


def test_a_token_takes_the_fewest_bytes_that_hold_the_vocabulary() -> None:
    assert [token_type(size).itemsize for size in (5, 65_536, 65_537)] == [2, 2, 4]


def test_no_sentences_are_a_file_too(tmp_path: Path) -> None:
    write(tmp_path / "a", [])
    file = TokenFile(tmp_path / "a")
    assert (len(file), file.tokens, file.lengths[:].tolist()) == (0, 0, [])


def test_there_is_no_sentence_beyond_the_last(tmp_path: Path) -> None:
    write(tmp_path / "a", [SENTENCES])
    with pytest.raises(IndexError, match="sentence 4 of 4"):
        TokenFile(tmp_path / "a")[4]


def test_writing_that_fails_leaves_no_readable_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), TokenFileWriter(tmp_path / "a", token_type(10)) as writer:  # noqa: PT012
        writer.write(np.array([4, 3], np.uint16), np.array([2], np.int32))
        raise KeyboardInterrupt
    with pytest.raises(UserError, match=r"a\.idx: \d+ bytes do not fit 0 sentences"):
        TokenFile(tmp_path / "a")


@pytest.mark.parametrize(
    ("name", "start", "content", "message"),
    [
        ("a.idx", 0, b"fairseq!", r"a\.idx: not an nmtkit index"),
        ("a.idx", 8, struct.pack("<I", 2), r"a\.idx: version 2, this nmtkit reads version 1"),
        ("a.idx", 12, struct.pack("<I", 3), r"a\.idx: 3 bytes a token are unknown"),
        ("a.idx", 16, struct.pack("<Q", 5), r"a\.idx: 72 bytes do not fit 5 sentences"),
        ("a.idx", 24, struct.pack("<Q", 11), r"a\.bin: 20 bytes do not fit 11 tokens"),
        ("a.idx", HEADER.size, struct.pack("<Q", 1), r"a\.idx: the offsets are damaged"),
        ("a.idx", HEADER.size + 32, struct.pack("<Q", 9), r"a\.idx: the offsets are damaged"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, start: int, content: bytes, message: str) -> None:
    write(tmp_path / "a", [SENTENCES])
    with (tmp_path / name).open("r+b") as file:
        file.seek(start)
        file.write(content)
    with pytest.raises(UserError, match=rf"{message}.*; run nmt-preprocess again"):
        TokenFile(tmp_path / "a")


@pytest.mark.parametrize("size", [0, 10, HEADER.size, 71])
def test_a_short_index_is_refused(tmp_path: Path, size: int) -> None:
    write(tmp_path / "a", [SENTENCES])
    content = (tmp_path / "a.idx").read_bytes()
    (tmp_path / "a.idx").write_bytes(content[:size])
    with pytest.raises(UserError, match=r"a\.idx: .*; run nmt-preprocess again"):
        TokenFile(tmp_path / "a")


def test_lengths_of_damaged_offsets_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", [SENTENCES])
    with (tmp_path / "a.idx").open("r+b") as file:
        file.seek(HEADER.size + 8)
        file.write(struct.pack("<Q", 9))
    with pytest.raises(UserError, match="the offsets are damaged"):
        TokenFile(tmp_path / "a").lengths[:]


@pytest.mark.parametrize("name", ["a.bin", "a.idx"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a", [SENTENCES])
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=rf"cannot read .*{name}: No such file"):
        TokenFile(tmp_path / "a")

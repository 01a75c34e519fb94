"""The token file and its index."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from nmtkit.data.binary import HEADER, TokenFile, TokenFileWriter, token_type
from nmtkit.errors import UserError
from nmtkit.storage.files import map_file

SENTENCES = [[5, 3], [3], [7, 8, 9, 3], [6, 65_535, 3]]
VOCABULARY = 65_536


def write(stem: Path, blocks: list[list[list[int]]], vocabulary_size: int = VOCABULARY) -> None:
    with TokenFileWriter(stem, vocabulary_size) as writer:
        for block in blocks:
            tokens = np.array([number for sentence in block for number in sentence], token_type(vocabulary_size))
            writer.write(tokens, np.array([len(sentence) for sentence in block], np.int32))


def opened(stem: Path, vocabulary_size: int = VOCABULARY) -> TokenFile:
    return TokenFile(stem, vocabulary_size)


@pytest.mark.parametrize("vocabulary_size", [65_536, 65_537])
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_sentences_are_read_back_whether_written_in_one_or_two_blocks(
    tmp_path: Path, vocabulary_size: int, cut: int
) -> None:
    sentences = [*SENTENCES[:3], [6, vocabulary_size - 1, 3]]
    write(tmp_path / "a", [sentences[:cut], sentences[cut:]], vocabulary_size)
    file = opened(tmp_path / "a", vocabulary_size)
    assert [file.gather(np.array([number]))[0].tolist() for number in range(len(file))] == sentences
    assert file.lengths(slice(None)).tolist() == [2, 1, 4, 3]
    assert file.lengths(slice(None)).dtype == np.int32
    assert file.tokens == 10


def test_gathering_sentences_equals_reading_them_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "a", [SENTENCES])
    file = opened(tmp_path / "a")
    for chosen in ([2, 0, 3, 3], [1], []):
        tokens, lengths = file.gather(np.array(chosen, np.int64))
        assert tokens.tolist() == [token for number in chosen for token in SENTENCES[number]]
        assert lengths.tolist() == [len(SENTENCES[number]) for number in chosen]
        assert file.lengths(np.array(chosen, np.int64)).tolist() == lengths.tolist()
    assert file.lengths(slice(1, 3)).tolist() == file.lengths(slice(1, 99)).tolist()[:2] == [1, 4]


def test_the_files_have_the_documented_binary_format(tmp_path: Path) -> None:
    write(tmp_path / "a", [SENTENCES])
    assert (tmp_path / "a.bin").read_bytes() == struct.pack("<10H", *(token for ids in SENTENCES for token in ids))
    expected = b"NMTKINDX" + struct.pack("<IIQQ5Q", 1, 2, 4, 10, 0, 2, 3, 7, 10)
    assert (tmp_path / "a.idx").read_bytes() == expected


def test_a_file_without_sentences_is_valid(tmp_path: Path) -> None:
    write(tmp_path / "a", [])
    file = opened(tmp_path / "a")
    assert (len(file), file.tokens, file.lengths(slice(None)).tolist()) == (0, 0, [])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_file_is_mapped_privately_for_file_systems_without_shared_maps(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    with (tmp_path / "file").open("rb") as file, map_file(file):
        maps = Path("/proc/self/maps").read_text().splitlines()
    assert [line.split()[1] for line in maps if line.endswith(str(tmp_path / "file"))] == ["r--p"]


@pytest.mark.parametrize(
    ("name", "start", "content", "message"),
    [
        ("a.idx", 0, b"fairseq!", r"a\.idx is damaged, or of a different version"),
        ("a.idx", 8, struct.pack("<I", 2), r"a\.idx is damaged, or of a different version"),
        ("a.idx", 12, struct.pack("<I", 3), r"a\.idx is damaged"),
        ("a.idx", 16, struct.pack("<Q", 5), r"a\.idx is damaged"),
        ("a.idx", 24, struct.pack("<Q", 11), r"a\.idx is damaged"),
        ("a.idx", HEADER.size + 8, struct.pack("<Q", 9), r"a\.idx: the offsets are damaged"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, start: int, content: bytes, message: str) -> None:
    write(tmp_path / "a", [SENTENCES])
    with (tmp_path / name).open("r+b") as file:
        file.seek(start)
        file.write(content)
    with pytest.raises(UserError, match=rf"{message}.*; run nmt-preprocess again"):
        opened(tmp_path / "a").lengths(slice(None))


@pytest.mark.parametrize("size", [0, 10, HEADER.size])
def test_a_truncated_index_is_refused(tmp_path: Path, size: int) -> None:
    write(tmp_path / "a", [SENTENCES])
    os.truncate(tmp_path / "a.idx", size)
    with pytest.raises(UserError, match=r"a\.idx.*; run nmt-preprocess again"):
        opened(tmp_path / "a")


@pytest.mark.parametrize(("forged", "sentence"), [({1: -1}, 1), ({2: 2}, 1), ({2: 10**12, 3: 10**12 + 3}, 2)], ids=str)
def test_forged_offsets_are_refused_by_every_read(tmp_path: Path, forged: dict[int, int], sentence: int) -> None:
    write(tmp_path / "a", [SENTENCES])
    with (tmp_path / "a.idx").open("r+b") as index:
        for place, offset in forged.items():
            index.seek(HEADER.size + 8 * place)
            index.write(struct.pack("<q", offset))
    file = opened(tmp_path / "a")
    for read in (file.gather, file.lengths):
        with pytest.raises(UserError, match="the offsets are damaged"):
            read(np.array([sentence]))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([5, 3, 3], "sentence 1 has </s> inside"),
        ([5, 0, 3], "sentence 1 has <pad> inside"),
        ([5, 6, 7], "sentence 1 does not end with </s>"),
        ([5, 10, 3], "sentence 1 has the id 10, the vocabulary has 10 entries"),
    ],
)
def test_invalid_sentences_are_refused_by_writer_and_reader(tmp_path: Path, ids: list[int], message: str) -> None:
    sentences = [[4, 3], ids, [1, 1, 9, 3]]
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "refused", [sentences], 10)
    write(tmp_path / "a", [[[4, 3], [5, 6, 3], [1, 1, 9, 3]]], 10)
    with (tmp_path / "a.bin").open("r+b") as file:
        file.seek(4)
        file.write(struct.pack("<3H", *ids))
    reader = opened(tmp_path / "a", 10)
    assert reader.gather(np.array([2, 0, 2]))[0].tolist() == [1, 1, 9, 3, 4, 3, 1, 1, 9, 3]
    with pytest.raises(UserError, match=rf"a\.bin: {message}; run nmt-preprocess again"):
        reader.gather(np.array([0, 2, 1, 0]))

"""The file of a shortlist: what it contains, and that damaged or foreign ones are refused."""

import hashlib
import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nmtkit.errors import UserError
from nmtkit.inference.shortlist import MAGIC, Shortlist, fingerprint
from nmtkit.text.vocabulary import EOS, SPECIALS, UNK, Vocabulary

SOURCE = Vocabulary([*SPECIALS, "a", "b"])
TARGET = Vocabulary([*SPECIALS, *"uvwxyz"])


def shortlist() -> Shortlist:
    offsets, translations = np.array([0, 0, 0, 0, 1, 3, 4]), np.array([9, 5, 7, 6], dtype=np.int32)
    return Shortlist(offsets, translations, np.array([4], dtype=np.int32), len(TARGET), fingerprint(SOURCE, TARGET))


def content() -> bytes:
    file = io.BytesIO()
    shortlist().write(file)
    return file.getvalue()


def with_checksum(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


def read(tmp_path: Path, content: bytes, target: Vocabulary = TARGET) -> Shortlist:
    (tmp_path / "lexicon").write_bytes(content)
    return Shortlist.read(tmp_path / "lexicon", SOURCE, target)


def test_a_sentence_gets_its_translations_the_frequent_and_the_required_ids(tmp_path: Path) -> None:
    same = read(tmp_path, content())
    assert same.tokens([4, 5, 4, EOS], required=[8]).tolist() == [UNK, EOS, 4, 5, 6, 7, 8, 9]
    assert same.tokens([5, EOS]).tolist() == [UNK, EOS, 4, 6, 9]
    assert same.tokens([UNK]).tolist() == [UNK, EOS, 4]


def at(position: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """Forge a number of the file, with a new checksum."""

    def forge(content: bytes) -> bytes:
        size = struct.calcsize(form)
        return with_checksum(content[:position] + struct.pack(form, value) + content[position + size : -32])

    return forge


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-1],
    "another format": lambda content: b"X" + content[1:],
    "a flipped bit": lambda content: content[:70] + bytes([content[70] ^ 1]) + content[71:],
    "appended bytes": lambda content: with_checksum(content[:-32] + bytes(4)),
    "a later version": at(len(MAGIC), "<I", 2),
    "other source pieces": at(12, "<I", 7),
    "many translations": at(20, "<Q", 2**64 - 1),
    "an id beyond the vocabulary": at(60 + 7 * 8, "<I", len(TARGET)),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_forged_files_are_refused_in_one_line_that_names_them(forge: Callable[[bytes], bytes], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lexicon.*nmt-export --to shortlist") as error:
        read(tmp_path, forge(content()))
    assert "\n" not in str(error.value)


def test_a_shortlist_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vocabulary"):
        read(tmp_path, content(), Vocabulary([*SPECIALS, *"uvwxzy"]))


def test_missing_files_and_devices_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, Path("/dev/zero")):
        with pytest.raises(UserError):
            Shortlist.read(path, SOURCE, TARGET)

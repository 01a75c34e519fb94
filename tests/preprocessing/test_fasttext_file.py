"""Files of --langid-model that are damaged or forged."""

import struct
from pathlib import Path

import pytest
from fasttext_models import HEADER, classifier

from nmtkit.preprocessing.fasttext_file import check_classifier


def reason(path: Path, content: bytes) -> str:
    """Why a file is refused."""
    path.write_bytes(content)
    try:
        check_classifier(path)
    except ValueError as error:
        return str(error)
    raise AssertionError("the file is accepted")


@pytest.mark.parametrize("quantized", [False, True])
def test_a_classifier_is_accepted(quantized: bool, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(classifier(quantized))
    check_classifier(tmp_path / "model")


@pytest.mark.parametrize("quantized", [False, True])
def test_a_truncated_file_or_one_with_appended_bytes_is_refused(quantized: bool, tmp_path: Path) -> None:
    content = classifier(quantized)
    for end in [*range(8, 200), *range(len(content) - 100, len(content))]:
        assert reason(tmp_path / "model", content[:end]).startswith(("truncated: ", "damaged: "))
    assert reason(tmp_path / "model", content[:-30]).startswith(f"truncated: {len(content) - 30} bytes instead of")
    assert "bytes instead of" in reason(tmp_path / "model", content + b"more")
    assert reason(tmp_path / "model", b"") == "empty"
    assert reason(tmp_path / "model", content[:7]) == "not a fastText model"


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(
    ("name", "number", "expected"),
    [
        ("magic", 1, "not a fastText model"),
        ("version", 13, "not a fastText model"),
        ("model", 1, "does not classify text"),
        ("loss", 9, "does not classify text"),
        ("dim", 2**31 - 1, "wrong size of a matrix"),
        ("dim", -4, "wrong sizes in the header"),
        ("bucket", 2**31 - 1, "wrong size of a matrix"),
        ("bucket", 0, "wrong number of n-grams"),
        ("maxn", 2**31 - 1, "wrong lengths of n-grams"),
        ("word_ngrams", 2**31 - 1, "wrong lengths of n-grams"),
        ("size", 2**31 - 1, "wrong size of the dictionary"),
        ("words", 3, "wrong size of the dictionary"),
        ("labels", -1, "wrong size of the dictionary"),
    ],
)
def test_a_forged_number_is_refused(quantized: bool, name: str, number: int, expected: str, tmp_path: Path) -> None:
    assert expected in reason(tmp_path / "model", classifier(quantized, **{name: number}))


def test_a_number_of_words_beyond_the_end_of_the_file_is_refused(tmp_path: Path) -> None:
    content = classifier(words=2**31 - 3, labels=2, size=2**31 - 1)
    assert reason(tmp_path / "model", content) == "damaged: wrong entry of a word"


def test_word_ngrams_without_buckets_are_refused(tmp_path: Path) -> None:
    """fastText divides by this number before it looks whether pruning has left any n-gram."""
    sizes = {"minn": 0, "maxn": 0, "pruned": 0}
    assert reason(tmp_path / "model", classifier(True, **sizes, bucket=0, word_ngrams=2)).endswith("number of n-grams")
    for rest in ({"bucket": 0, "word_ngrams": 1}, {"bucket": 1, "word_ngrams": 2}):
        (tmp_path / "model").write_bytes(classifier(True, **sizes, **rest))
        check_classifier(tmp_path / "model")


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -3e38])
def test_a_weight_with_which_scores_overflow_is_refused(weight: float, tmp_path: Path) -> None:
    content = classifier()
    assert reason(tmp_path / "model", content[:-4] + struct.pack("<f", weight)) == "damaged: wrong weight"


def test_a_label_that_is_not_utf8_is_refused_but_a_word_may_be_so(tmp_path: Path) -> None:
    content = classifier()
    damaged = content.replace(b"__label__de", b"__label__\xff\xfe")
    assert reason(tmp_path / "model", damaged) == "damaged: wrong encoding of a label"
    (tmp_path / "model").write_bytes(content.replace(b"der", b"de\xff"))
    check_classifier(tmp_path / "model")


def test_the_entries_of_the_dictionary_are_checked(tmp_path: Path) -> None:
    content = bytearray(classifier())
    first_count = HEADER.size + struct.calcsize("<3i2q") + len(b"the") + 1
    content[first_count : first_count + 8] = struct.pack("<q", -1)
    assert reason(tmp_path / "model", bytes(content)) == "damaged: wrong entry of a word"

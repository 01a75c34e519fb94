"""Text to ids and back."""

import io
import pickle
import random
from typing import Any
from unicodedata import normalize

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from nmtkit.errors import UserError
from nmtkit.text.spm_model import INVISIBLE_KEPT
from nmtkit.text.spm_training import train_sentencepiece
from nmtkit.text.tokenizer import (
    KINDS,
    SENTENCEPIECE,
    SentencePieceTokenizer,
    SpaceTokenizer,
    Tokenizer,
    _surfaces,
    make_tokenizer,
)
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary

WORDS = "der die das hund katze läuft rennt über straße ein eine kleiner großer schnell und"
TEXT = [" ".join(random.Random(seed).choices(WORDS.split(), k=7)) for seed in range(150)]


def train(**changed: Any) -> bytes:
    settings: dict[str, Any] = {"model_type": "bpe", "character_coverage": 1.0, "byte_fallback": False, "threads": 2}
    return train_sentencepiece(TEXT, **({"vocab_size": 40} | settings | changed))


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_sentencepiece_decoding_inverts_encoding(model_type: str) -> None:
    tokenizer = SentencePieceTokenizer(train(model_type=model_type))
    encoded = tokenizer.encode(TEXT)
    assert [tokenizer.decode(ids) for ids in encoded] == TEXT
    assert min(min(ids) for ids in encoded) >= len(SPECIALS)
    assert max(max(ids) for ids in encoded) < len(tokenizer.vocab) == 40


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_training_twice_gives_the_same_bytes(model_type: str) -> None:
    assert train(model_type=model_type) == train(model_type=model_type)


def test_lines_that_sentencepiece_leaves_out_as_too_long_are_learned_in_parts() -> None:
    settings: dict[str, Any] = {"model_type": "bpe", "character_coverage": 1.0, "byte_fallback": False, "threads": 2}
    apart = train_sentencepiece(TEXT * 3, vocab_size=40, **settings)
    together = train_sentencepiece([" ".join(TEXT * 3)], vocab_size=40, **settings)
    assert len(" ".join(TEXT * 3)) > 10_000
    pieces = [SentencePieceTokenizer(model).vocab.pieces for model in (apart, together)]
    assert pieces[0] == pieces[1]


def test_blank_lines_have_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(["", "   ", "\ufeff"]) == [[], [], []]
    assert tokenizer.decode([]) == ""


def test_bytes_that_are_no_character_have_a_surface() -> None:
    assert _surfaces(["▁a", "<0xE2>", "b", "<0xFF>", "<0xE2>", "<0x82>", "<0xAC>"]) == [
        " a", "\ufffd", "b", "\ufffd", "", "", "€",
    ]  # fmt: skip
    assert _surfaces(["<0xE2>", "<0x82>"]) == ["", "\ufffd"]


def test_a_character_encoded_as_byte_pieces_appears_once_in_the_surfaces(tokenizer: Tokenizer) -> None:
    text = "the 犬猫é dog"
    (ids,) = tokenizer.encode([text])
    added = tokenizer.surfaces(ids)
    assert len(added) == len(ids)
    assert "".join(added).lstrip(" ") == text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("hu\u00adnd\u2060 \u200eka\u200ctze\u202c", "hund katze"),
        ("می\u200cخواهم", None),
        ("☺\ufe0f 👩\u200d🔬 1\ufe0f\u20e3", None),
        ("葛\U000e0100 a\ufe0f", "葛 a"),
    ],
)
def test_invisible_characters_are_dropped_except_where_they_are_needed(text: str, kept: str | None) -> None:
    for keep, expected in ((False, kept or text), (True, text)):
        model = train(byte_fallback=True, vocab_size=340, keep_invisible=keep)
        tokenizer = SentencePieceTokenizer(model)
        assert tokenizer.decode(tokenizer.encode([text])[0]) == expected


@pytest.mark.parametrize(
    ("normalization", "text"),
    [
        ("identity", "e\u0301 ½ Ａ"),
        ("nfc", "e\u0301 ½ Ａ o\u0302\u0323 \u212b " + normalize("NFD", "각")),
        ("nfkc", "e\u0301 ½ Ａ"),
    ],
)
def test_text_is_normalized_as_the_model_records(normalization: str, text: str) -> None:
    tokenizer = SentencePieceTokenizer(train(byte_fallback=True, vocab_size=340, normalization=normalization))
    expected = {"identity": text, "nfc": normalize("NFC", text), "nfkc": normalize("NFKC", text)}[normalization]
    assert tokenizer.decode(tokenizer.encode([text])[0]) == expected


def test_bytes_that_spell_no_character_are_not_written() -> None:
    tokenizer = SentencePieceTokenizer(train(byte_fallback=True, vocab_size=340))
    (hund,) = tokenizer.encode(["hund"])
    broken, euro = (
        tokenizer.vocab.to_ids(f"<0x{byte:02X}>" for byte in spelled) for spelled in (b"\xe3\x81", "€".encode())
    )
    assert tokenizer.decode([*broken, *hund, *broken, *hund, *euro, *broken[:1]]) == "hund hund€"


def test_the_error_for_a_small_vocabulary_names_the_smallest_that_works() -> None:
    with pytest.raises(UserError, match="too small for this text: use at least") as error:
        train(byte_fallback=True, vocab_size=100)
    smallest = int(str(error.value).split()[-1])
    assert len(SentencePieceTokenizer(train(byte_fallback=True, vocab_size=smallest)).vocab) == smallest


def test_without_byte_fallback_an_unseen_character_is_unknown() -> None:
    (ids,) = SentencePieceTokenizer(train()).encode(["hund 日"])
    assert ids[-1] == UNK


def test_the_names_of_special_tokens_are_encoded_as_ordinary_text(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode(["<pad> </s> <s>"])
    assert tokenizer.decode(ids) == "<pad> </s> <s>"
    assert min(ids) >= len(SPECIALS)


def test_a_model_with_other_special_ids_is_mapped_to_the_standard_ids(tmp_path: Any) -> None:
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_prefix=str(tmp_path / "other"), vocab_size=40, minloglevel=2
    )  # SentencePiece's own defaults: <unk> 0, <s> 1, </s> 2, no padding
    model = (tmp_path / "other.model").read_bytes()
    tokenizer, reference = SentencePieceTokenizer(model), SentencePieceProcessor(model_proto=model)
    encoded = tokenizer.encode([*TEXT, "日"])
    assert [tokenizer.vocab.to_pieces(ids) for ids in encoded[:-1]] == [
        reference.encode(line, out_type=str) for line in TEXT
    ]
    assert [tokenizer.decode(ids) for ids in encoded[:-1]] == TEXT
    assert encoded[-1][-1] == UNK
    assert len(tokenizer.vocab) == 40 + 1


# How other people number and name their pieces. SentencePiece's own defaults: <unk> 0, <s> 1, </s> 2, no padding.
ID_ORDERS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "unknown fourth": {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
    "our order and a control symbol": {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "control_symbols": ["<c>"]},
    "only the unknown piece, fourth": {"bos_id": -1, "eos_id": -1, "user_defined_symbols": ["<1>", "<2>", "<3>"]},
    "control and user-defined symbols": {"control_symbols": ["<c>"], "user_defined_symbols": ["<2de>", "<2fr>"]},
    "other names": {"unk_piece": "<?>", "bos_piece": "<pad>", "eos_piece": "[E]", "pad_id": 3, "pad_piece": "<s>"},
    "bytes and padding": {"byte_fallback": True, "vocab_size": 300, "pad_id": 3},
}
STRANGE = ["hund 猫 katze", "猫", "<c> <2de>hund<2fr>", " ".join(SPECIALS), "<?> [E] ⁇ <0x41> \0\x7f\u2028 \U0010ffff"]


def foreign_model(model_type: str, **changed: Any) -> bytes:
    """A model trained by SentencePiece itself, without nmtkit's choices."""
    settings: dict[str, Any] = {"vocab_size": 45, "hard_vocab_limit": False, "model_type": model_type, "minloglevel": 2}
    content = io.BytesIO()
    SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=content, **(settings | changed))
    return content.getvalue()


def check_ids(model: bytes) -> None:
    """Hold each id against the piece that SentencePiece gives for it."""
    tokenizer = SentencePieceTokenizer(model + INVISIBLE_KEPT)
    reference = SentencePieceProcessor(model_proto=model)
    random_lines = ["".join(random.Random(seed).choices("dehuns 猫ß<>/2c▁\t", k=30)) for seed in range(50)]
    for line in [*TEXT[:50], *STRANGE, *random_lines, *(reference.id_to_piece(i) for i in range(len(reference)))]:
        raw = reference.encode(line)
        (ids,) = tokenizer.encode([line])
        assert not {PAD, BOS, EOS} & set(ids)
        pieces = [None if reference.is_unknown(i) else reference.id_to_piece(i) for i in raw]
        assert [None if i == UNK else tokenizer.vocab.pieces[i] for i in ids] == pieces
        assert tokenizer.decode(ids) == reference.decode(raw).replace("\n", " ").replace("\r", " ")


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("order", ID_ORDERS)
def test_an_unknown_piece_is_unk_for_any_order_of_special_ids(order: str, model_type: str) -> None:
    check_ids(foreign_model(model_type, **ID_ORDERS[order]))


@pytest.mark.parametrize("name", ["<pad>", "<unk>"])
def test_a_model_with_text_pieces_named_like_special_ids_is_refused(name: str) -> None:
    model = foreign_model("bpe", user_defined_symbols=[name], unk_piece="<?>")
    with pytest.raises(
        UserError, match=rf"its piece '{name}' is ordinary text, but nmtkit needs that name for a special symbol"
    ):
        SentencePieceTokenizer(model)


def test_a_tokenizer_can_be_sent_to_another_process(tokenizer: Tokenizer) -> None:
    assert pickle.loads(pickle.dumps(tokenizer)).encode(TEXT) == tokenizer.encode(TEXT)


@pytest.mark.parametrize("content", [b"", b"no model at all"])
def test_a_file_that_is_not_a_sentencepiece_model_is_refused(content: bytes) -> None:
    with pytest.raises(UserError, match="not a SentencePiece model"):
        SentencePieceTokenizer(content)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_a_text_too_small_for_the_vocabulary_is_refused_with_the_largest_size(model_type: str) -> None:
    with pytest.raises(
        UserError, match=r"^--vocab-size 30000: SentencePiece failed: .*Please set it to a value <= \d+"
    ):
        train(model_type=model_type, vocab_size=30_000)


def test_decoding_joins_segmented_text() -> None:
    tokenizer = SpaceTokenizer(Vocabulary([*SPECIALS, "Stra@@", "ße", "ein"]))
    encoded = tokenizer.encode(["ein Stra@@ ße", " ein  haus ", "", "</s>"])
    assert encoded == [[6, 4, 5], [6, UNK], [], [UNK]]
    assert tokenizer.decode(encoded[0]) == "ein Straße"
    assert tokenizer.decode([6, 4]) == "ein Stra"


@pytest.mark.parametrize("kind", ["", "bpe"])
def test_an_unknown_tokenizer_is_refused_and_named(tokenizer: Tokenizer, kind: str) -> None:
    with pytest.raises(UserError, match=rf"unknown tokenizer '{kind}': known kinds are {', '.join(KINDS)}"):
        make_tokenizer(kind, tokenizer.vocab, tokenizer.model)


def test_a_vocabulary_that_does_not_fit_its_model_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="model does not match the vocabulary"):
        make_tokenizer(SENTENCEPIECE, Vocabulary(tokenizer.vocab.pieces[:-1]), tokenizer.model)


def test_a_line_alone_has_the_pieces_that_it_has_in_a_list(tokenizer: Tokenizer) -> None:
    lines = ["a dog", "", "two  dogs run", "a dog"] * 9
    assert tokenizer.encode(lines) == [tokenizer.encode([line])[0] for line in lines]


def test_a_piece_with_a_line_feed_is_refused() -> None:
    with pytest.raises(UserError, match=r"piece '\\n' contains a line feed, which a vocabulary file cannot store"):
        Vocabulary([*SPECIALS, "a", "\n"])

"""Text to ids and back."""

import io
import pickle
import random
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from nmtkit.errors import UserError
from nmtkit.text.spm_model import PieceType, _fields
from nmtkit.text.tokenizer import (
    KINDS,
    SENTENCEPIECE,
    SPACE,
    SentencePieceTokenizer,
    SentencePieceVocabTokenizer,
    SpaceTokenizer,
    Tokenizer,
    _surfaces,
    make_tokenizer,
    train_sentencepiece,
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


def test_a_long_line_without_spaces_is_learned_whole() -> None:
    line = "".join(chr(0x4E00 + number % 50) for number in range(5000)) + "末"
    settings: dict[str, Any] = {"model_type": "bpe", "character_coverage": 1.0, "byte_fallback": False, "threads": 2}
    tokenizer = SentencePieceTokenizer(train_sentencepiece([f"x{line}"], vocab_size=70, **settings))
    assert UNK not in tokenizer.encode(["x一末"])[0]


def test_blank_lines_have_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(["", "   ", "\t"]) == [[], [], []]
    assert tokenizer.decode([]) == ""


def test_byte_fallback_encodes_every_character(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode(["日本 \U0001f600"])
    assert UNK not in ids
    assert tokenizer.decode(ids) == "日本 \U0001f600"


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
    "defaults and padding": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": 3},
    "unknown fourth": {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
    "unknown third": {"pad_id": 0, "bos_id": 1, "unk_id": 2, "eos_id": 3},
    "our order": {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
    "our order and a control symbol": {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "control_symbols": ["<c>"]},
    "no beginning and no end": {"bos_id": -1, "eos_id": -1},
    "only the unknown piece, fourth": {"bos_id": -1, "eos_id": -1, "user_defined_symbols": ["<1>", "<2>", "<3>"]},
    "control and user-defined symbols": {"control_symbols": ["<c>"], "user_defined_symbols": ["<2de>", "<2fr>"]},
    "other names": {"unk_piece": "<?>", "bos_piece": "<pad>", "eos_piece": "[E]", "pad_id": 3, "pad_piece": "<s>"},
    "bytes": {"byte_fallback": True, "vocab_size": 300},
    "bytes and padding": {"byte_fallback": True, "vocab_size": 300, "pad_id": 3},
}
STRANGE = ["hund 猫 katze", "猫", "<c> <2de>hund<2fr>", " ".join(SPECIALS), "<?> [E] ⁇ <0x41> \0\x7f\u2028 \U0010ffff"]


def foreign_model(model_type: str, **changed: Any) -> bytes:
    """A model trained by SentencePiece itself, without nmtkit's choices."""
    settings: dict[str, Any] = {"vocab_size": 45, "hard_vocab_limit": False, "model_type": model_type, "minloglevel": 2}
    content = io.BytesIO()
    SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=content, **(settings | changed))
    return content.getvalue()


def with_kind(model: bytes, kind: PieceType, pieces: set[int]) -> bytes:
    """The model with another kind for some of its pieces; in a protocol buffer the last value of a field counts."""

    def varint(number: int) -> bytes:
        return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)

    content, piece = b"", 0
    for number, value in _fields(model):
        if number == 1:
            value += bytes([3 << 3, kind]) * (piece in pieces)
            piece += 1
        content += varint(number << 3 | 2) + varint(len(value)) + value
    return content


def check_ids(model: bytes) -> None:
    """Hold each id against the piece that SentencePiece gives for it."""
    tokenizer, reference = SentencePieceTokenizer(model), SentencePieceProcessor(model_proto=model)
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


@pytest.mark.parametrize("kind", [PieceType.UNUSED, PieceType.CONTROL])
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_unused_and_control_pieces_are_never_encoded(model_type: str, kind: PieceType) -> None:
    check_ids(with_kind(foreign_model(model_type, pad_id=3), kind, set(range(4, 45, 3))))


@pytest.mark.parametrize("name", ["<pad>", "<s>", "</s>", "<unk>"])
def test_a_model_with_text_pieces_named_like_special_ids_is_refused(name: str) -> None:
    model = foreign_model("bpe", user_defined_symbols=[name], unk_piece="<?>")
    with pytest.raises(
        UserError, match=rf"its piece '{name}' is ordinary text, but nmtkit needs that name for a special symbol"
    ):
        SentencePieceTokenizer(model)


def test_a_piece_with_a_line_feed_is_refused() -> None:
    with pytest.raises(UserError, match=r"piece '\\n' has a line feed, which a vocabulary file cannot hold"):
        Vocabulary([*SPECIALS, "a", "\n"])


def test_a_tokenizer_can_be_sent_to_another_process(tokenizer: Tokenizer) -> None:
    assert pickle.loads(pickle.dumps(tokenizer)).encode(TEXT) == tokenizer.encode(TEXT)


@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x00" * 100])
def test_a_file_that_is_not_a_sentencepiece_model_is_refused(content: bytes) -> None:
    with pytest.raises(UserError, match="not a SentencePiece model"):
        SentencePieceTokenizer(content)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_a_text_too_small_for_the_vocabulary_is_refused_with_the_largest_size(model_type: str) -> None:
    with pytest.raises(
        UserError, match=r"^--vocab-size 30000: SentencePiece failed: .*Please set it to a value <= \d+"
    ):
        train(model_type=model_type, vocab_size=30_000)


def test_a_vocabulary_too_small_for_the_characters_is_refused() -> None:
    with pytest.raises(UserError, match="--vocab-size 10: SentencePiece failed: Vocabulary size is smaller"):
        train(vocab_size=10)


def test_only_option_names_are_changed_in_sentencepiece_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError(
            "INTERNAL: a.cc(1) [x] required_chars. Increase vocab_size or use --character_coverage for a_b"
        )

    monkeypatch.setattr(SentencePieceTrainer, "train", refuse)
    with pytest.raises(UserError, match=r"required_chars\. Increase --vocab-size or use --character-coverage for a_b$"):
        train(vocab_size=10)


def test_decoding_joins_segmented_text() -> None:
    tokenizer = SpaceTokenizer(Vocabulary([*SPECIALS, "Stra@@", "ße", "ein"]))
    encoded = tokenizer.encode(["ein Stra@@ ße", " ein  haus ", "", "</s>"])
    assert encoded == [[6, 4, 5], [6, UNK], [], [UNK]]
    assert tokenizer.decode(encoded[0]) == "ein Straße"
    assert tokenizer.decode([6, 4]) == "ein Stra"


def test_a_tokenizer_is_remade_from_its_parts(tokenizer: Tokenizer) -> None:
    again = make_tokenizer(SENTENCEPIECE, tokenizer.vocab, tokenizer.model)
    assert again.encode(TEXT) == tokenizer.encode(TEXT)
    space = make_tokenizer(SPACE, tokenizer.vocab, b"")
    assert (space.kind, space.vocab) == (SPACE, tokenizer.vocab)


@pytest.mark.parametrize("kind", ["", "Space", "sentencepiece2", "bpe"])
def test_an_unknown_tokenizer_is_refused_and_named(tokenizer: Tokenizer, kind: str) -> None:
    with pytest.raises(UserError, match=rf"unknown tokenizer '{kind}', only {', '.join(KINDS)} are known"):
        make_tokenizer(kind, tokenizer.vocab, tokenizer.model)


def test_a_vocabulary_that_does_not_fit_its_model_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="do not belong together"):
        make_tokenizer(SENTENCEPIECE, Vocabulary(tokenizer.vocab.pieces[:-1]), tokenizer.model)


def test_an_unpaired_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="lone surrogate"):
        tokenizer.encode(["a dog", "\ud800"])


def test_a_model_with_a_piece_that_is_not_utf8_is_refused() -> None:
    piece = b"\x0a\x02\xff\xfe\x15\x00\x00\x00\x00"  # field 1, the text; field 2, the score
    model = train() + b"\x0a" + bytes([len(piece)]) + piece
    with pytest.raises(UserError, match="a piece that is not UTF-8"):
        SentencePieceTokenizer(model)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (b"\xea\x02\x01a", "without a piece for unknown text"),  # field 45, the name of the unknown piece
        (b"\xe2\x02\x01\xff", "a piece that is not UTF-8"),  # field 44, the text of the unknown piece
    ],
)
def test_a_model_with_an_unusable_unknown_piece_is_refused(setting: bytes, message: str) -> None:
    model = train() + b"\x12" + bytes([len(setting)]) + setting  # joined with the settings of its training
    with pytest.raises(UserError, match=message):
        SentencePieceTokenizer(model)


def test_a_model_whose_rules_make_text_that_is_not_utf8_is_refused_when_used() -> None:
    damaged = train().replace("1⁄2".encode(), b"1\xff\xff\xff2")  # the rule for ½
    tokenizer = SentencePieceVocabTokenizer(Vocabulary([*SPECIALS, "a"]), damaged)
    assert len(tokenizer.encode(["a dog"])) == 1
    with pytest.raises(UserError, match="make text that is not UTF-8"):
        tokenizer.encode(["½"])

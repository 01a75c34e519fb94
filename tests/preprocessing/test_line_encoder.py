"""Lines are encoded by the words in them where that gives SentencePiece's ids, and as a whole elsewhere."""

import io
import pickle
import random
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from nmtkit.preprocessing import line_encoder
from nmtkit.preprocessing.line_encoder import LineEncoder, make_line_encoders
from nmtkit.text.spm_model import append_user_symbols, encodes_words_apart
from nmtkit.text.tokenizer import SentencePieceTokenizer, SentencePieceVocabTokenizer, SpaceTokenizer, Tokenizer
from nmtkit.text.vocabulary import EOS, SPECIALS, Vocabulary

LINE = "the big dog über straße läuft 犬が走る ｆｕｌｌ ﬁne naïve isn't 3.14 — … don`t Ωmega école"
WORDS = LINE.split()
# Spaces of all kinds, characters that normalize to spaces or to nothing, combining marks, symbols, unknown characters.
HOSTILE = [
    *("", " ", "  ", "\t", "\u00a0", "\u3000", "\u200b", "\ufeff", "\u00ad", "´", "¨", "΅", "\u0301", "\u0308", "\r"),
    *("▁", "a▁", "▁b", "▁▁", "<2de>", "x<2de>y", "<unk>", "<s>", "</s>", "<0x41>", "\x00", "\x01\x7f", "ab\u0000c"),
    *("𝔘𝔫𝔦", "🙂", "🙂🙂", "\U0010ffff", "ﷺ", "㌀", "ｶﾞ", "e\u0301", "e \u0301", ">>de<<", ">>a", "b<<", "@@", "ſ", "K"),
]
compiled = pytest.mark.skipif(find_spec("nmtkit._words") is None, reason="the cache of words is not compiled")
SMALL = {"vocab_size": 120, "character_coverage": 0.98, "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
SEPARABLE: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe"},
    "char": {"model_type": "char"},
    "byte fallback": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 400},
    "user symbols": {"model_type": "bpe", "user_defined_symbols": ["<2de>", "b", "▁the"]},
    "identity": {"model_type": "bpe", "normalization_rule_name": "identity"},
    "nfkc": {"model_type": "bpe", "normalization_rule_name": "nfkc"},
    "case folding": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf"},
    "split flags off": {"model_type": "bpe", "split_by_unicode_script": False, "split_by_number": False},
}
INSEPARABLE: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram"},
    "word": {"model_type": "word"},
    "pieces across words": {"model_type": "bpe", "split_by_whitespace": False},
    "▁ after words": {"model_type": "bpe", "treat_whitespace_as_suffix": True},
    "no prefix": {"model_type": "bpe", "add_dummy_prefix": False},
    "kept spaces": {"model_type": "bpe", "remove_extra_whitespaces": False},
    "symbol with space": {"model_type": "bpe", "user_defined_symbols": ["big dog"]},
    "symbol across words": {"model_type": "bpe", "user_defined_symbols": ["g▁d"]},
}


def hostile_lines(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [
        draw.choice(["", " ", "\t"])
        + draw.choice([" ", "", "  "]).join(draw.choices(WORDS + HOSTILE, k=draw.randint(0, 9)))
        for _ in range(count)
    ]


def train(tmp_path: Any = None, **options: Any) -> bytes:
    draw, content = random.Random(1), io.BytesIO()
    lines = [" ".join(draw.choices(WORDS, k=8)) for _ in range(300)]
    options = {**SMALL, "hard_vocab_limit": False, "minloglevel": 2, **options}
    if options["model_type"] in ("char", "word"):
        options["use_all_vocab"] = True
    SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=content, **options)
    return content.getvalue()


def assert_same_ids(encoder: LineEncoder, tokenizer: Tokenizer, lines: Sequence[str]) -> None:
    expected = [[*ids, EOS] for ids in tokenizer.encode(lines)]
    tokens, lengths = encoder("".join(f"{line}\n" for line in lines).encode())
    assert tokens.tolist() == [number for ids in expected for number in ids]
    assert lengths.tolist() == list(map(len, expected))


@pytest.mark.parametrize("name", [*SEPARABLE, *INSEPARABLE])
def test_the_ids_of_hostile_lines_are_those_of_the_tokenizer(name: str) -> None:
    model = train(**(SEPARABLE | INSEPARABLE)[name])
    assert encodes_words_apart(model) == (name in SEPARABLE)
    tokenizer = SentencePieceTokenizer(model)
    encoder = LineEncoder(tokenizer)
    for seed in range(4):  # from the second block on with cached words
        assert_same_ids(encoder, tokenizer, hostile_lines(1000, seed))


@pytest.mark.parametrize("rule", ["61 20 62\t78", "64\t65 20 65", "7A\t2581"], ids=["reads", "makes", "writes ▁"])
def test_own_rules_of_normalization_give_the_ids_of_the_tokenizer(tmp_path: Any, rule: str) -> None:
    rules = tmp_path / "rules.tsv"
    rules.write_text(f"{rule}\n")
    model = train(model_type="bpe", normalization_rule_tsv=str(rules))
    assert rule.startswith("64") or not encodes_words_apart(model)
    tokenizer = SentencePieceTokenizer(model)
    draw = random.Random(1)
    lines = ["".join(draw.choices("abdz ", k=20)) for _ in range(500)]
    assert_same_ids(LineEncoder(tokenizer), tokenizer, lines)


def test_the_ids_of_other_tokenizers_are_the_same() -> None:
    model = append_user_symbols(train(model_type="bpe"), ["<2fr>"])
    processor = SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(number) for number in range(len(processor))]
    looked_up = Vocabulary([*SPECIALS, ">>de<<", *(piece for piece in pieces[:90] if piece not in SPECIALS)])
    lines = [*hostile_lines(1000, 1), ">>de<< the big dog", ">>a b<< the dog", "<2fr> the <2fr>dog"]
    tokenizers: list[Tokenizer] = [
        SentencePieceTokenizer(model),
        SentencePieceVocabTokenizer(looked_up, model),
        SpaceTokenizer(Vocabulary([*SPECIALS, *WORDS])),
    ]
    for tokenizer in tokenizers:
        encoder = LineEncoder(tokenizer)
        for _ in range(2):
            assert_same_ids(encoder, tokenizer, lines)


class WatchedTokenizer(SpaceTokenizer):
    """Lists what it encodes, and fails for a forbidden word."""

    def __init__(self) -> None:
        super().__init__(Vocabulary([*SPECIALS, *WORDS]))
        self.encoded: list[str] = []

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        self.encoded += lines
        if "forbidden" in lines:
            raise RuntimeError
        return super().encode(lines)


def check_watched(encoder: LineEncoder, lines: Sequence[str]) -> None:
    assert_same_ids(encoder, SpaceTokenizer(encoder.tokenizer.vocab), lines)


@compiled
def test_a_full_cache_keeps_words_that_are_used_and_forgets_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_encoder, "_MAX_CACHE_BYTES", 20_000)
    tokenizer = WatchedTokenizer()
    encoder = LineEncoder(tokenizer)
    for block in range(30):
        check_watched(encoder, [f"dog  {' '.join(f'w{block}x{n}' for n in range(20))} dog", "a-word-of-many-bytes"])
    check_watched(encoder, ["w0x1 w29x1"])
    counts = [tokenizer.encoded.count(word) for word in ("dog", "w0x1", "w29x1", "a-word-of-many-bytes")]
    assert counts == [1, 2, 1, 1]


def test_without_the_compiled_cache_the_ids_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_encoder, "_words", None)
    tokenizer = SentencePieceTokenizer(train(model_type="bpe"))
    assert_same_ids(LineEncoder(tokenizer), tokenizer, hostile_lines(100, 1))


def test_encoders_of_one_tokenizer_are_one_in_another_process_too() -> None:
    tokenizer = SpaceTokenizer(Vocabulary([*SPECIALS, *WORDS]))
    source, target = make_line_encoders(tokenizer, tokenizer)
    check_watched(source, ["the dog"])
    again = pickle.loads(pickle.dumps((source, target)))
    assert source is target
    assert again[0] is again[1]
    check_watched(again[0], ["the big dog"])

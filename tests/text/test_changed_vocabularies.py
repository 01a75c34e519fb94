"""Vocabularies of a trained model that shrink or grow: text keeps its pieces, and each row its former values."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from foreign_tokenizers import ENGLISH, GERMAN, train_model

from nmtkit.checkpoint import Checkpoint
from nmtkit.errors import UserError
from nmtkit.text.changed_vocabularies import trimmed, with_characters, with_symbol
from nmtkit.text.spm_model import SPLIT_SYMBOL, append_symbols
from nmtkit.text.tokenizer import SentencePieceTokenizer, SentencePieceVocabTokenizer, SpaceTokenizer, Tokenizer
from nmtkit.text.user_symbols import add_symbols
from nmtkit.text.vocabulary import BOS, EOS, NEVER_OUTPUT, SPECIALS, UNK, Vocabulary

LINES = [*ENGLISH, *GERMAN]
Make = Callable[..., Checkpoint]


def tokenizer_of(kind: str, model_type: str, byte_fallback: bool) -> Tokenizer:
    """A tokenizer of random words, which include those of LINES, with a vocabulary in another order than the model."""
    words = [word for line in LINES for word in line.split()]
    generator = random.Random(1)
    text = tuple(" ".join(generator.choices(words, k=7)) for _ in range(300))
    size = 420 if byte_fallback else 150
    own = SentencePieceTokenizer(train_model(text, model_type=model_type, byte_fallback=byte_fallback, vocab_size=size))
    if kind == "sentencepiece":
        return own
    others = own.vocab.pieces[len(SPECIALS) :]
    generator.shuffle(others)
    return SentencePieceVocabTokenizer(Vocabulary([*SPECIALS, *others]), own.model)


def pieces(tokenizer: Tokenizer, lines: list[str]) -> list[list[str]]:
    return [tokenizer.vocab.to_pieces(ids) for ids in tokenizer.encode(lines)]


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece-vocab"])
def test_a_trimmed_vocabulary_splits_its_text_as_before_and_other_text_without_unknown_pieces(
    kind: str, model_type: str, byte_fallback: bool
) -> None:
    old = tokenizer_of(kind, model_type, byte_fallback)
    new = trimmed((old, old), [LINES[:2], LINES[2:4]]).tokenizers[0]
    assert len(new.vocab) < len(old.vocab)
    assert pieces(new, LINES[:4]) == pieces(old, LINES[:4])
    for line, before, after in zip(LINES, old.encode(LINES), new.encode(LINES), strict=True):
        assert new.decode(after) == old.decode(before), line
        assert after.count(UNK) == before.count(UNK)


def test_a_trimmed_model_computes_the_same_logits_for_the_pieces_that_are_left(make_checkpoint: Make) -> None:
    for sharing in ("all", "decoder", "none"):
        old = make_checkpoint(share_embeddings=sharing, output_bias=True)
        changed = trimmed((old.source, old.target), [["the dog runs", "der hund läuft"]])
        new = old.with_vocabularies(changed)
        kept = torch.tensor([row for (row,) in changed.rows[0]])
        source = torch.tensor([[*new.source.encode(["the dog runs"])[0], EOS]])
        target = torch.tensor([[BOS, *new.target.encode(["der hund läuft"])[0]]])
        logits = []
        for checkpoint, ids in ((old, kept[source]), (new, source)):
            model = checkpoint.build_model()
            with torch.no_grad():
                memory = model.encode(ids, torch.tensor([ids.size(1)]))
                logits.append(model.project(model.decode(kept[target] if checkpoint is old else target, memory)))
        used = [number for number in range(len(kept)) if number not in NEVER_OUTPUT]
        torch.testing.assert_close(logits[1][..., used], logits[0][..., kept[used]], rtol=0, atol=1e-6)


def test_words_and_vocabularies_of_their_own_are_trimmed_by_side() -> None:
    sides = [SpaceTokenizer(Vocabulary([*SPECIALS, *words])) for words in (("one", "two", "<2de>"), ("zwei", "eins"))]
    changed = trimmed((sides[0], sides[1]), [["two two", "eins"]])
    assert [each.vocab.pieces[4:] for each in changed.tokenizers] == [["two", "<2de>"], ["eins"]]
    assert changed.rows == ([[0], [1], [2], [3], [5], [6]], [[0], [1], [2], [3], [5]])


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece-vocab"])
def test_missing_characters_become_pieces_with_the_mean_of_what_spelled_them(kind: str, byte_fallback: bool) -> None:
    old = tokenizer_of(kind, "bpe", byte_fallback)
    text = ["the dog ጽሑፍ runs", "ጽ the"]
    changed = with_characters((old, old), [text])
    new, other = changed.tokenizers
    assert new is other
    assert sorted(new.vocab.pieces[len(old.vocab) :]) == sorted("ጽሑፍ")
    assert UNK not in new.encode(text)[0]
    assert [new.decode(ids) for ids in new.encode(text)] == text
    assert pieces(new, LINES) == pieces(old, LINES)
    assert changed.rows[0][: len(old.vocab)] == [[number] for number in range(len(old.vocab))]
    for character, group in zip(new.vocab.pieces[len(old.vocab) :], changed.rows[0][len(old.vocab) :], strict=True):
        if byte_fallback:
            assert set(old.vocab.to_pieces(group)) == {f"<0x{byte:02X}>" for byte in character.encode()}
        else:  # the pieces on both sides of the unknown word
            assert {"▁", "▁the"} >= set(old.vocab.to_pieces(group)) or "▁runs" in old.vocab.to_pieces(group)


def test_a_new_row_is_the_mean_of_its_group(make_checkpoint: Make) -> None:
    old = make_checkpoint(output_bias=True)
    old.ema = {name: weight + 1 for name, weight in old.weights.items()}
    changed = with_characters((old.source, old.target), [["ጽ"]])
    new = old.with_vocabularies(changed)
    group = changed.rows[1][-1]
    assert len(group) == 3
    for given, grown in ((old.weights, new.weights), (old.ema, new.ema)):
        assert given is not None
        assert grown is not None
        for name in ("target_embedding.weight", "projection_bias"):
            np.testing.assert_array_equal(grown[name][:-1], given[name])
            np.testing.assert_allclose(grown[name][-1], given[name][group].mean(axis=0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_split_symbol", [False, True])
def test_a_new_symbol_splits_text_as_a_similar_one_and_has_its_row(is_split_symbol: bool) -> None:
    old = tokenizer_of("sentencepiece-vocab", "bpe", byte_fallback=False)
    if is_split_symbol:
        vocabulary = Vocabulary([*old.vocab.pieces, "<2de>"])
        old = SentencePieceVocabTokenizer(vocabulary, append_symbols(old.model, SPLIT_SYMBOL, ["<2de>"]))
    else:
        old, _ = add_symbols((old, old), ["<2de>"])
    changed = with_symbol((old, old), "<2nl>", "<2de>")
    new = changed.tokenizers[0]
    assert pieces(new, ["<2nl> the dog"]) == [[each.replace("de", "nl") for each in pieces(old, ["<2de> the dog"])[0]]]
    assert changed.rows[1][len(old.vocab) :] == [old.vocab.to_ids(["<2de>"])]
    for symbol, like, fault in (("<2de>", "<2de>", "already a piece"), ("<2nl>", "<2xx>", "its symbols are <2de>")):
        with pytest.raises(UserError, match=fault):
            with_symbol((old, old), symbol, like)


def test_a_vocabulary_of_codes_alone_is_not_changed(make_checkpoint: Make) -> None:
    old = make_checkpoint()
    with pytest.raises(UserError, match="cannot be changed"):
        with_characters((SpaceTokenizer(old.source.vocab),) * 2, [["a"]])

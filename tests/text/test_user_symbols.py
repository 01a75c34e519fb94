"""--user-symbol: one piece wherever it stands, in learned and grown vocabularies and in fine-tuned models."""

import random
from pathlib import Path

import numpy as np
import pytest
from commands import Run, Train
from foreign_tokenizers import ENGLISH, GERMAN, FsmtFiles, MarianFiles, hostile_lines, train_model
from sentencepiece import SentencePieceProcessor
from training_runs import refused

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.preprocessing.config import VocabularyConfig
from nmtkit.text.spm_model import Piece, PieceType, append_user_symbols, read_model
from nmtkit.text.tokenizer import SentencePieceTokenizer, SpaceTokenizer, Tokenizer, make_tokenizer
from nmtkit.text.user_symbols import add_symbols, check_symbols
from nmtkit.text.vocabulary import SPECIALS, Vocabulary

SYMBOLS = ("<2de>", "[formal]", "<2de>!", "日本", "a.b*")
LINES = [*ENGLISH, *GERMAN, *hostile_lines(seed=3, count=200)]


def with_symbols(line: str, choose: random.Random) -> str:
    """The line with symbols at random places between its words, with and without spaces around them."""
    words = line.split(" ")
    for symbol in choose.choices(SYMBOLS, k=2):
        space = choose.choice(["", " "])
        words.insert(choose.randint(0, len(words)), f"{space}{symbol}{space}")
    return " ".join(words)


def raw_text_pairs(folder: Path) -> dict[str, tuple[Tokenizer, Tokenizer]]:
    """Tokenizers of both sides of every kind for raw text."""
    bpe = SentencePieceTokenizer(train_model(ENGLISH + GERMAN, model_type="bpe"))
    unigram = SentencePieceTokenizer(train_model(ENGLISH + GERMAN, byte_fallback=True, vocab_size=320))
    return {
        "bpe": (bpe, bpe),
        "separate": (bpe, unigram),
        "marian": MarianFiles(folder / "marian").tokenizers(),
        "fsmt": FsmtFiles(folder / "fsmt").tokenizers(),
    }


@pytest.mark.parametrize("kind", ["bpe", "separate", "marian", "fsmt"])
def test_a_symbol_is_one_piece_wherever_it_stands(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    choose = random.Random(1)
    for tokenizer in add_symbols(raw_text_pairs(tmp_path)[kind], SYMBOLS):
        numbers = {symbol: len(tokenizer.vocab) - len(SYMBOLS) + i for i, symbol in enumerate(SYMBOLS)}
        assert tokenizer.vocab.to_ids(SYMBOLS) == [*numbers.values()]
        for line in LINES:
            text = with_symbols(line, choose)
            (ids,) = tokenizer.encode([text])
            expected = {symbol: text.count(symbol) for symbol in SYMBOLS}
            expected["<2de>"] -= expected["<2de>!"]  # the longest symbol wins
            assert {symbol: ids.count(number) for symbol, number in numbers.items()} == expected, text
        (ids,) = tokenizer.encode(["<2de> the dog[formal]"])
        assert ids[-1] == numbers["[formal]"]
        assert "<2de>" in tokenizer.decode(ids)
        assert "[formal]" in tokenizer.decode(ids)
        assert "".join(tokenizer.surfaces([numbers["<2de>"]])).strip() == "<2de>"


@pytest.mark.parametrize("kind", ["bpe", "separate", "marian", "fsmt"])
def test_text_without_symbols_keeps_its_ids_and_both_sides_share_what_they_shared(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    before = raw_text_pairs(tmp_path)[kind]
    after = add_symbols(before, SYMBOLS[:3])
    for old, new in zip(before, after, strict=True):
        assert new.vocab.pieces == [*old.vocab.pieces, *SYMBOLS[:3]]
        assert new.encode(LINES) == old.encode(LINES)
        restored = make_tokenizer(new.kind, Vocabulary.from_bytes(new.vocab.to_bytes()), new.model)
        assert restored.encode([f"{line}<2de>" for line in LINES]) == new.encode([f"{line}<2de>" for line in LINES])
    assert (before[0] is before[1]) == (after[0] is after[1])
    assert (before[0].vocab is before[1].vocab) == (after[0].vocab is after[1].vocab)


def test_appended_pieces_are_those_that_sentencepiece_reads() -> None:
    model = train_model(ENGLISH)
    symbols = ["<2de>", "é", "x" * 200]
    grown = append_user_symbols(model, symbols)
    assert read_model(grown) == (
        read_model(model)[0],
        [*read_model(model)[1], *(Piece(symbol, 0.0, PieceType.USER_DEFINED) for symbol in symbols)],
    )
    processor = SentencePieceProcessor(model_proto=grown)
    assert [processor.id_to_piece(len(processor) - 3 + i) for i in range(3)] == symbols


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        (["<2 de>"], "printable characters without spaces"),
        (["▁a"], "mark subwords"),
        (["</s>"], "the name of a special token"),
        (["<2de>", "<2fr>", "<2de>"], "<2de>.*given twice"),
    ],
)
def test_impossible_symbols_are_refused(symbols: list[str], message: str) -> None:
    with pytest.raises(UserError, match=f"--user-symbol .*{message}"):
        check_symbols(symbols)


def test_a_piece_of_the_vocabulary_is_refused_as_a_symbol(tmp_path: Path) -> None:
    source, target = MarianFiles(tmp_path / "marian").tokenizers()
    piece = next(piece for piece in source.vocab.pieces[len(SPECIALS) :] if "▁" not in piece)
    with pytest.raises(UserError, match="is already a piece of the vocabulary: omit it"):
        add_symbols((source, target), [piece])


def test_symbols_of_segmented_text_are_words() -> None:
    given = SpaceTokenizer(Vocabulary([*SPECIALS, "the", "dog"]))
    source, target = add_symbols((given, given), ["<2de>"])
    assert source is target
    assert source.encode(["<2de> the dog<2de>"]) == [[6, 4, 1]]


def test_a_vocabulary_without_room_for_all_symbols_is_refused() -> None:
    assert VocabularyConfig(user_symbol=("<a>", "<b>"), vocab_size=6).vocab_size == 6
    with pytest.raises(UserError, match="--vocab-size 5"):
        VocabularyConfig(user_symbol=("<a>", "<b>"), vocab_size=5)


# nmt-preprocess, nmt-train


@pytest.fixture
def tagged(datasets: dict[str, Path], tmp_path: Path) -> Path:
    """The prefix of a text whose source lines begin with a tag."""
    text = datasets["joined"].parent
    for split in ("train", "valid"):
        lines = (text / f"{split}.en").read_text().splitlines()
        (tmp_path / f"{split}.en").write_text("".join(f"<2de> {line}\n" for line in lines))
        (tmp_path / f"{split}.de").write_text((text / f"{split}.de").read_text())
    return tmp_path


@pytest.mark.parametrize("options", [("--vocab-size", 70), ("--tokenizer", "space", "--min-count", 9)])
def test_learned_vocabularies_begin_with_the_symbols(options: tuple[object, ...], tagged: Path, run_here: Run) -> None:
    done = run_here(
        *("nmt-preprocess", "-s", "en", "-t", "de", "--trainpref", tagged / "train", "--destdir", tagged / "data"),
        *("--user-symbol", "<2de>", "--user-symbol", "<2,fr>", *options),
    )
    assert done.returncode == 0, done.stderr.decode()
    dataset = Dataset.open(tagged / "data")
    assert dataset.source.vocab.pieces[4:6] == ["<2de>", "<2,fr>"]
    train = dataset.split("train").source
    assert all(4 in train[number][:2] for number in range(len(train)))


def grow(run_here: Run, given: Path, tagged: Path, *symbols: str) -> Path:
    done = run_here(
        *("nmt-preprocess", "-s", "en", "-t", "de", "--trainpref", tagged / "train", "--validpref", tagged / "valid"),
        *("--destdir", tagged / "data", "--vocab-from", given),
        *(word for symbol in symbols for word in ("--user-symbol", symbol)),
    )
    assert done.returncode == 0, done.stderr.decode()
    return tagged / "data"


def last(folder: Path) -> Checkpoint:
    return load_checkpoint(folder / "checkpoint_last.pt")


@pytest.mark.parametrize("kind", ["joined", "separate"])
def test_a_model_grows_with_its_vocabulary(
    kind: str, train: Train, datasets: dict[str, Path], tagged: Path, run_here: Run
) -> None:
    (tagged / "bias.json").write_text('{"output_bias": true}')
    options = ("--config", tagged / "bias.json", *(("--share-embeddings", "none") if kind == "separate" else ()))
    train(tagged / "parent", "--max-updates", 4, *options, dataset=datasets[kind])
    given = tagged / "parent" / "checkpoint_last.pt"
    data = grow(run_here, given, tagged, "<2de>", "<2fr>")
    still = ("--init-from", given, "--max-updates", 1, "--lr-scale", 1e-30, *options)
    train(tagged / "run", *still, dataset=data)
    before, after = load_checkpoint(given), last(tagged / "run")
    assert after.source.vocab.pieces == [*before.source.vocab.pieces, "<2de>", "<2fr>"]
    grown = {name for name, weight in before.weights.items() if len(after.weights[name]) == len(weight) + 2}
    matrices = {"target_embedding.weight"}
    if kind == "separate":
        matrices |= {"source_embedding.weight", "projection.weight"}
    assert grown == matrices | {"projection_bias"}
    for name, weight in before.weights.items():
        np.testing.assert_allclose(after.weights[name][: len(weight)], weight, rtol=0, atol=1e-7)
    for name in matrices:
        rows = after.weights[name][-2:]
        assert 0.5 < rows.std() * 16**0.5 < 1.5
    assert np.abs(after.weights["projection_bias"][-2:]).max() < 1e-7
    train(tagged / "again", *still, dataset=data)
    assert np.array_equal(
        last(tagged / "again").weights["target_embedding.weight"], after.weights["target_embedding.weight"]
    )


def test_a_grown_model_is_adapted_with_trained_embeddings_only(
    train: Train, datasets: dict[str, Path], tagged: Path, run_here: Run
) -> None:
    train(tagged / "parent", "--max-updates", 2, dataset=datasets["joined"])
    given = tagged / "parent" / "checkpoint_last.pt"
    data = grow(run_here, given, tagged, "<2de>")
    lora = ("--init-from", given, "--max-updates", 2, "--lora-rank", 2)
    refused(
        train(tagged / "run", *lora, dataset=data, code=2),
        "but the run does not train target_embedding.weight: omit --lora-rank",
    )
    result = train(tagged / "run", "--init-from", given, "--freeze", "*embedding*", dataset=data, code=2)
    refused(
        result, "but the run does not train target_embedding.weight: omit --lora-rank, and the --freeze that matches it"
    )
    (tagged / "lora.json").write_text('{"lora_train": "*embedding*"}')
    train(tagged / "run", *lora, "--config", tagged / "lora.json", dataset=data)
    checkpoint = load_checkpoint(tagged / "run" / "checkpoint_last.pt", merge=False)
    assert checkpoint.optimizer is not None
    assert "exp_avg.target_embedding.weight" in checkpoint.optimizer
    assert last(tagged / "run").source.encode(["<2de>kal"])[0].count(len(checkpoint.source.vocab) - 1) == 1


def test_a_vocabulary_that_grew_otherwise_is_refused(
    train: Train, datasets: dict[str, Path], tagged: Path, run_here: Run
) -> None:
    train(tagged / "parent", "--max-updates", 1)
    done = run_here(
        *("nmt-preprocess", "-s", "en", "-t", "de", "--trainpref", tagged / "train", "--destdir", tagged / "data"),
        *("--vocab-size", 75),
    )
    assert done.returncode == 0, done.stderr.decode()
    given = tagged / "parent" / "checkpoint_last.pt"
    result = train(tagged / "run", "--init-from", given, dataset=tagged / "data", code=2)
    refused(result, f"--init-from {given}: its source vocabulary has 70 pieces, not 75", "--vocab-from")

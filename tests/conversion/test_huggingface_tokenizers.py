"""Settings and added tokens of imported tokenizers: the same ids as transformers, or a refusal by name."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from foreign_models import FsmtModel
from foreign_tokenizers import ENGLISH, GERMAN, hostile_lines
from marian_models import MarianModel

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fsmt import from_fsmt
from nmtkit.conversion.huggingface_export import to_huggingface
from nmtkit.conversion.marian import from_marian
from nmtkit.errors import UserError
from nmtkit.preprocessing.line_encoder import LineEncoder
from nmtkit.text.spm_model import SPLIT_SYMBOL, append_symbols
from nmtkit.text.tokenizer import SentencePieceVocabTokenizer
from nmtkit.text.vocabulary import EOS, UNK

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("sacremoses")
pytest.importorskip("safetensors")
OPTIONS = ImportConfig()
SYMBOLS = ("<2de>", "<2d", "<2de>>", ">>deu<<", "日本", "a.b*")


def add_tokens(marian: MarianModel, tokens: Sequence[Any]) -> None:
    """Add tokens to tokenizer and model, and save both, as a fine-tuning does."""
    tokenizer = transformers.MarianTokenizer.from_pretrained(marian.folder)
    tokenizer.add_tokens(list(tokens))
    marian.model.resize_token_embeddings(len(tokenizer))
    marian.model.config.decoder_vocab_size = len(tokenizer)
    tokenizer.save_pretrained(marian.folder)
    marian.write()
    marian.names = ([*marian.names[0], *map(str, tokens)],) * 2


def store_as_before_added_tokens_decoder(folder: Path) -> None:
    """Store added tokens in added_tokens.json alone, as transformers 4.33 and earlier."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    added = settings.pop("added_tokens_decoder")
    path.write_text(json.dumps(settings))
    content = {token["content"]: int(number) for number, token in added.items() if not token["special"]}
    (folder / "added_tokens.json").write_text(json.dumps(content))


def store_in_tokenizer_json(folder: Path) -> None:
    """Store added tokens in tokenizer.json alone, as conversions for other programs do."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    added = settings.pop("added_tokens_decoder")
    path.write_text(json.dumps(settings))
    (folder / "added_tokens.json").unlink()
    content = {"added_tokens": [{"id": int(number), **token} for number, token in added.items()]}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def hostile_text(seed: int, count: int) -> list[str]:
    """Lines with symbols at the beginning, in the middle, doubled, beside marks and spaces of all kinds."""
    choose = random.Random(seed)
    lines = ["<2de>", "<2de> <2de>", "<2de><2de>the dog.<2de>", " <2de> the dog", "the<2de>>>>de<< dog", "(<2d>,<2de>)"]
    for line in [*ENGLISH, *GERMAN, *hostile_lines(seed, count)]:
        for symbol in choose.choices(SYMBOLS, k=2):
            place = choose.choice([0, len(line), choose.randint(0, len(line))])
            line = line[:place] + symbol * choose.randint(1, 2) + line[place:]
        lines.append(line)
    return lines


def check_same_text(marian: MarianModel, folder: Path, checkpoint: Checkpoint) -> None:
    """Ids and decoded text of both sides are those of transformers."""
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    names = {number: name for name, number in theirs.get_vocab().items()}
    for side, ours in (("text", checkpoint.source), ("text_target", checkpoint.target)):
        for line in hostile_text(seed=4, count=60):
            *ids, end = theirs(**{side: line})["input_ids"]
            (own,) = ours.encode([line])
            assert ([names[i] for i in ids], names[end]) == (ours.vocab.to_pieces(own), "</s>"), repr(line)
            text = theirs.decode([i for i in ids if names[i] != "<unk>"], use_source_tokenizer=side == "text")
            assert ours.decode(own) == text.replace("\n", " ").replace("\r", " ")
    assert len(marian.names[1]) == len(names)


@pytest.mark.parametrize("store", [None, store_as_before_added_tokens_decoder, store_in_tokenizer_json])
def test_added_tokens_give_the_ids_of_transformers_and_survive_a_round_trip(
    store: Callable[[Path], None] | None, tmp_path: Path
) -> None:
    marian = MarianModel(tmp_path / "marian", 1)
    add_tokens(marian, [SYMBOLS[0], *SYMBOLS[1:], transformers.AddedToken("[x]", normalized=True)])
    if store is not None:
        store(marian.folder)
    imported = from_marian(marian.folder, OPTIONS)
    assert [ids for ids in imported.source.encode(SYMBOLS) if len(ids) != 1 or UNK in ids] == []
    check_same_text(marian, marian.folder, imported)
    save_checkpoint(tmp_path / "a.pt", imported)
    to_huggingface(load_checkpoint(tmp_path / "a.pt"), tmp_path / "exported")
    again = from_marian(tmp_path / "exported", OPTIONS)
    check_same_text(marian, tmp_path / "exported", again)
    assert (again.source.vocab, again.source.model, again.target.model) == (
        imported.source.vocab,
        imported.source.model,
        imported.target.model,
    )


def test_an_added_token_that_was_a_piece_before_splits_words(tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", 1)
    piece = next(name for name in marian.names[0][3:-1] if name.isalpha() and len(name) > 1)
    tokenizer = transformers.MarianTokenizer.from_pretrained(marian.folder)
    tokenizer.add_tokens([piece])
    tokenizer.save_pretrained(marian.folder)
    check_same_text(marian, marian.folder, from_marian(marian.folder, OPTIONS))


def test_preprocessing_encodes_text_with_added_tokens_like_the_tokenizer(tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", 1)
    add_tokens(marian, SYMBOLS)
    tokenizer = from_marian(marian.folder, OPTIONS).source
    lines = [line.replace("\n", " ") for line in hostile_text(seed=5, count=40)]
    tokens, _ = LineEncoder(tokenizer)("".join(f"{line}\n" for line in lines).encode())
    assert tokens.tolist() == [number for ids in tokenizer.encode(lines) for number in [*ids, EOS]]


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "special"])
def test_an_added_token_with_an_unsupported_flag_is_refused_by_name(flag: str, tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", 1)
    add_tokens(marian, [transformers.AddedToken("<2de>", **{flag: True})])
    if flag == "special":  # transformers lists it twice
        marian.edit("tokenizer_config.json", extra_special_tokens=[])
    with pytest.raises(UserError, match=f"added token '<2de>': {flag} is True, which is not supported"):
        from_marian(marian.folder, OPTIONS)


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"<2 de>": 99}, "added token '<2 de>': a symbol needs printable characters without spaces"),
        ({"<s>": 99}, "added token '<s>': the name of a special token"),
        ({"x<2de>": 99, "<2de>": 98}, "added token 'x<2de>': it contains '<2de>'"),
        ({"<2de>": "x"}, "damaged"),
    ],
    ids=str,
)
def test_added_tokens_that_cannot_be_read_exactly_are_refused_by_name(
    added: dict[str, Any], words: str, tmp_path: Path
) -> None:
    marian = MarianModel(tmp_path / "marian", 1)
    (marian.folder / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(UserError, match=words) as error:
        from_marian(marian.folder, OPTIONS)
    assert "\n" not in str(error.value)


def test_added_tokens_with_separate_vocabularies_are_refused(tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", 1, "none", separate=True)
    (marian.folder / "added_tokens.json").write_text('{"<2de>": 99}')
    with pytest.raises(UserError, match="added token '<2de>': not supported with separate vocabularies"):
        from_marian(marian.folder, OPTIONS)


def test_a_split_symbol_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    source = from_marian(MarianModel(tmp_path / "marian", 1).folder, OPTIONS).source
    with pytest.raises(UserError, match="not in the vocabulary"):
        SentencePieceVocabTokenizer(source.vocab, append_symbols(source.model, SPLIT_SYMBOL, ["<2de>"]))


FILES = ("tokenizer_config.json", "special_tokens_map.json")
OTHERS: dict[str, Any] = {
    "unk_token": "[UNK]",
    "pad_token": {"content": "[PAD]", "lstrip": False},
    "additional_special_tokens": ["<2de>"],
    "split_special_tokens": True,
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", [*OTHERS, "eos_token"])
@pytest.mark.parametrize("kind", ["marian", "fsmt"])
def test_other_special_tokens_are_refused_by_name(kind: str, name: str, file: str, tmp_path: Path) -> None:
    model, read = (MarianModel, from_marian) if kind == "marian" else (FsmtModel, from_fsmt)
    folder = model(tmp_path / kind, 1).folder
    path = folder / file
    settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(settings | {name: OTHERS.get(name, "<other>")}))
    with pytest.raises(UserError, match=f"{file}: {name} is ") as error:
        read(folder, OPTIONS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["marian", "fsmt"])
def test_tokenizer_files_as_transformers_saves_them_are_accepted(kind: str, tmp_path: Path) -> None:
    model, read = (MarianModel, from_marian) if kind == "marian" else (FsmtModel, from_fsmt)
    folder = model(tmp_path / kind, 1).folder
    before = read(folder, OPTIONS)
    tokenizer = getattr(transformers, "MarianTokenizer" if kind == "marian" else "FSMTTokenizer").from_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    special = {name: {"content": token, "lstrip": False} for name, token in tokenizer.special_tokens_map.items()}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))  # of transformers 4
    after = read(folder, OPTIONS)
    assert [side.model for side in (before.source, before.target)] == [
        side.model for side in (after.source, after.target)
    ]


@pytest.mark.parametrize(
    ("file", "settings", "words"),
    [
        ("added_tokens.json", {"<2de>": 99}, "added token '<2de>' with the id 99 is not supported"),
        ("added_tokens.json", {"<pad>": 3}, "added token '<pad>' with the id 3 is not supported"),
    ],
    ids=str,
)
def test_other_settings_of_fsmt_tokenizers_are_refused_by_name(
    file: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = FsmtModel(tmp_path / "fsmt", 1).folder
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | settings))
    with pytest.raises(UserError, match=words):
        from_fsmt(folder, OPTIONS)

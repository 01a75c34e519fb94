"""Tokenizers of other toolkits' models: the same ids and text as theirs, and what each file of nmtkit stores."""

import io
import json
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Run
from foreign_tokenizers import ENGLISH, GERMAN, FsmtFiles, MarianFiles, hostile_lines, learn_codes

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.config import flag
from nmtkit.data.corpus import Dataset
from nmtkit.data.subwords import Resegmenter
from nmtkit.errors import UserError
from nmtkit.model.architectures import make_model
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.text.moses_bpe import FINAL_MARK, MOSES_BPE, MosesBpe, MosesBpeTokenizer, merge_symbols, read_codes
from nmtkit.text.tokenizer import SpaceTokenizer, Tokenizer, make_tokenizer, tokenizer_differences
from nmtkit.text.vocabulary import SPECIALS, UNK, Vocabulary
from nmtkit.training.averaging import average_checkpoints

LINES = [*ENGLISH, *GERMAN, "", "   ", *hostile_lines(seed=1, count=1000)]


def names(tokenizer: Tokenizer, line: str) -> list[str]:
    """The pieces of a line."""
    return tokenizer.vocab.to_pieces(tokenizer.encode([line])[0])


# Marian ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"model_type": "bpe"}, {"byte_fallback": True, "vocab_size": 320}])
def test_pieces_and_text_equal_those_of_marian_tokenizer(options: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("sacremoses")
    files = MarianFiles(tmp_path / "marian", **options)
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path / "marian")
    for side, ours in zip(("text", "text_target"), files.tokenizers(), strict=True):
        for line in LINES:
            *ids, end = theirs(**{side: line})["input_ids"]
            assert (files.names[end], [files.names[i] for i in ids]) == ("</s>", names(ours, line)), repr(line)
    source, target = files.tokenizers()
    random_ids = [random.Random(seed).choices(range(len(target.vocab)), k=12) for seed in range(300)]
    for ours_ids in [*target.encode(LINES), *random_ids]:
        ordinary = [number for number in ours_ids if number >= len(SPECIALS)]
        their_ids = [files.names.index(piece) for piece in target.vocab.to_pieces(ordinary)]
        for ours, use_source in ((source, True), (target, False)):
            text = theirs.decode(their_ids, skip_special_tokens=True, use_source_tokenizer=use_source)
            assert ours.decode(ours_ids) == text.replace("\n", " ").replace("\r", " ")


def test_a_language_tag_is_one_piece_and_unknown_if_the_vocabulary_lacks_it(tmp_path: Path) -> None:
    source, _ = MarianFiles(tmp_path / "marian").tokenizers()
    with_tag, unknown, inside = (names(source, f"{text}the dog") for text in (">>de<< ", ">>fr<< ", "the >>de<< "))
    assert (with_tag[0], unknown[0]) == (">>de<<", "<unk>")
    assert with_tag[1:] == unknown[1:] == names(source, "the dog")
    assert ">>de<<" not in inside
    assert "".join(source.surfaces(source.encode([">>de<< the dog"])[0])) == ">>de<< the dog"


def test_a_word_that_the_vocabulary_lacks_is_a_word_of_the_surfaces_of_its_text(tmp_path: Path) -> None:
    files = MarianFiles(tmp_path / "marian")
    whole, _ = files.tokenizers()
    pieces = [piece for piece in whole.vocab.pieces if not piece.startswith("▁d")]
    source = type(whole)(Vocabulary(pieces), whole.model)
    line = "the dog runs"
    (ids,) = source.encode([line])
    assert UNK in ids
    assert "".join(source.surfaces(ids, line)).split() == line.split()


# FSMT and fairseq ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowercase", [False, True])
def test_pieces_and_text_equal_those_of_fsmt_tokenizer(lowercase: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("sacremoses")
    source, target = FsmtFiles(tmp_path / "fsmt", lowercase=lowercase).tokenizers()
    theirs = transformers.FSMTTokenizer.from_pretrained(tmp_path / "fsmt")
    target_ids = json.loads((tmp_path / "fsmt/vocab-tgt.json").read_text(encoding="utf-8"))
    for line in LINES:
        pieces = [piece if piece in theirs.encoder else "<unk>" for piece in theirs.tokenize(line)]
        assert names(source, line) == pieces, repr(line)
    random_ids = [random.Random(seed).choices(range(len(target.vocab)), k=12) for seed in range(300)]
    for ids in [*target.encode(LINES), *random_ids]:
        their_ids = [target_ids[piece] for piece in target.vocab.to_pieces(ids)]
        assert target.decode(ids) == theirs.decode(their_ids, skip_special_tokens=True)


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_pieces_equal_those_of_sacremoses_and_subword_nmt(version: str) -> None:
    """This is what fairseq's models are trained on."""
    sacremoses = pytest.importorskip("sacremoses")
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    codes = learn_codes(ENGLISH, 120).replace("#version: 0.2\n", "" if version == "0.1" else "#version: 0.2\n")
    moses, bpe = sacremoses.MosesTokenizer("en"), apply_bpe.BPE(io.StringIO(codes))
    expected = [
        bpe.process_line(moses.tokenize(line, aggressive_dash_splits=True, return_str=True, escape=True)).split()
        for line in LINES
    ]
    vocab = Vocabulary([*SPECIALS, *dict.fromkeys(piece for pieces in expected for piece in pieces)])
    merges, separate_end = read_codes(codes.encode())
    assert separate_end == (version == "0.1")
    ours = MosesBpeTokenizer(vocab, MosesBpe("en", merges, separate_end).to_bytes())
    assert [names(ours, line) for line in LINES] == expected
    detokenizer = sacremoses.MosesDetokenizer("en")
    for ids, pieces in zip(ours.encode(LINES), expected, strict=True):
        joined = f"{' '.join(pieces)} ".replace("@@ ", "").rstrip()
        assert ours.decode(ids) == detokenizer.detokenize(joined.split())


def test_merging_equals_subword_nmt_for_merges_in_any_order() -> None:
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    for seed in range(300):
        draw = random.Random(seed)
        symbols = ["a", "b", "ab", "aa", "ba", "aab", "a</w>", "b</w>"]
        merges = dict.fromkeys((draw.choice(symbols[:6]), draw.choice(symbols)) for _ in range(12))
        ranks = {pair: rank for rank, pair in enumerate(merges)}
        word = "".join(draw.choices("ab", k=draw.randint(2, 30)))
        expected = list(apply_bpe.encode(word, ranks, {}, None, "@@", (0, 2), {}))
        merged = merge_symbols([*word[:-1], word[-1] + FINAL_MARK], ranks)
        assert [*merged[:-1], merged[-1].removesuffix(FINAL_MARK)] == expected


def test_codes_of_fastbpe_lose_their_counts() -> None:
    assert read_codes(b"a b 12\nab c</w> 3\n") == (("a b", "ab c</w>"), False)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"a b\na\n", "merge 2 is 'a', not two pieces"),
        (b"\xff b\n", "not UTF-8"),
        (b"#version: 0.3\na b\n", "unknown version of BPE codes"),
    ],
)
def test_malformed_codes_are_refused(content: bytes, fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        read_codes(content)


def changed(**fields: object) -> bytes:
    """Settings of moses-bpe with other fields; None removes one."""
    settings = json.loads(MosesBpe("en", ("a b",)).to_bytes()) | fields
    return json.dumps({name: value for name, value in settings.items() if value is not None}).encode()


@pytest.mark.parametrize(
    "content", [*(b"", b"{}", changed(version=2), changed(merges=["a"]), changed(merges=None), changed(command="rm"))]
)
def test_malformed_settings_are_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(UserError, match=r"moses-bpe|BPE merge") as error:
        make_tokenizer(MOSES_BPE, Vocabulary([*SPECIALS, "a"]), content)
    assert "\n" not in str(error.value)


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match="needs the package sacremoses: pip install sacremoses"):
        make_tokenizer(MOSES_BPE, Vocabulary([*SPECIALS, "a"]), changed())


def test_czech_words_that_sacremoses_fails_on_have_text() -> None:
    pytest.importorskip("sacremoses")
    tokenizer = MosesBpeTokenizer(Vocabulary([*SPECIALS, "e'", "-", "mail"]), MosesBpe("cs", ("a b",)).to_bytes())
    assert tokenizer.decode([4, 5, 6]).replace(" ", "") == "e'-mail"


@pytest.mark.parametrize("mark", ["@@", "</w>"])
def test_surfaces_spell_the_words_of_a_line(mark: str) -> None:
    pytest.importorskip("sacremoses")
    pieces = ["ru@@", "ns", "&apos;s"] if mark == "@@" else ["ru", "ns</w>", "&apos;s</w>"]
    tokenizer = MosesBpeTokenizer(Vocabulary([*SPECIALS, *pieces]), MosesBpe("en", ("a b",), mark=mark).to_bytes())
    assert tokenizer.surfaces([4, 5, UNK, 4, 5, 6]) == [" ru", "ns", " <unk>", " ru", "ns", " 's"]
    (ids,) = tokenizer.encode(["runs über"])
    assert UNK in ids
    assert "".join(tokenizer.surfaces(ids, "runs über")).split() == ["runs", "über"]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "line",
    ["A dog. Two men, in A dog.", "the well-known man's \u201cdog\u201d", "Wait\u2026 what?", "R&D [x] | y", "Hi ."],
)
def test_surfaces_of_a_text_have_its_words(line: str, normalize: bool) -> None:
    """Moses splits words at punctuation, and normalizes and escapes some of it."""
    pytest.importorskip("sacremoses")
    settings = MosesBpe("en", ("d o",), normalize=normalize)
    tokenizer = MosesBpeTokenizer(Vocabulary([*SPECIALS, "do@@", "T@@"]), settings.to_bytes())
    (ids,) = tokenizer.encode([line])
    assert len("".join(tokenizer.surfaces(ids, line)).split()) == len(line.split())


# Files of nmtkit -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["marian", "fsmt", "fairseq"])
def tokenizers(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of both sides: a shared vocabulary for marian and fairseq, a vocabulary each for fsmt."""
    if request.param == "marian":
        return MarianFiles(tmp_path / "files").tokenizers()
    pytest.importorskip("sacremoses")
    source, target = FsmtFiles(tmp_path / "files").tokenizers()
    if request.param == "fairseq":
        return source, MosesBpeTokenizer(source.vocab, target.model)
    return source, target


@pytest.fixture
def checkpoint(tokenizers: tuple[Tokenizer, Tokenizer], make_checkpoint: Callable[..., Checkpoint]) -> Checkpoint:
    """A tiny model with these tokenizers."""
    return with_tokenizers(make_checkpoint(), *tokenizers)


def with_tokenizers(checkpoint: Checkpoint, source: Tokenizer, target: Tokenizer) -> Checkpoint:
    """The checkpoint with other tokenizers, and with a model of their sizes."""
    config = checkpoint.model_config.for_vocabularies(source.vocab is target.vocab)
    model = make_model(config, len(source.vocab), len(target.vocab))
    weights = as_arrays(collect_weights(model))
    return replace(checkpoint, model_config=config, weights=weights, source=source, target=target)


def check_same(given: Checkpoint | Dataset, expected: Checkpoint) -> None:
    """Compare the tokenizers, and whether they share a vocabulary."""
    assert given.joined == expected.joined
    assert (given.source.vocab is given.target.vocab) == expected.joined
    ours, theirs = (given.source, given.target), (expected.source, expected.target)
    assert list(tokenizer_differences(ours, theirs)) == []
    for one, other in zip(ours, theirs, strict=True):
        assert one.encode(LINES[:50]) == other.encode(LINES[:50])


def test_a_checkpoint_keeps_both_tokenizers(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "adopted.pt", checkpoint)
    loaded = load_checkpoint(tmp_path / "adopted.pt")
    check_same(loaded, checkpoint)
    names = torch.load(tmp_path / "adopted.pt", weights_only=True).keys()
    assert "target.tokenizer" in names
    assert ("target.vocabulary" in names) != checkpoint.joined
    save_checkpoint(tmp_path / "again.pt", loaded)
    assert (tmp_path / "again.pt").read_bytes() == (tmp_path / "adopted.pt").read_bytes()


def test_preprocessing_takes_the_tokenizers_of_a_checkpoint_and_of_that_dataset(
    checkpoint: Checkpoint, run_here: Run, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "adopted.pt", checkpoint)
    texts = {"en": [*ENGLISH, ">>de<< a dog"], "de": [*GERMAN, "ein hund"]}
    for language, lines in texts.items():
        (tmp_path / f"news.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = ("--trainpref", tmp_path / "news", "--validpref", tmp_path / "news", "--workers", 2)
    for source, folder in ((tmp_path / "adopted.pt", tmp_path / "first"), (tmp_path / "first", tmp_path / "second")):
        done = run_here("nmt-preprocess", "-s", "en", "-t", "de", *text, "--vocab-from", source, "--destdir", folder)
        assert done.returncode == 0, done.stderr.decode()
        dataset = Dataset.open(folder)
        check_same(dataset, checkpoint)
        split = dataset.split("train")
        assert [split.source[i][:-1].tolist() for i in range(5)] == checkpoint.source.encode(texts["en"])
        assert [split.target[i][:-1].tolist() for i in range(5)] == checkpoint.target.encode(texts["de"])
    swapped = run_here(
        *("nmt-preprocess", "-s", "de", "-t", "en", *text, "--vocab-from", tmp_path / "adopted.pt"),
        *("--destdir", tmp_path / "swapped"),
    )
    assert swapped.returncode == 2
    assert b"are for different languages" in swapped.stderr


def test_an_adopted_model_is_fine_tuned_and_translates_raw_text(
    checkpoint: Checkpoint, run_here: Run, tmp_path: Path
) -> None:
    adopted, data, tuned = tmp_path / "adopted.pt", tmp_path / "data", tmp_path / "run/checkpoint_last.pt"
    save_checkpoint(adopted, checkpoint)
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / f"news.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    news = ("--trainpref", tmp_path / "news", "--validpref", tmp_path / "news")
    done = run_here("nmt-preprocess", "-s", "en", "-t", "de", *news, "--vocab-from", adopted, "--destdir", data)
    assert done.returncode == 0, done.stderr.decode()
    sizes = ("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads")
    config = checkpoint.model_config.to_dict()
    options = [word for name in sizes for word in (flag(name), config[name])]
    short = ("--max-updates", 2, "--batch-tokens", 200, "--device", "cpu")
    done = run_here("nmt-train", data, "--init-from", adopted, "--save-dir", tmp_path / "run", *options, *short)
    assert done.returncode == 0, done.stderr.decode()
    check_same(load_checkpoint(tuned), checkpoint)
    search = ("--format", "pharaoh", "--alignment", "--max-len-a", 0, "--max-len-b", 5, "--device", "cpu")
    done = run_here("nmt-generate", "--checkpoint", tuned, *search, input=b"the dog\n\n>>de<< a cat\n")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3), done.stderr.decode()
    done = run_here("nmt-generate", "--checkpoint", tuned, "--copy-unknown", input=b"the dog\n")
    assert (done.returncode, b"--copy-unknown is for models of segmented text" in done.stderr) == (2, True)


def test_a_shared_vocabulary_with_two_kinds_of_tokenizers_is_refused(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    source, _ = MarianFiles(tmp_path / "marian").tokenizers()
    save_checkpoint(tmp_path / "a.pt", with_tokenizers(make_checkpoint(), source, SpaceTokenizer(source.vocab)))
    with pytest.raises(UserError, match="different kinds of tokenizers"):
        load_checkpoint(tmp_path / "a.pt")


def test_subword_sampling_needs_a_sentencepiece_model(tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    with pytest.raises(UserError, match="moses-bpe"):
        Resegmenter(FsmtFiles(tmp_path / "fsmt").tokenizers()[0], 0.1)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_subword_sampling_keeps_the_text_and_never_yields_an_unknown_piece(model_type: str, tmp_path: Path) -> None:
    source, _ = MarianFiles(tmp_path / "marian", model_type=model_type).tokenizers()
    resegment, draw = Resegmenter(source, 0.3), random.Random(1).random
    for ids in source.encode([f">>de<< {line}" for line in ENGLISH * 20]):
        sampled = resegment(ids, draw)
        assert "".join(source.vocab.to_pieces(sampled)) == "".join(source.vocab.to_pieces(ids))
        assert sampled.count(UNK) == ids.count(UNK)
        assert sampled[0] == ids[0]


def test_both_tokenizers_can_be_sent_to_another_process(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    for ours, copy in zip(tokenizers, pickle.loads(pickle.dumps(tokenizers)), strict=True):
        assert copy.encode(LINES[:50]) == ours.encode(LINES[:50])


def test_models_with_another_tokenizer_of_one_side_are_not_averaged(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    source, target = MarianFiles(tmp_path / "marian").tokenizers()
    for name, other in (("a.pt", target), ("b.pt", source)):
        save_checkpoint(tmp_path / name, with_tokenizers(make_checkpoint(), source, other))
    with pytest.raises(UserError, match="its target text is split into pieces by a different tokenizer"):
        average_checkpoints([tmp_path / "a.pt", tmp_path / "b.pt"])

"""--source-tag and datasets of several languages: text to dataset, mixture and translation."""

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from commands import Run, Train
from foreign_tokenizers import ENGLISH, GERMAN, FsmtFiles, MarianFiles, train_model

from nmtkit import Request, Translator
from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.data.corpus import Dataset
from nmtkit.data.sampling import PairSampling
from nmtkit.decoding.config import EngineConfig, SearchConfig, StreamConfig
from nmtkit.decoding.engine import Task
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.tasks import Sentence
from nmtkit.decoding.translation import translation_of
from nmtkit.errors import UserError
from nmtkit.serving.messages import source_words
from nmtkit.text.languages import includes, is_direction, side_names
from nmtkit.text.tags import check_tag_apart, count_tag, tag_ids, tags_in_lines
from nmtkit.text.tokenizer import SentencePieceTokenizer, SpaceTokenizer, Tokenizer
from nmtkit.text.user_symbols import add_symbols
from nmtkit.text.vocabulary import EOS, SPECIALS, UNK, Vocabulary

TAG = "<2de>"
LINE = "the dog runs on the street"
SEARCH = SearchConfig(beam=2, nbest=2, alignment=True)


def assert_refused(result: "subprocess.CompletedProcess[bytes]", *words: str) -> None:
    """Assert that a command refused its options with a single line on stderr that has these words."""
    (line,) = result.stderr.decode().splitlines()
    assert result.returncode == 2
    assert all(word in line for word in words), line


def tagged(tokenizer: Tokenizer) -> Tokenizer:
    return add_symbols((tokenizer, tokenizer), [TAG])[0]


def tokenizers(folder: Path) -> dict[str, Tokenizer]:
    """A tokenizer of each kind, with the tag as a piece."""
    words = sorted({word for line in ENGLISH + GERMAN for word in line.split()})
    return {
        "bpe": tagged(SentencePieceTokenizer(train_model(ENGLISH + GERMAN, model_type="bpe"))),
        "unigram": tagged(SentencePieceTokenizer(train_model(ENGLISH + GERMAN))),
        "space": tagged(SpaceTokenizer(Vocabulary([*SPECIALS, *words]))),
        "marian": add_symbols(MarianFiles(folder / "marian").tokenizers(), [TAG])[0],
        "fsmt": add_symbols(FsmtFiles(folder / "fsmt").tokenizers(), [TAG])[0],
    }


@pytest.fixture(scope="module")
def translator(make_checkpoint: Callable[..., Checkpoint]) -> Translator:
    """An untrained model of one target language whose vocabulary has the tag."""
    return translator_into("de", make_checkpoint())


@pytest.fixture(scope="module")
def into_several(make_checkpoint: Callable[..., Checkpoint]) -> Translator:
    """The same model, of several target languages."""
    return translator_into("mul", make_checkpoint())


def translator_into(language: str, checkpoint: Checkpoint) -> Translator:
    grown = tagged(checkpoint.source)
    wider = {
        name: np.concatenate([weight, weight])[: len(grown.vocab)]
        if len(weight) == len(checkpoint.source.vocab)
        else weight
        for name, weight in checkpoint.weights.items()
    }
    checkpoint = Checkpoint(checkpoint.model_config, wider, "en", language, grown, grown)
    return Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))


# --- the ids of a tag


@pytest.mark.parametrize("kind", ["bpe", "unigram", "space", "marian", "fsmt"])
def test_a_tag_has_the_ids_that_it_has_at_the_beginning_of_a_line(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    tokenizer = tokenizers(tmp_path)[kind]
    tag = tag_ids(TAG, tokenizer)
    assert tokenizer.vocab.to_pieces(tag)[-1] == TAG
    lines = ENGLISH[:40]
    expected = tokenizer.encode([f"{TAG} {line}" for line in lines])
    assert [[*tag, *ids] for ids in tokenizer.encode(lines)] == expected
    check_tag_apart(TAG, tokenizer)


@pytest.mark.parametrize("normalization", [{"add_dummy_prefix": False}, {"remove_extra_whitespaces": False}], ids=str)
def test_a_tag_that_changes_the_ids_after_it_is_refused(normalization: dict[str, bool]) -> None:
    tokenizer = tagged(SentencePieceTokenizer(train_model(ENGLISH + GERMAN, **normalization)))
    with pytest.raises(UserError, match="segments a text differently after a tag: write the tag at the beginning"):
        check_tag_apart(TAG, tokenizer)


REFUSED = {
    "<2fr>": "not one piece of the vocabulary: preprocess with --user-symbol '<2fr>'",
    f"{TAG}{TAG}": "not one piece of the vocabulary: preprocess with --user-symbol",
    "two words": "a symbol needs printable characters without spaces: use a different tag",
    "<unk>": "the name of a special token: use a different tag",
}


@pytest.mark.parametrize("tag", REFUSED)
def test_a_tag_that_is_not_one_piece_is_refused_with_a_remedy(tag: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=REFUSED[tag]):
        tag_ids(tag, tagged(tokenizer))


# --- translation


def test_a_tag_is_translated_like_one_in_the_text_and_is_no_word_of_alignments(translator: Translator) -> None:
    (by_hand, apart) = translator.stream([f"{TAG} {LINE}", Request(LINE, source_tag=TAG)], SEARCH)
    assert apart.source == LINE
    assert apart.source_ids == by_hand.source_ids
    assert apart.source_tokens == by_hand.source_tokens
    assert [each.text for each in apart.candidates] == [each.text for each in by_hand.candidates]
    for own, other in zip(apart.candidates, by_hand.candidates, strict=True):
        assert own.alignment
        assert other.alignment
        assert all(0 <= i < len(LINE.split()) for i, _ in own.alignment)
        same = {j: i - 1 for i, j in other.alignment if i > 0}  # where the tag did not get the most attention
        assert {j: i for i, j in own.alignment if j in same} == same
    assert apart.source_tokens is not None
    words = source_words(LINE, apart.source_tokens[apart.tag_tokens : -1], translator.source)
    assert words == LINE.split()


@pytest.mark.parametrize("overlong", ["cut", "split"])
def test_each_part_of_an_overlong_line_begins_with_the_tag(overlong: str, translator: Translator) -> None:
    tag, (ids,) = tag_ids(TAG, translator.source), translator.source.encode([LINE * 3])
    batches = StreamConfig(max_source_tokens=len(tag) + 5, overlong=overlong)
    (found,) = translator.stream([Request(LINE * 3, source_tag=TAG)], SEARCH, batches)
    given, begin = list(found.source_ids), found.source_ids.count(tag[-1])
    assert given[: len(tag)] == tag
    assert begin == (1 if overlong == "cut" else sum(token.count("</s>") for token in found.candidates[0].tokens))
    text = "".join(translator.source.surfaces(given)).replace(TAG, "").split()
    assert "".join(text) == "".join(translator.source.surfaces(ids[:5] if overlong == "cut" else ids)).replace(" ", "")


def test_each_part_of_an_overlong_line_begins_with_the_tag_of_the_line_if_there_are_several_languages(
    translator: Translator, into_several: Translator
) -> None:
    batches = StreamConfig(max_source_tokens=8, overlong="split")
    by_hand, apart = into_several.stream([f"{TAG} {LINE * 3}", Request(LINE * 3, source_tag=TAG)], SEARCH, batches)
    assert by_hand.source_ids.count(tag_ids(TAG, into_several.source)[-1]) > 1
    assert by_hand.source_ids == apart.source_ids
    for own, other in zip(by_hand.candidates, apart.candidates, strict=True):
        assert (own.text, own.score) == (other.text, other.score)
        assert own.alignment is not None
        assert other.alignment is not None
        assert own.alignment == tuple((i + 1, j) for i, j in other.alignment)  # the tag is a word of the line
    (once,) = translator.stream([f"{TAG} {LINE * 3}"], SEARCH, batches)  # a placeholder, for example
    assert once.source_ids.count(tag_ids(TAG, translator.source)[-1]) == 1


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_a_tag_in_a_line_that_leaves_no_room_for_text_is_not_repeated(longest: int, into_several: Translator) -> None:
    (ids,) = into_several.source.encode([f"{TAG} {LINE}"])
    batches = StreamConfig(max_source_tokens=longest, overlong="split")
    (found,) = into_several.stream([f"{TAG} {LINE}"], SearchConfig(beam=1), batches)
    (tag, text), given = (ids[:2], ids[2:]), list(found.source_ids)
    assert given == (ids if longest <= len(tag) else [id for last in text for id in (*tag, last)])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "space", "marian", "fsmt"])
def test_the_tag_that_begins_a_line_is_found_and_no_later_symbol(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    tokenizer = tokenizers(tmp_path)[kind]
    tags, tag = tags_in_lines(tokenizer, "mul"), tag_ids(TAG, tokenizer)
    assert tag[-1] in tags
    for line, count in ((f"{TAG} a dog", len(tag)), (f"{TAG} {TAG} a", len(tag)), (f"a {TAG} dog", 0), ("a", 0)):
        (ids,) = tokenizer.encode([line])
        assert count_tag(ids, tags, tokenizer) == count


def test_tags_of_marian_begin_a_line_in_any_model_and_other_symbols_only_if_it_has_several_languages(
    tmp_path: Path,
) -> None:
    marian = tokenizers(tmp_path)["marian"]
    assert marian.vocab.to_pieces(sorted(tags_in_lines(marian, "de"))) == [">>de<<"]
    assert marian.vocab.to_pieces(sorted(tags_in_lines(marian, "mul"))) == [">>de<<", TAG]
    assert tags_in_lines(tagged(SentencePieceTokenizer(train_model(ENGLISH + GERMAN))), "de") == frozenset()


@pytest.mark.parametrize("word", ["<2de>", ">>de<<", "&quot;", "a"])
def test_in_segmented_text_a_tag_is_a_word_that_looks_like_one(word: str) -> None:
    tokenizer = SpaceTokenizer(Vocabulary([*SPECIALS, word]))
    assert bool(tags_in_lines(tokenizer, "mul")) == ("de" in word)


def test_a_tag_in_the_line_is_neither_aligned_nor_copied(into_several: Translator) -> None:
    (found,) = into_several.stream([f"{TAG} {LINE}"], SEARCH)
    (other,) = into_several.stream([Request(LINE, source_tag=TAG)], SEARCH)
    for own, apart in zip(found.candidates, other.candidates, strict=True):
        assert own.alignment is not None
        assert apart.alignment is not None
        assert own.alignment == tuple((i + 1, j) for i, j in apart.alignment)
    words = Vocabulary([*SPECIALS, TAG, *LINE.split()[:3]])
    sentence = Sentence(f"{TAG} x y", [4, 1, 1], [Task([4, 1, 1, EOS])], own_tag=1)
    attention = np.array([[0.9, 0.0, 0.1, 0.0], [0.9, 0.1, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]], np.float32)
    hypothesis = Hypothesis([UNK, UNK], 0.0, [0.0] * 3, attention)
    copying = SearchConfig(copy_unknown=True)
    tokenizer = SpaceTokenizer(words)
    assert translation_of(sentence, [[hypothesis]], tokenizer, tokenizer, copying).text == "y x"


def test_a_limit_that_leaves_room_for_the_tag_only_is_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match="leaves no room for text within"):
        list(translator.stream([Request(LINE, source_tag=TAG)], SEARCH, StreamConfig(max_source_tokens=1)))


# --- datasets


@pytest.fixture(scope="module")
def tagged_datasets(run_command: Run, datasets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `to-de` and `to-en`, of the text of `datasets` with tags, and `plain`, without."""
    folder, text = tmp_path_factory.mktemp("tagged"), datasets["joined"].parent
    splits = ("--trainpref", text / "train", "--validpref", text / "valid")
    symbols = ("--vocab-size", 70, "--user-symbol", "<2de>", "--user-symbol", "<2en>")
    vocabulary = ("--vocab-from", folder / "to-de")
    for arguments in (
        ("-s", "en", "-t", "de", *symbols, "--source-tag", "<2de>", "--max-length", 30, "--destdir", folder / "to-de"),
        ("-s", "de", "-t", "en", *vocabulary, "--source-tag", "<2en>", "--destdir", folder / "to-en"),
        ("-s", "en", "-t", "de", *vocabulary, "--max-length", 30, "--destdir", folder / "plain"),
        ("-s", "de", "-t", "en", *vocabulary, "--destdir", folder / "plain-to-en"),
    ):
        done = run_command("nmt-preprocess", *splits, *arguments)
        assert done.returncode == 0, done.stderr.decode()
    return folder


def test_a_tagged_dataset_has_the_pairs_of_the_untagged_one_after_the_tag(tagged_datasets: Path) -> None:
    with_tag, plain = Dataset.open(tagged_datasets / "to-de"), Dataset.open(tagged_datasets / "plain")
    assert (with_tag.source_tag, plain.source_tag) == ("<2de>", "")
    tag = tag_ids("<2de>", with_tag.source)
    for name in ("train", "valid"):
        ours, theirs = with_tag.split(name), plain.split(name)
        assert len(ours) == len(theirs)
        for i in range(len(ours)):
            assert ours.source[i].tolist() == [*tag, *theirs.source[i].tolist()]
            assert ours.target[i].tolist() == theirs.target[i].tolist()


def test_augmentation_keeps_the_tag_and_merges_the_text_after_it(tagged_datasets: Path) -> None:
    dataset = Dataset.open(tagged_datasets / "to-de")
    split, tag = dataset.split("train"), tag_ids("<2de>", dataset.source)
    stored = [dataset.source.decode(split.source[i][len(tag) : -1].tolist()) for i in range(20)]
    sampling = PairSampling(dataset, split, 0.0, 1000, 1, "merge=1")
    (ids, lengths), _ = sampling.gather(1, np.arange(19))
    for sentence, (text, following) in zip(np.split(ids, np.cumsum(lengths)[:-1]), pairwise(stored), strict=True):
        assert sentence[: len(tag)].tolist() == tag
        assert dataset.source.decode(sentence[len(tag) : -1].tolist()) == f"{text} {following}"


def test_a_mixture_of_languages_trains_a_model_that_translates_each_dataset(
    tagged_datasets: Path, train: Train, run_here: Run, tmp_path: Path
) -> None:
    to_de, to_en = tagged_datasets / "to-de", tagged_datasets / "to-en"
    options = ("--max-updates", 2, "--max-tokens", 400)
    train(tmp_path / "run", to_en, *options, dataset=to_de)
    model = tmp_path / "run" / "checkpoint_last.pt"
    assert load_checkpoint(model).languages == ("mul", "mul")
    train(tmp_path / "run", to_en, *options, dataset=to_de)  # resumes
    generate = ("nmt-generate", "--checkpoint", model, "--beam", 1, "--max-len-b", 5, "--format", "jsonl")
    search = ("--alignment", "--device", "cpu", "--precision", "fp32")
    done = run_here(*generate, *search, to_en, "--split", "valid", "--sacrebleu")
    assert done.returncode == 0, done.stderr.decode()
    text = "".join(json.loads(row)["source"] + "\n" for row in done.stdout.decode().splitlines())
    assert "<2en>" not in text
    again = run_here(*generate, *search, "--source-tag", "<2en>", input=text.encode())
    assert again.stdout == done.stdout
    assert_refused(run_here(*generate, to_en, "--split", "valid", "--source-tag", "<2en>"), "already has the tag <2en>")
    assert_refused(run_here(*generate, "--source-tag", "<2fr>", input=b"a\n"), "not one piece", "--user-symbol")


def test_a_tag_that_a_new_vocabulary_will_not_have_is_refused_before_the_text_is_read(
    run_here: Run, tmp_path: Path
) -> None:
    for side in ("en", "de"):
        (tmp_path / f"text.{side}").write_bytes(b"\xff\n")
    text = ("-s", "en", "-t", "de", "--trainpref", tmp_path / "text", "--destdir", tmp_path / "data")
    assert_refused(run_here("nmt-preprocess", *text, "--source-tag", "<2de>"), "not one piece", "--user-symbol")


def test_text_of_several_languages_has_files_named_source_and_target(run_here: Run, tmp_path: Path) -> None:
    (tmp_path / "all.source").write_text("<2de> a b\n<2en> c\n" * 20)
    (tmp_path / "all.target").write_text("C\nA B\n" * 20)
    arguments = ("nmt-preprocess", "-s", "mul", "-t", "mul", "--trainpref", tmp_path / "all", "--tokenizer", "space")
    done = run_here(*arguments, "--separate-vocab", "--destdir", tmp_path / "data")
    assert done.returncode == 0, done.stderr.decode()
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.languages == ("mul", "mul")
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        *("dataset.json", "train.source.bin", "train.source.idx", "train.target.bin", "train.target.idx"),
        *("vocab.source.txt", "vocab.target.txt"),
    }
    assert dataset.source.decode(dataset.split("train").source[0][:-1].tolist()) == "<2de> a b"


def test_only_mul_can_be_the_language_of_both_sides() -> None:
    assert is_direction("en", "de")
    assert is_direction("mul", "en")
    assert is_direction("mul", "mul")
    assert not is_direction("en", "en")
    assert not is_direction("", "en")
    assert not is_direction("a/b", "en")
    assert side_names(("mul", "en")) == ("mul", "en")
    assert side_names(("mul", "mul")) == ("source", "target")
    assert includes(("mul", "en"), ("de", "en"))
    assert not includes(("de", "en"), ("mul", "en"))

"""Shortlists learned from a dataset, and searches with them through the commands."""

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import Run

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.conversion import lexical
from nmtkit.conversion.lexical import learn_shortlist
from nmtkit.data.corpus import Dataset
from nmtkit.decoding.requests import Request
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.text.vocabulary import EOS

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}


@pytest.fixture(scope="module")
def folder(run_command: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose words have one translation each, and a checkpoint for it."""
    folder = tmp_path_factory.mktemp("shortlist")
    draws = random.Random(1)
    lines = [draws.choices(list(WORDS), k=draws.randint(1, 5)) for _ in range(200)]
    (folder / "train.en").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / "train.de").write_text("".join(" ".join(WORDS[word] for word in line[::-1]) + "\n" for line in lines))
    done = run_command(
        *("nmt-preprocess", "-s", "en", "-t", "de", "--trainpref", folder / "train", "--destdir", folder / "data"),
        *("--tokenizer", "space", "--separate-vocab"),
    )
    assert done.returncode == 0, done.stderr.decode()
    dataset = Dataset.open(folder / "data")
    config = TransformerConfig(
        encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, heads=2, share_embeddings="none"
    )
    model = Transformer(config, len(dataset.source.vocab), len(dataset.target.vocab))
    checkpoint = Checkpoint(
        config, as_arrays(collect_weights(model)), "en", "de", dataset.source, dataset.target, {"update": 1}
    )
    save_checkpoint(folder / "model.pt", checkpoint)
    return folder


@pytest.fixture
def export(run_here: Run, folder: Path) -> Run:
    """Run nmt-export --to shortlist with the checkpoint."""
    return partial(run_here, "nmt-export", folder / "model.pt", "--to", "shortlist")


@pytest.fixture
def lexicon(export: Run, folder: Path) -> Path:
    """The shortlist of one translation for each word, without frequent ones."""
    output = folder / "one.shortlist"
    one = ("--translations", 1, "--frequent", 0)
    done = export("--dataset", folder / "data", *one, "--output", output, "--force")
    assert done.returncode == 0, done.stderr.decode()
    return output


def test_the_best_translation_of_each_word_is_found(folder: Path) -> None:
    dataset = Dataset.open(folder / "data")
    learned = learn_shortlist(dataset, translations=1, frequent=0)
    for word, translation in WORDS.items():
        (source,), (target,) = dataset.source.vocab.to_ids([word]), dataset.target.vocab.to_ids([translation])
        assert learned.tokens([source])[2:].tolist() == [target]


def test_the_most_frequent_pieces_are_in_every_list(folder: Path) -> None:
    dataset = Dataset.open(folder / "data")
    words = (folder / "train.de").read_text().split()
    best = sorted(WORDS.values(), key=words.count)[-2:]
    learned = learn_shortlist(dataset, translations=1, frequent=2)
    assert learned.tokens([EOS]).tolist()[2:] == sorted(
        {*dataset.target.vocab.to_ids(best), *learned.translations[: learned.offsets[4]].tolist()}
    )


def test_translations_contain_only_words_of_the_shortlist(lexicon: Path, folder: Path) -> None:
    translator = Translator.from_checkpoint(folder / "model.pt", shortlist=lexicon)
    for words in (["one"], ["two", "three"]):
        (found,) = translator.translate([" ".join(words)], beam=3)
        allowed = {WORDS[word] for word in words} | {"<unk>", best_of_end(translator)}
        assert set(found.split()) <= allowed


def best_of_end(translator: Translator) -> str:
    """The translation of EOS, which stands for words without a source."""
    shortlist = translator.model.shortlist
    assert shortlist is not None
    return translator.target.vocab.pieces[int(shortlist.tokens([EOS])[-1])]


def test_prefixes_and_terms_may_be_any_words(lexicon: Path, folder: Path) -> None:
    translator = Translator.from_checkpoint(folder / "model.pt", shortlist=lexicon)
    (found,) = translator.translate([Request("one", prefix="zwei", terms=("fünf",))], beam=3)
    assert found.split()[0] == "zwei"
    assert "fünf" in found.split()


def test_workers_use_the_shortlist(lexicon: Path, folder: Path, run_command: Run) -> None:
    command = ("nmt-generate", "--checkpoint", folder / "model.pt", "--shortlist", lexicon)
    lines = b"one two\nthree\n"
    one, two = (run_command(*command, "--workers", count, input=lines) for count in (1, 2))
    assert (one.returncode, two.returncode) == (0, 0), two.stderr.decode()
    assert one.stdout == two.stdout


def test_scores_with_a_shortlist_are_refused(lexicon: Path, folder: Path, run_here: Run) -> None:
    generate = partial(run_here, "nmt-generate", "--checkpoint", folder / "model.pt")
    done = generate("--shortlist", lexicon, "--score", folder / "train.de", "--input", folder / "train.en")
    assert done.returncode == 2
    assert b"--shortlist" in done.stderr
    assert done.stderr.count(b"\n") == 1
    with pytest.raises(UserError, match="without a shortlist"):
        Translator.from_checkpoint(folder / "model.pt", shortlist=lexicon).score(["one"], ["eins"])


def test_a_shortlist_of_another_vocabulary_is_refused(
    lexicon: Path, tiny_checkpoint: Path, run_here: Run, tmp_path: Path
) -> None:
    done = run_here("nmt-generate", "--checkpoint", tiny_checkpoint, "--shortlist", lexicon, input=b"a\n")
    assert done.returncode == 2
    assert b"its vocabulary is not the model's" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_shortlist_needs_a_dataset(export: Run, folder: Path) -> None:
    done = export("--output", folder / "new.shortlist")
    assert (done.returncode, b"--dataset" in done.stderr) == (2, True)
    assert not (folder / "new.shortlist").exists()


def test_only_a_shortlist_is_replaced_and_only_with_force(lexicon: Path, export: Run, folder: Path) -> None:
    data, other = ("--dataset", folder / "data"), folder / "other"
    other.write_bytes(b"text")
    for arguments in (("--output", lexicon), ("--output", other, "--force")):
        done = export(*data, *arguments)
        assert done.returncode == 2, arguments
    assert other.read_bytes() == b"text"


def test_sentence_pairs_too_long_to_align_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Dataset.open(folder / "data").split("train")
    cells = split.source.lengths[:].astype(int) * split.target.lengths[:]
    monkeypatch.setattr(lexical, "_MOST_CELLS", 20)
    assert np.concatenate(lexical._divide(split)).tolist() == np.flatnonzero(cells <= 20).tolist() != []


def test_a_shortlist_does_not_depend_on_how_sentences_are_divided(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset.open(folder / "data")
    whole = learn_shortlist(dataset, 3, 2)
    monkeypatch.setattr(lexical, "_CELLS", 40)
    assert len(lexical._divide(dataset.split("train"))) > 10
    divided = learn_shortlist(dataset, 3, 2)
    sources = [[token, EOS] for token in range(len(dataset.source.vocab))]
    assert [divided.tokens(ids, ()).tolist() for ids in sources] == [whole.tokens(ids, ()).tolist() for ids in sources]

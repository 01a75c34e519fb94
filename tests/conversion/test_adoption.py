"""Small trained models of every family are compared with their own toolkits."""

import random
from pathlib import Path

import pytest
from foreign_tokenizers import ENGLISH, GERMAN

pytest.importorskip("transformers")
pytest.importorskip("sacremoses")
pytest.importorskip("subword_nmt")
pytest.importorskip("ctranslate2")

from adopt import FAMILIES, changed_by, command, compare_greedy, compare_scores
from small_models import Corpus, Recipe

from nmtkit.checkpoint import load_checkpoint

LANGUAGES = ("en", "de")
CORPUS = Corpus(ENGLISH * 20, GERMAN * 20, LANGUAGES)
RECIPE = Recipe(updates=60, vocabulary=60, batch_tokens=300, width=32, warmup=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the models, each of which is trained once."""
    return tmp_path_factory.mktemp("models")


def shuffled_lines(count: int) -> list[str]:
    """Lines of one to nine words of the corpus in random order."""
    choose = random.Random(1)
    words = " ".join(ENGLISH).split()
    return [" ".join(choose.sample(words, choose.randint(1, 9))) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers and of CTranslate2's converter
@pytest.mark.parametrize("name", FAMILIES)
def test_imports_keep_outputs_and_scores_of_trained_models_and_exports_all_but_dropout(name: str, folder: Path) -> None:
    lines = shuffled_lines(60)
    path, original = FAMILIES[name].make(folder, CORPUS, RECIPE)
    imported = folder / f"{name}.pt"
    command("nmt-import", path, "--output", imported, "-s", "en", "-t", "de")
    assert compare_greedy(original, imported, lines) == (60, 60)
    log_prob_error, score_error = compare_scores(original, load_checkpoint(imported), lines)
    assert log_prob_error < 1e-4
    assert score_error < 1e-4
    for form in FAMILIES[name].exports:
        not_in_format = {"dropout", "attention_dropout", "activation_dropout"} if form == "ctranslate2" else set()
        assert set(changed_by(form, imported, LANGUAGES)) <= not_in_format, form

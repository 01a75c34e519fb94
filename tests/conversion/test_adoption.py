"""Small trained models of each family translate in nmtkit as in their own toolkits."""

import re
from pathlib import Path

import pytest
from foreign_tokenizers import ENGLISH, GERMAN

pytest.importorskip("transformers")
pytest.importorskip("sacremoses")
pytest.importorskip("ctranslate2")

from adopt import FAMILIES, command, compare_greedy, compare_scores, survives
from small_models import Corpus, Recipe

from nmtkit.checkpoint import load_checkpoint

LANGUAGES = ("en", "de")
CORPUS = Corpus(ENGLISH * 20, GERMAN * 20, LANGUAGES)
RECIPE = Recipe(updates=30, width=32, layers=2, vocabulary=60, batch_tokens=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the models, each of which is trained once."""
    return tmp_path_factory.mktemp("models")


def lines() -> list[str]:
    """Twelve lines of known words in other orders."""
    words = re.findall(r"\S+", " ".join(ENGLISH))
    return [" ".join(words[begin::5][:9]) for begin in range(12)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers and its converter
@pytest.mark.parametrize("name", FAMILIES)
def test_an_imported_model_translates_and_scores_as_in_its_own_toolkit(name: str, folder: Path) -> None:
    path, original = FAMILIES[name].make(folder, CORPUS, RECIPE)
    imported = folder / f"{name}.pt"
    command("nmt-import", path, "--output", imported, "-s", "en", "-t", "de")
    assert compare_greedy(original, imported, lines()) == (12, 12)
    log_probs, scores = compare_scores(original, load_checkpoint(imported), lines())
    assert log_probs < 1e-4
    assert scores < 1e-4
    assert all(survives(form, imported, LANGUAGES) for form in FAMILIES[name].exports)

"""Folders of Marian models whose files claim more than they store, and many added tokens."""

from pathlib import Path

import pytest
import torch
from marian_models import MarianModel, own_log_probs

from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.marian import from_marian
from nmtkit.errors import UserError

pytest.importorskip("transformers")
pytest.importorskip("safetensors")
OPTIONS = ImportConfig()


def test_shared_matrices_ignore_the_size_of_the_target_vocabulary_like_transformers(tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=2, sharing="all", decoder_vocab_size=10**4)
    imported = from_marian(marian.folder, OPTIONS)
    target, ids = marian.targets(1), marian.own_ids(1, imported)
    ours = own_log_probs(imported, ids[target])[..., ids]
    torch.testing.assert_close(ours, marian.log_probs(target), rtol=0, atol=1e-4)


def test_positions_without_a_width_are_refused_before_their_sinusoids_are_computed(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = MarianModel(tmp_path / "marian", seed=2).folder
    weights = {
        **load_file(folder / "model.safetensors"),
        "model.encoder.embed_positions.weight": torch.empty(10**12, 0),
    }
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"encoder\.embed_positions\.weight is not the table of sinusoids"):
        from_marian(folder, OPTIONS)


def import_with(folder: Path, tokens: list[str]) -> str:
    """Import a folder whose tokenizer has other tokens added, with more ids than its matrices. The refusal."""
    model = MarianModel(folder, seed=2)
    first = len(model.names[0])
    added = {str(number): {"content": token} for number, token in enumerate(tokens, first)}
    model.edit("tokenizer_config.json", added_tokens_decoder=added)
    with pytest.raises(UserError) as error:
        from_marian(folder, OPTIONS)
    return str(error.value)


def test_tens_of_thousands_of_added_tokens_are_checked(tmp_path: Path) -> None:
    """In seconds: comparing each with each would take many minutes."""
    tokens = [f">>{number:06}<<" for number in range(60_000)]
    assert "ids that are not below" in import_with(tmp_path / "distinct", tokens)
    message = import_with(tmp_path / "inside", [*tokens, ">>x>>059999<<"])
    assert "added token '>>x>>059999<<': it contains '>>059999<<', which is not supported" in message


@pytest.mark.parametrize(
    ("tokens", "inner"),
    [
        (["xab", "ab", "abc"], "ab"),
        (["xabc", "a", "abc", "abd"], "a"),
        (["aa", "a"], "a"),
        (["xb", "ba", "b", "c"], "b"),
        (["abab", "ab", "abc"], "ab"),
    ],
)
def test_an_added_token_inside_another_is_refused(tokens: list[str], inner: str, tmp_path: Path) -> None:
    message = import_with(tmp_path / "marian", tokens)
    assert f"added token {tokens[0]!r}: it contains {inner!r}, which is not supported" in message


def test_an_added_token_at_the_beginning_of_another_is_not_inside_it(tmp_path: Path) -> None:
    assert "ids that are not below" in import_with(tmp_path / "marian", ["ab", "abc", "abd"])


def test_a_very_long_added_token_is_refused(tmp_path: Path) -> None:
    message = import_with(tmp_path / "marian", ["x" * 1001])
    assert "it has more than 1000 characters" in message
    assert len(message) < 500

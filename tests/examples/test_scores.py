"""The scores of finished runs."""

from pathlib import Path

import pytest
from scores import Bleu, read_bleu, training_file

from nmtkit.errors import UserError


def test_bleu_is_read_with_its_tokenization(tmp_path: Path) -> None:
    signature = "BLEU|nrefs:1|case:mixed|eff:no|tok:char|smooth:exp|version:2.6.0"
    (tmp_path / "scores.txt").write_text(f"translated\n{signature} = 33.60 64.8/44.3\n")
    assert read_bleu(tmp_path) == Bleu(33.6, "char")


def test_scores_that_are_missing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no BLEU: finish this run with make"):
        read_bleu(tmp_path)


@pytest.mark.parametrize(
    "cut", ["", "BLEU|nrefs:1|tok:char|version:2.6.0 = 33", "BLEU|tok:char|version:2.6.0 = 3.3.3 64.8"]
)
def test_scores_that_are_cut_short_are_refused_with_the_file_to_remove(cut: str, tmp_path: Path) -> None:
    (tmp_path / "scores.txt").write_text(cut)
    with pytest.raises(UserError, match="has no BLEU: remove it, and call make again"):
        read_bleu(tmp_path)


def test_a_removed_checkpoint_is_named_with_what_trains_again(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/metrics.jsonl").touch()
    assert training_file(tmp_path, "metrics.jsonl").exists()
    with pytest.raises(UserError, match=r"checkpoints/last\.pt is missing: .* remove .*/trained, and call make"):
        training_file(tmp_path, "last.pt")

"""What several ranks say: each line once, and by the name of a rank what only that rank has met."""

from pathlib import Path

import pytest
from commands import TINY
from training_runs import TRAIN, finish, start

# nmt-train, in which rank 1 is given what follows --odd as well.
ODD = """
import os, sys
from nmtkit.cli.train import main
common = sys.argv[1 : sys.argv.index("--odd")]
main(common + (sys.argv[len(common) + 2 :] if os.environ["RANK"] == "1" else []))
"""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    (tmp_path / "odd.py").write_text(ODD)
    return tmp_path / "odd.py"


def complaint(program: Path, *arguments: object) -> str:
    """The one line with which two ranks end."""
    process = start(2, program, *arguments)
    lines = [line for line in finish(process, code=1) if line.startswith("nmt-train")]  # 1 is torchrun's own
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (("--beam", 4), "--beam"),
        (("--dropout", 2), "--dropout: 2.0 is too large"),
        (("--freeze", "no"), "--freeze no: "),
    ],
)
def test_an_error_on_all_ranks_is_reported_once(
    mistake: tuple[object, ...], words: str, datasets: dict[str, Path], tmp_path: Path
) -> None:
    line = complaint(TRAIN, datasets["joined"], "--save-dir", tmp_path / "run", *TINY, *mistake)
    assert words in line
    assert "rank" not in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        (("--freeze", "no"), "nmt-train: rank 1: --freeze no: no parameter matches"),
        (("--batch-tokens", 500), "nmt-train: rank 1 has --batch-tokens 500, but rank 0 has 400"),
    ],
)
def test_an_error_on_one_rank_is_reported_with_its_rank(
    mistake: tuple[object, ...], line: str, odd: Path, datasets: dict[str, Path], tmp_path: Path
) -> None:
    said = complaint(odd, datasets["joined"], "--save-dir", tmp_path / "run", *TINY, "--odd", *mistake)
    assert said.startswith(line)
    assert not (tmp_path / "run").exists()


# nmt-train, in which rank 1 has the second of two datasets.
OTHER = """
import os, sys
from nmtkit.cli.train import main
main([sys.argv[1 + int(os.environ["RANK"])], *sys.argv[3:]])
"""


@pytest.mark.slow
def test_ranks_must_have_the_same_validation_split(
    datasets: dict[str, Path], other_validation: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text(OTHER)
    said = complaint(tmp_path / "other.py", datasets["joined"], other_validation, "--save-dir", tmp_path / "run", *TINY)
    assert said.startswith("nmt-train: rank 1 has valid.")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_only_the_main_rank_prints_the_summary_of_the_run(datasets: dict[str, Path], tmp_path: Path) -> None:
    lines = finish(start(2, TRAIN, datasets["joined"], "--save-dir", tmp_path / "run", *TINY, "--dry-run"))
    for words in ("model: ", "data: ", "device: 2 × cpu", "plan: ", "dry run: "):
        assert sum(words in line for line in lines) == 1, words

"""Training on datasets in shards: the same weights as on single files of the same text."""

from pathlib import Path

import numpy as np
import pytest
from commands import Run, Train
from training_runs import DROPOUT, metrics, tensors


@pytest.fixture(scope="module")
def layouts(
    run_command: Run, datasets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Path]]:
    """Two texts with the vocabulary of `joined`, each as single files and in shards."""
    folder, text = tmp_path_factory.mktemp("layouts"), datasets["joined"].parent
    for language in ("en", "de"):
        lines = (text / f"train.{language}").read_text().splitlines(keepends=True)
        (folder / f"half.{language}").write_text("".join(lines[:120]))
    common = ("-s", "en", "-t", "de", "--vocab-from", datasets["joined"], "--validpref", text / "valid")
    made = {}
    for layout, size in (("single", ()), ("shards", ("--shard-size", 1000))):
        made[layout] = folder / layout / "all", folder / layout / "half"
        for prefix, destination in zip((text / "train", folder / "half"), made[layout], strict=True):
            done = run_command("nmt-preprocess", *common, "--trainpref", prefix, "--destdir", destination, *size)
            assert done.returncode == 0, done.stderr.decode()
    return made


def assert_same_weights(first: Path, second: Path) -> None:
    ours, theirs = tensors(first), tensors(second)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("mixed", [False, True])
def test_shards_give_the_same_weights_and_validation_as_single_files(
    mixed: bool, layouts: dict[str, tuple[Path, Path]], train: Train, tmp_path: Path
) -> None:
    assert (layouts["shards"][0] / "train.00004.de.bin").exists()
    for layout, (first, second) in layouts.items():
        others = (second, "--mix", "2,1") if mixed else ()
        train(tmp_path / layout, *others, *DROPOUT, "--max-updates", 14, "--validate-every", 7, dataset=first)
    assert_same_weights(tmp_path / "shards", tmp_path / "single")
    losses = [[row["valid_loss"] for row in metrics(tmp_path / layout, "valid")] for layout in layouts]
    assert losses[0] == losses[1]


def test_subwords_of_shards_are_sampled_as_those_of_single_files(
    layouts: dict[str, tuple[Path, Path]], train: Train, tmp_path: Path
) -> None:
    for layout, (first, _) in layouts.items():
        train(tmp_path / layout, "--subword-sampling", 0.2, "--max-updates", 6, dataset=first)
    assert_same_weights(tmp_path / "shards", tmp_path / "single")

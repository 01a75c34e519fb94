"""What makes training smaller or faster changes no result: activation checkpointing, torch.compile."""

import os
import stat
from functools import partial
from pathlib import Path

import pytest
import torch
from commands import Train
from training_runs import DROPOUT, assert_same_end, tensors

from nmtkit.training.compiling import use_private_cache


def test_checkpointed_activations_give_the_same_weights_bit_for_bit(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "kept", "--max-updates", 4, *DROPOUT)
    train(tmp_path / "computed", "--max-updates", 4, *DROPOUT, "--activation-checkpointing")
    assert_same_end(tmp_path / "kept", tmp_path / "computed")


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_a_compiled_model_trains_like_an_eager_one_and_gives_interchangeable_checkpoints(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # seconds, not minutes
    plain = ("--dropout", 0, "--adam-eps", 1e-5)
    train(tmp_path / "eager", "--max-updates", 4, *plain)
    train(tmp_path / "compiled", "--max-updates", 2, *plain, "--compile", "--ema", 0.5)
    train(tmp_path / "compiled", "--max-updates", 4, *plain, "--compile", "--activation-checkpointing")
    ours, theirs = tensors(tmp_path / "eager"), tensors(tmp_path / "compiled")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=1e-5)


def test_without_a_usable_home_compiled_code_is_cached_in_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for cache, is_used in ((tmp_path / "cache", True), (tmp_path / "file", False)):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        use_private_cache()
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.is_relative_to(cache) == is_used


def test_compile_is_refused_if_torch_cannot_compile(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("\nno compiler found\nmore of it")

    monkeypatch.setattr(torch, "compile", fail)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    message = train(tmp_path, "--max-updates", 1, "--compile", code=2).stderr.decode()
    assert os.environ["PYTHONSAFEPATH"] == "1"  # processes of the compiler import nothing from the current folder
    assert message.count("\n") == 1
    assert "--compile: torch cannot compile on this machine (no compiler found): omit it" in message

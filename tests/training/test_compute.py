"""What makes training smaller or faster changes no result: activation checkpointing, torch.compile."""

import os
import stat
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from commands import Train
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from training_runs import DROPOUT, assert_same_end, tensors

from nmtkit.data.batch import Batch
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.training import compiling
from nmtkit.training.capacity import _peak_memory
from nmtkit.training.compiling import compile_model
from nmtkit.training.loss import batch_loss


def test_checkpointed_activations_give_the_same_weights_bit_for_bit(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "kept", "--max-updates", 4, *DROPOUT)
    train(tmp_path / "computed", "--max-updates", 4, *DROPOUT, "--activation-checkpointing")
    assert_same_end(tmp_path / "kept", tmp_path / "computed")


def test_checkpointed_activations_take_less_memory() -> None:
    config = TransformerConfig(encoder_layers=4, decoder_layers=4, d_model=16, d_ff=64, heads=2)
    model = Transformer(config, 20, 20)
    rows = torch.full((20, 20), 5)

    def work() -> None:
        loss, _ = batch_loss(model, Batch.unpadded(rows, rows, rows), smoothing=0.1)
        torch.autograd.backward(loss)

    kept = _peak_memory(torch.device("cpu"), work)
    model.activation_checkpointing = True
    assert _peak_memory(torch.device("cpu"), work) < 0.5 * kept


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_compiled_code_is_cached_in_a_private_folder(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "nmtkit" / "torchinductor"
    cache.mkdir(parents=True)
    cache.chmod(mode)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    compiling._private_folder.cache_clear()
    monkeypatch.setattr(os, "environ", {key: os.environ[key] for key in os.environ if "INDUCTOR" not in key})
    os.environ["XDG_CACHE_HOME"] = str(tmp_path)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=4, d_ff=4, heads=1)
    compile_model(Transformer(config, 5, 5), torch.device("cpu"))
    used = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert (used == cache) == (mode == 0o700)
    for folder in (used, Path(tempfile.gettempdir()), Path(default_cache_dir()).parent):
        assert folder.is_relative_to(used)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


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


def test_compile_is_refused_if_torch_cannot_compile(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("\nno compiler found\nmore of it")

    monkeypatch.setattr(torch, "compile", fail)
    message = train(tmp_path, "--max-updates", 1, "--compile", code=2).stderr.decode()
    assert message.count("\n") == 1
    assert "--compile: torch cannot compile on this machine (no compiler found): omit it" in message


def test_processes_of_the_compiler_import_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONSAFEPATH", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("nmtkit.training.compiling._private_folder", lambda: tmp_path)
    compiling._use_private_temporary_files()
    assert os.environ["PYTHONSAFEPATH"] == "1"

"""Compiles encoder and decoder, or each layer, with torch.compile. Parameter names stay the same."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import nn

from nmtkit.errors import UserError
from nmtkit.machine.workers import import_nothing_from_current_folder
from nmtkit.model.translation_model import TranslationModel
from nmtkit.wording import first_line

_VARIANTS = 64  # of a function: training or not, few or many positions, one sentence or several, …


def compile_model(model: TranslationModel, device: torch.device) -> None:
    """Compile the `graphs` of a model, or its layers if it has none, on first use, for any batch size and length. Equal
    layers share code. Raises UserError if torch cannot compile on this machine."""
    use_private_cache()
    import_nothing_from_current_folder()  # the compiler's processes
    _try(device)
    torch._dynamo.config.recompile_limit = _VARIANTS
    # Otherwise torch 2.9 assumes that two sizes that are equal once are always equal.
    torch.fx.experimental._config.use_duck_shape = False
    torch._dynamo.config.optimize_ddp = False  # it splits graphs where a bucket of gradients ends
    for name in model.graphs:
        setattr(model, name, torch.compile(getattr(model, name), dynamic=True))
    if not model.graphs:
        for layer in model.layers():
            layer.compile(dynamic=True)


def use_private_cache() -> None:
    """Let torch keep compiled code in the user's cache folder. Call this before creating an optimizer.

    torch's own folder, in /tmp, fails for a user without a name, as in a container. TORCHINDUCTOR_CACHE_DIR is kept.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_cache_folder())


def is_compile_error(error: BaseException) -> bool:
    """Whether an error comes from torch's compiler."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def _cache_folder() -> Path:
    """Return a folder for compiled code, in the user's cache if possible, else a temporary folder."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nmtkit" / "torchinductor"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except (OSError, RuntimeError):  # no home folder, or it is not writable
        pass
    temporary = tempfile.mkdtemp(prefix="nmtkit-torchinductor-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)


def _try(device: torch.device) -> None:
    """Compile a small function, forward and backward. Raises UserError if a compiler or its files are missing."""
    small = nn.Linear(2, 2).to(device)
    try:
        loss = torch.compile(lambda x: torch.relu(small(x)).sum())(torch.ones(2, 2, device=device))
        torch.autograd.backward(loss)
    except Exception as error:
        raise UserError(
            f"--compile: torch cannot compile on this machine ({first_line(error)}): omit it, or install "
            f"{'Triton' if device.type == 'cuda' else 'a C++ compiler and the Python headers'}"
        ) from error

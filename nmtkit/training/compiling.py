"""torch.compile for a model's layers, one at a time, so that parameter names do not change."""

import os
import stat
import tempfile
from pathlib import Path

import torch
from torch import nn

from nmtkit.errors import UserError
from nmtkit.model.protocol import TranslationModel

_VARIANTS = 64  # of a layer: training or not, few or many positions, one sentence or several, …


def compile_layers(model: TranslationModel, device: torch.device) -> None:
    """Compile each layer at its first use, for any batch size and length. Equal layers share compiled code.

    UserError where torch cannot compile on this machine.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_private_cache())
    _try(device)
    torch._dynamo.config.recompile_limit = _VARIANTS
    torch.fx.experimental._config.use_duck_shape = (
        False  # else torch 2.9 assumes that sizes equal once are always equal
    )
    for layer in model.layers():
        layer.compile(dynamic=True)


def _private_cache() -> Path:
    """A folder for compiled code that only this user can write to.

    torch's default is a folder in /tmp with a predictable name: another user could put code there.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(base).expanduser() / "nmtkit" / "torchinductor"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return folder
    except (OSError, RuntimeError):  # no home, or none that can be written
        pass
    return Path(tempfile.mkdtemp(prefix="nmtkit-torchinductor-"))


def _try(device: torch.device) -> None:
    """Compile a small function, forward and backward: whatever is missing on this machine fails here."""
    small = nn.Linear(2, 2).to(device)
    try:
        loss = torch.compile(lambda x: torch.relu(small(x)).sum())(torch.ones(2, 2, device=device))
        torch.autograd.backward(loss)
    except Exception as error:
        reason = next(line for line in str(error).splitlines() if line.strip())
        raise UserError(
            f"--compile: torch cannot compile on this machine ({reason.strip()}): omit it, or install "
            f"{'Triton' if device.type == 'cuda' else 'a C++ compiler and the headers of Python'}"
        ) from error

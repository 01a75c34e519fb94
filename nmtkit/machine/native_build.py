"""Selects the build of nmtkit/native that fits this CPU."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from nmtkit.console.log import logger
from nmtkit.machine.native_sources import STALE, is_stale

# Faster than torch, the fastest first.
BUILDS = {"_native_avx512vnni": "AVX-512 with VNNI", "_native_avx512": "AVX-512", "_native_avx2": "AVX2"}
# For int8, which torch does not support. In fp32, slower than torch or not measured.
PORTABLE = {"_native_neon": "NEON", "_native_scalar": "portable"}


def _load() -> ModuleType | None:
    """Load the first compiled build that this CPU can run."""
    for name in BUILDS | PORTABLE:
        try:
            module = import_module(f"nmtkit.{name}")
        except ModuleNotFoundError:
            continue
        except ImportError as error:
            if "this CPU has no" not in str(error):  # the module's own message
                logger.warning("cannot load nmtkit.%s (%s): reinstall nmtkit", name, error)
            continue
        if not is_stale(module):
            return module
        logger.warning(STALE, name)
    return None


if TYPE_CHECKING:
    import nmtkit._native as _native

    native = _native
else:
    native = _load()


def available(number_format: str) -> bool:
    """Whether the compiled search is used for a number format on this CPU."""
    if native is None or number_format not in ("fp32", "int8"):
        return False
    return number_format == "int8" or _name() in BUILDS


def isa() -> str:
    """Return the instruction set of the loaded build, which must exist."""
    return (BUILDS | PORTABLE)[_name()]


def is_missing() -> bool:
    """Whether a build for this CPU was not compiled when nmtkit was installed."""
    import torch

    return native is None or (_name() not in BUILDS and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"))


def _name() -> str:
    return native.__name__.rpartition(".")[2]

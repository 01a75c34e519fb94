"""Runs tests with each build of nmtkit/native."""

from importlib import import_module

import pytest

from nmtkit.machine import native_build

BUILDS = ("_native_scalar", "_native_avx2", "_native_avx512", "_native_avx512vnni")


def use_build(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with that build, also where torch is faster. Skips the test where it is not compiled, or this CPU cannot
    run it. A build that exists but cannot be loaded fails."""
    try:
        monkeypatch.setattr(native_build, "native", import_module(f"nmtkit.{name}"))
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) or "this CPU has no" in str(error):
            pytest.skip(str(error))
        raise
    monkeypatch.setattr(native_build, "BUILDS", {name: name})


def use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute without a build."""
    monkeypatch.setattr(native_build, "native", None)

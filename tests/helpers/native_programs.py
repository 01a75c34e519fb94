"""Compiling C++ test programs as setup.py compiles the modules."""

import ast
import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from repository import ROOT


@functools.cache
def _assigned(name: str) -> Any:
    """A constant of setup.py."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"setup.py does not assign {name}")


def compile_program(source: Path, build: str, target: Path, *flags: str, compiler: str = "g++") -> Path:
    """Compile a program that includes headers of nmtkit/native for one of the builds; returns `target`.

    Skips the test where the compiler is missing.
    """
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    command = [compiler, *_assigned("COMMON_FLAGS"), *_assigned("NATIVE_FLAGS")[build], "-O1", "-pthread", *flags]
    done = subprocess.run([*command, source, "-o", target], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return target

"""Libraries that a command cannot load: one line that names the library and the reason, and exit code 1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from repository import BIN, ROOT

WHAT_TO_DO = "stop other processes, or raise the limit (ulimit -v)"
NO_ROOM = "libgfortran.so.5: failed to map segment from shared object"
ADVICE = f"""
try:
    raise ImportError({NO_ROOM!r})
except ImportError as error:
    raise ImportError("a page of advice") from error
"""


@pytest.mark.parametrize(
    ("numpy", "line"),
    [
        (f"raise ImportError({NO_ROOM!r})", f"cannot load a library: {NO_ROOM}; {WHAT_TO_DO}"),
        (ADVICE, f"cannot load a library: {NO_ROOM}; {WHAT_TO_DO}"),
        ("raise OSError('libm.so: no such file')", "cannot load a library: libm.so: no such file"),
        ("raise MemoryError", f"out of memory while loading numpy: {WHAT_TO_DO}"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_one_line(numpy: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text(numpy)
    options = ("-s", "en", "-t", "de", "--testpref", "a", "--vocab-from", "b", "--destdir", "c")
    done = subprocess.run(
        [sys.executable, BIN / "nmt-preprocess", *options],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"nmt-preprocess: {line}\n"

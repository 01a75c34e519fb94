"""Mutated checkpoints are refused in one line or loaded, in bounded memory."""

import json
import subprocess
import sys
from pathlib import Path

import fuzz_checkpoints
import pytest
from patience import PATIENCE


@pytest.mark.parametrize("seed", [1, 2])
def test_a_mutated_checkpoint_is_refused_in_one_line_or_loaded(
    seed: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    command = [sys.executable, fuzz_checkpoints.__file__, tiny_checkpoint, tmp_path, seed, 160]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    outcomes = json.loads(done.stdout)
    assert outcomes["others"] == []
    assert outcomes["refused"] > outcomes["loaded"] > 0

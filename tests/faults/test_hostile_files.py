"""Files from strangers: no code in them runs, and nothing outside the output is read or written."""

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import TINY, Run
from forged import archive_of, header_of, members_of, signed, with_header, with_tensor

from nmtkit.checkpoint import load_checkpoint, read_progress
from nmtkit.errors import UserError
from nmtkit.storage.files import sha256_of_fields

NORM = "weights.encoder.0.around_self_attention.norm.weight"  # a tensor of 16 elements


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.witness),)


def test_no_command_runs_code_from_a_file(datasets: dict[str, Path], run_here: Run, tmp_path: Path) -> None:
    bomb, witness, new = tmp_path / "bomb.pt", tmp_path / "witness", tmp_path / "new"
    content = io.BytesIO()
    torch.save({"header": Bomb(witness), "model": Bomb(witness), "args": Bomb(witness)}, content)
    for written in (content.getvalue(), signed(content.getvalue())):  # also with a valid checksum
        bomb.write_bytes(written)
        for command, words in (
            ("nmt-average", (bomb, "--output", new)),
            ("nmt-generate", ("--checkpoint", bomb, "--output", new)),
            ("nmt-export", (bomb, "--to", "safetensors", "--output", new)),
            ("nmt-import", (bomb, "--output", new)),
            ("nmt-train", (datasets["joined"], "--save-dir", new, *TINY, "--init-from", bomb)),
        ):
            done = run_here(command, *words)
            assert (done.returncode, b"Traceback" in done.stderr, b"bomb.pt" in done.stderr) == (2, False, True)
            assert not witness.exists()
            assert not new.exists()


def test_the_pickle_inside_a_checkpoint_is_never_read(tiny_checkpoint: Path, tmp_path: Path) -> None:
    members = members_of(tiny_checkpoint.read_bytes()) | {"archive/data.pkl": b"not a pickle"}
    (tmp_path / "a.pt").write_bytes(archive_of(members))
    weights, expected = (load_checkpoint(path).weights for path in (tmp_path / "a.pt", tiny_checkpoint))
    assert all(np.array_equal(weights[name], weight) for name, weight in expected.items())


def test_members_of_a_checkpoint_are_not_extracted(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    outside = {"../outside": b"x", f"{tmp_path}/absolute": b"x"}
    content = archive_of(members_of(tiny_checkpoint.read_bytes()) | outside)
    (tmp_path / "inner/a.pt").write_bytes(content)
    load_checkpoint(tmp_path / "inner/a.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]


@pytest.mark.parametrize(
    ("kind", "shape", "size"),
    [("float32", shape, 64) for shape in ([10**6, 10**6], [-4, -4], [16.0])] + [("int8", [16], 16)],
)
def test_types_and_shapes_are_compared_with_the_file_before_memory_is_allocated(
    kind: str, shape: list[float], size: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(with_tensor(tiny_checkpoint.read_bytes(), NORM, kind, shape, bytes(size)))
    with pytest.raises(UserError, match=f"{path}: .*{NORM.removeprefix('weights.')}"):
        load_checkpoint(path)


def test_a_model_that_its_weights_do_not_fill_is_refused_before_memory_is_allocated(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    path, content = tmp_path / "a.pt", tiny_checkpoint.read_bytes()
    model = header_of(members_of(content))["model"] | {"d_model": 10**6, "d_ff": 10**6}
    path.write_bytes(with_header(content, {"model": model}))
    with pytest.raises(UserError, match=f"{path}: the weights do not fit the model"):
        load_checkpoint(path)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # that nobody writes to
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        for read in (load_checkpoint, read_progress):
            with pytest.raises(UserError, match=str(path)):
                read(path)


@pytest.mark.parametrize("name", ["../outside.bin", "/etc/passwd", "other.bin"])
def test_a_dataset_that_lists_files_elsewhere_is_refused(
    name: str, datasets: dict[str, Path], run_here: Run, tmp_path: Path
) -> None:
    dataset = tmp_path / "dataset"
    shutil.copytree(datasets["joined"], dataset)
    fields = json.loads((dataset / "dataset.json").read_text())
    fields["files"][name] = fields["files"].pop("train.en.bin")
    fields["sha256"] = sha256_of_fields(fields)
    (dataset / "dataset.json").write_text(json.dumps(fields))
    done = run_here("nmt-train", dataset, "--save-dir", tmp_path / "run", *TINY)
    assert (done.returncode, name in done.stderr.decode().splitlines()[-1]) == (2, True), done.stderr

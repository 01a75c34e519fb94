"""The archive under a checkpoint: read without pickle, of exactly the sizes that it claims, and never opened twice."""

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forged import archive_of, header_of, members_of, signed, unsigned, with_header, with_tensor
from patience import PATIENCE

from nmtkit.checkpoint import Checkpoint, load_checkpoint, read_progress, save_checkpoint
from nmtkit.errors import UserError
from nmtkit.storage import archive
from nmtkit.storage.files import sha256_of_file

NORM = "weights.encoder.0.around_self_attention.norm.weight"  # a tensor of 16 elements
MakeCheckpoint = Callable[..., Checkpoint]

# Reads files within 128 MiB more than Python and torch have taken.
BOUNDED = """
import resource, sys
from pathlib import Path
from nmtkit.checkpoint import load_checkpoint, read_progress
from nmtkit.errors import UserError
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 27), -1))
for path in map(Path, sys.argv[1:]):
    try:
        read_progress(path)
        load_checkpoint(path)
    except UserError as error:
        print(error)
"""


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        load_checkpoint(path)
    return str(error.value)


def assert_same_weights(first: Checkpoint, second: Checkpoint) -> None:
    assert first.weights.keys() == second.weights.keys()
    assert all(torch.equal(tensor, second.weights[name]) for name, tensor in first.weights.items())


# What is read


def test_tensors_are_read_at_any_byte_alignment(tiny_checkpoint: Path, tmp_path: Path) -> None:
    members, original = members_of(tiny_checkpoint.read_bytes()), load_checkpoint(tiny_checkpoint)
    for padding in range(4):  # before the first tensor
        path = tmp_path / f"{padding}.pt"
        path.write_bytes(archive_of({"archive/padding": bytes(padding), **members}))
        assert_same_weights(load_checkpoint(path), original)


def test_tensors_are_described_by_the_header_alone(tiny_checkpoint: Path, tmp_path: Path) -> None:
    members = members_of(tiny_checkpoint.read_bytes())
    members["archive/data.pkl"] = b"not a pickle"
    (tmp_path / "a.pt").write_bytes(archive_of(members))
    assert_same_weights(load_checkpoint(tmp_path / "a.pt"), load_checkpoint(tiny_checkpoint))


def test_changing_loaded_tensors_does_not_change_the_file(tiny_checkpoint: Path) -> None:
    before = tiny_checkpoint.read_bytes()
    for weight in load_checkpoint(tiny_checkpoint).weights.values():
        weight.zero_()
    assert tiny_checkpoint.read_bytes() == before


def test_a_file_replaced_while_it_is_read_gives_its_original_content(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pt"
    for successor in (None, make_checkpoint(seed=2)):
        save_checkpoint(path, make_checkpoint(seed=1))

        def replace_after_checksum(*arguments: Any, successor: Checkpoint | None = successor) -> str:
            digest = sha256_of_file(*arguments)
            path.unlink() if successor is None else save_checkpoint(path, successor)
            return digest

        monkeypatch.setattr(archive, "sha256_of_file", replace_after_checksum)
        assert_same_weights(load_checkpoint(path), make_checkpoint(seed=1))


# What is written


def test_tensors_that_share_memory_are_written_as_separate_members(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    whole = torch.randn(3 * 16)
    views = {"a.x": whole[:16], "b.x": whole[16:32], "c.x": whole[32:]}
    optimizer = {**views, "strided.x": whole[::2], "again.x": views["a.x"]}
    save_checkpoint(tmp_path / "a.pt", replace(checkpoint, ema=checkpoint.weights, optimizer=optimizer))
    loaded = load_checkpoint(tmp_path / "a.pt")
    for written, read in ((checkpoint.weights, loaded.ema), (optimizer, loaded.optimizer)):
        assert read is not None
        assert read.keys() == written.keys()
        assert all(torch.equal(tensor, read[name]) for name, tensor in written.items())
    members = members_of((tmp_path / "a.pt").read_bytes())
    for number, (_, _, shape) in enumerate(header_of(members)["tensors"], 1):
        assert len(members[f"archive/data/{number}"]) in (torch.Size(shape).numel(), 4 * torch.Size(shape).numel())


def test_an_unsupported_tensor_type_is_not_written(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    weights = {name: weight.bfloat16() for name, weight in checkpoint.weights.items()}
    with pytest.raises(UserError, match=r"weights\..* is torch\.bfloat16: a checkpoint can hold"):
        save_checkpoint(tmp_path / "a.pt", replace(checkpoint, weights=weights))
    assert list(tmp_path.iterdir()) == []


# What is refused


def expanded() -> bytes:
    """An archive of torch, of 2 KB, with a tensor of 16 GiB: one element, repeated by a stride of 0."""
    file = io.BytesIO()
    torch.save({"header": torch.zeros(1, dtype=torch.uint8).expand(1 << 34)}, file)
    return signed(file.getvalue())


def deflated(content: bytes) -> bytes:
    """A checkpoint of some 300 KB whose header decompresses to 256 MiB."""
    return archive_of({**members_of(content), "archive/data/0": bytes(1 << 28)}, zipfile.ZIP_DEFLATED)


def with_model(content: bytes, **changes: Any) -> bytes:
    """A checkpoint whose header describes another model than its weights are of."""
    return with_header(content, {"model": header_of(members_of(content))["model"] | changes})


def test_small_hostile_files_are_refused_with_little_memory(tiny_checkpoint: Path, tmp_path: Path) -> None:
    content = tiny_checkpoint.read_bytes()
    files = {
        "stride": (expanded(), "not an nmtkit checkpoint"),
        "deflate": (deflated(content), "compressed or encrypted: not an nmtkit checkpoint"),
        "shape": (with_tensor(content, NORM, "float32", [10**6, 10**6], bytes(64)), "does not match its shape"),
        "width": (with_model(content, d_model=10**6, d_ff=10**6), "has [330, 16] where [330, 1000000] is expected"),
        "positions": (with_model(content, positions="learned", max_positions=10**6), "positions.table is missing"),
        "layers": (with_model(content, encoder_layers=10**4), "is missing"),
    }
    for name, (forged, _) in files.items():
        (tmp_path / name).write_bytes(forged)
    command = [sys.executable, "-c", BOUNDED, *(str(tmp_path / name) for name in files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stderr == ""
    for (name, (_, words)), line in zip(files.items(), done.stdout.splitlines(), strict=True):
        assert line.startswith(f"{tmp_path / name}: ")
        assert words in line


@pytest.mark.parametrize(
    ("type_name", "item_size"),
    [
        *(("int8", 1), ("bool", 1), ("float8_e4m3fn", 1), ("quint8", 1), ("float16", 2), ("bfloat16", 2)),
        *(("int32", 4), ("int64", 8), ("float64", 8), ("complex64", 8), ("wings", 4)),
    ],
)
def test_unsupported_element_types_are_refused_and_named(
    type_name: str, item_size: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    content = with_tensor(tiny_checkpoint.read_bytes(), NORM, type_name, [16], bytes(16 * item_size))
    assert f"{NORM} is {type_name}: nmtkit reads float32 and uint8" in refusal(tmp_path / "a.pt", content)


def test_weights_must_be_float32(tiny_checkpoint: Path, tmp_path: Path) -> None:
    content = with_tensor(tiny_checkpoint.read_bytes(), NORM, "uint8", [16], bytes(16))
    name = NORM.removeprefix("weights.")
    assert f"{name} is strided uint8 where strided float32 is expected" in refusal(tmp_path / "a.pt", content)


@pytest.mark.parametrize(
    "shape",
    [[-16], [-4, -4], [16.0], [True, 16], ["16"], [[16]], [16, 0], [0, 16], [16, *[1] * 8], "16"],
    ids=str,
)
def test_impossible_tensor_shapes_are_refused(shape: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    said = refusal(tmp_path / "a.pt", with_tensor(tiny_checkpoint.read_bytes(), NORM, "float32", shape, bytes(64)))
    assert said == f"{tmp_path / 'a.pt'}: {NORM} has an impossible shape"


@pytest.mark.parametrize("shape", [[15], [17], [4, 5], [], [2**64 + 16]], ids=str)
def test_a_tensor_whose_size_does_not_match_its_shape_is_refused(
    shape: list[int], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    said = refusal(tmp_path / "a.pt", with_tensor(tiny_checkpoint.read_bytes(), NORM, "float32", shape, bytes(64)))
    assert said == f"{tmp_path / 'a.pt'}: {NORM} has 64 bytes, which does not match its shape"


def test_an_archive_whose_members_share_the_largest_member_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    content = bytearray(unsigned(tiny_checkpoint.read_bytes()))
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        entries = {entry.filename: entry for entry in zipped.infolist()}
        directory = zipped.start_dir
    largest = max(entries.values(), key=lambda entry: entry.file_size)
    place = directory
    while content[place : place + 4] == b"PK\1\2":  # entries of the zip directory
        sizes = [int.from_bytes(content[place + at : place + at + 2], "little") for at in (28, 30, 32)]
        name = content[place + 46 : place + 46 + sizes[0]].decode()
        if name.startswith("archive/data/"):  # each of them is the largest now
            content[place + 20 : place + 28] = 2 * largest.file_size.to_bytes(4, "little")
            content[place + 42 : place + 46] = largest.header_offset.to_bytes(4, "little")
        place += 46 + sum(sizes)
    path = tmp_path / "a.pt"
    assert "damaged, or not an nmtkit checkpoint" in refusal(path, signed(bytes(content)))
    with pytest.raises(UserError, match="damaged, or not an nmtkit checkpoint"):
        read_progress(path)


def test_two_members_that_share_bytes_are_refused_even_if_the_file_has_room_for_both(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    members = members_of(tiny_checkpoint.read_bytes())
    content = bytearray(unsigned(archive_of(members)))
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        directory = zipped.start_dir
        sizes = {entry.file_size for entry in zipped.infolist() if entry.filename.startswith("archive/data/")}
        first, second = next(
            pair
            for size in sorted(sizes)
            if len(pair := [entry for entry in zipped.infolist() if entry.file_size == size][:2]) == 2
        )
    place = content.index(second.filename.encode(), directory) - 46
    content[place + 42 : place + 46] = first.header_offset.to_bytes(4, "little")
    assert "damaged, or not an nmtkit checkpoint" in refusal(tmp_path / "a.pt", signed(bytes(content)))


def test_an_encrypted_member_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    content = bytearray(unsigned(tiny_checkpoint.read_bytes()))
    content[content.index(b"PK\1\2") + 8] |= 1  # the flag in the zip directory
    said = refusal(tmp_path / "a.pt", signed(bytes(content)))
    assert "compressed or encrypted: not an nmtkit checkpoint" in said


def test_a_duplicate_member_in_the_zip_directory_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    content = unsigned(tiny_checkpoint.read_bytes())
    twice = content.replace(b"archive/data/2", b"archive/data/1")
    assert "damaged, or not an nmtkit checkpoint" in refusal(tmp_path / "a.pt", signed(twice))


def test_a_duplicate_tensor_in_the_header_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    members = members_of(tiny_checkpoint.read_bytes())
    tensors = header_of(members)["tensors"]
    count = len(tensors)
    members[f"archive/data/{count + 1}"] = members[f"archive/data/{count}"]
    content = with_header(archive_of(members), {"tensors": [*tensors, tensors[-1]]})
    assert "the header lists a tensor twice" in refusal(tmp_path / "a.pt", content)


def test_a_header_with_a_key_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'format' is given twice"):
        archive.parse_header(b'{"format": "nmtkit checkpoint", "version": 1, "format": "nmtkit checkpoint"}')


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "changes",
    [
        *({"source_language": 5}, {"target_language": None}, {"progress": []}, {"model": []}, {"model": {"d_k": 3.5}}),
        *({"tensors": {}}, {"tensors": None}, {"tensors": [[]]}, {"tensors": [["x" * 999, "float32", [16]]]}),
        *(
            {"version": True},
            {"version": "x" * 9999},
            {"progress": {"note": "\ud800"}},
            {"progress": {"note": nested(100)}},
        ),
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_a_header_with_invalid_values_is_refused_with_a_short_message(
    changes: dict[str, Any], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    said = refusal(tmp_path / "a.pt", with_header(tiny_checkpoint.read_bytes(), changes))
    assert said.startswith(f"{tmp_path / 'a.pt'}: ")
    assert len(said.removeprefix(str(tmp_path))) < 200


def test_a_header_that_is_too_large_is_neither_read_nor_written(
    make_checkpoint: MakeCheckpoint, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(members_of(tiny_checkpoint.read_bytes())["archive/data/0"])
    monkeypatch.setattr(archive, "_MAX_HEADER_BYTES", size)
    load_checkpoint(tiny_checkpoint)
    monkeypatch.setattr(archive, "_MAX_HEADER_BYTES", size - 1)
    for read in (load_checkpoint, read_progress):
        with pytest.raises(UserError, match=f"its header has {size} bytes, more than {size - 1}"):
            read(tiny_checkpoint)
    with pytest.raises(UserError, match=f"the header of the checkpoint has {size} bytes, more than {size - 1}"):
        save_checkpoint(tmp_path / "a.pt", make_checkpoint())


def test_another_byte_order_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    members = members_of(tiny_checkpoint.read_bytes()) | {"archive/byteorder": b"big"}
    assert "byte order" in refusal(tmp_path / "a.pt", archive_of(members))


# What is not a file


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # that nobody writes to
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        for read in (load_checkpoint, read_progress):
            with pytest.raises(UserError, match=rf"^{path}: not a regular file$"):
                read(path)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="Linux only")
def test_files_that_do_not_report_their_size_are_refused() -> None:
    for path in (Path("/proc/self/mem"), Path("/proc/self/status")):
        for read in (load_checkpoint, read_progress):
            with pytest.raises(UserError, match=str(path)):
                read(path)

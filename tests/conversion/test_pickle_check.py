"""Hostile pickles are refused before they take time or memory; those of torch.save are accepted."""

import argparse
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.conversion.pickled import load_pickled
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors

NODE = b"comegaconf.dictconfig\nDictConfig\n)\x81"


def attribute(name: bytes, value: bytes) -> bytes:
    """A state with one attribute, for BUILD."""
    return b"}X%c\0\0\0%b%bs" % (len(name), name, value)


LEVELS = 38  # of containers that have the next one twice: 2 ** 38 values in less than 1 KB
NESTED = b"K\1\x85q\0" + b"".join(b"h%c\x86q%c" % (level, level + 1) for level in range(LEVELS))
EMPTY_LISTS = b"".join(b"]q%c" % level for level in range(LEVELS + 1))
FILLED_LATER = b"(" + EMPTY_LISTS + b"".join(b"h%c(h%ch%ce" % (n, n + 1, n + 1) for n in range(LEVELS)) + b"t"


class Calls:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def with_pickle(path: Path, content: bytes) -> Path:
    """A zip file of torch.save with another pickle."""
    torch.save({"a": 1}, path)
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, value in members.items():
            archive.writestr(name, content if name.endswith("data.pkl") else value)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error, as_user_errors(path):
        load_pickled(path)
    return str(error.value)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"}\x8a\x08" + (2**61 - 1).to_bytes(8, "little") + b"K\1s", "a key of its dicts is neither a string nor"),
        (b"}" + NESTED + b"K\1s", "a key of its dicts is neither a string nor a small number"),
        (NESTED, "repeat each other too often"),
        (FILLED_LATER, "repeat each other too often"),
        (b"]q\0h\0a", "nested too deeply"),
        (b"]" * 200 + b"a" * 199, "nested too deeply"),
        (b"ccopyreg\n_reconstructor\n", "an object of copyreg._reconstructor"),
        (b"ctorch\nFloatStorage\nJ\0\0\0\x7f\x85R", "it calls torch FloatStorage"),
        (b"ctorch\nfloat32\n)\x81", "it calls torch float32"),
        (b"c_codecs\nencode\nX\1\0\0\0aX\x08\0\0\0punycode\x86R", "it encodes text"),
        (b"ccollections\nOrderedDict\n]\x85R", "with arguments"),
        (NODE + b"q\0" + attribute(b"_content", b"h\0") + b"b", "nested too deeply"),
        (NODE + attribute(b"_content", NESTED) + b"b", "repeat each other too often"),
        (NODE + NESTED + b"b", "damaged"),
        (b"comegaconf.dictconfig\nDictConfig\n)R", "it calls omegaconf.dictconfig DictConfig"),
        (b"\x8e" + b"\xff" * 7 + b"\x7f", "damaged"),
        (b"h\0", "damaged"),
        (b"\x86", "damaged"),
    ],
)
def test_a_pickle_that_torch_does_not_write_is_refused(
    content: bytes, words: str, is_zip: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    if is_zip:
        with_pickle(path, b"\x80\2" + content + b".")
    else:
        path.write_bytes(b"\x80\2" + content + b".")
    assert words in refusal(path)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(
    "hostile", [Calls(bytearray, 10**12), Calls(torch.FloatTensor, 10**12), Calls(torch.Size, (10**12,))]
)
def test_a_call_that_could_take_all_memory_is_refused(hostile: object, is_zip: bool, tmp_path: Path) -> None:
    torch.save({"model": {}, "args": hostile}, tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
    assert "which nmtkit does not load" in refusal(tmp_path / "a.pt")


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nndarray\nJ\0\0\0\x7f\x85R",
        b"cnumpy\nndarray\n)\x81" + attribute(b"shape", b"J\0\0\0\x7f") + b"b",
        b"c__builtin__\nlist\nJ\0\0\0\x7f\x85R",
        b"ctyping\nAny\n)R",
        NODE + b"q\0" + attribute(b"_parent", b"h\0") + b"b",
        NODE + attribute(b"__class__", b"K\1") + b"b",
    ],
)
def test_a_known_class_is_replaced_by_one_that_does_nothing(content: bytes, tmp_path: Path) -> None:
    loaded = load_pickled(with_pickle(tmp_path / "model.pt", b"\x80\2" + content + b"."))
    assert type(loaded).__module__ == "nmtkit.conversion.pickled"
    assert vars(loaded) in ({}, {"content": None})


@pytest.mark.parametrize("is_zip", [True, False])
def test_values_of_a_checkpoint_are_loaded(is_zip: bool, tmp_path: Path) -> None:
    shared = (0.9, 0.98)
    weights = torch.nn.Linear(2, 3).state_dict()  # with attributes
    values = {
        "model": weights,
        "args": argparse.Namespace(arch="transformer", lr=[0.1], betas=shared, dtype=torch.float16, size=1 << 80),
        "optimizer": {"state": {0: {"step": 1}}, "groups": [{"betas": shared}, {"betas": shared}] * 20},
        "history": OrderedDict(a=None, b=b"bytes", view=weights["weight"].t()),
    }
    torch.save(values, tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
    loaded = load_pickled(tmp_path / "a.pt")
    assert loaded["args"] == values["args"]
    assert loaded["optimizer"] == values["optimizer"]
    assert loaded["history"]["b"] == b"bytes"
    assert torch.equal(loaded["history"]["view"], weights["weight"].t())
    assert torch.equal(loaded["model"]["weight"], weights["weight"])

"""Reads mutated checkpoints in bounded memory: python fuzz_checkpoints.py CHECKPOINT FOLDER SEED COUNT

Prints a JSON object with the number of refused and of loaded checkpoints, and with all other outcomes.
"""

import json
import random
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from forged import Members, archive_of, header_of, members_of, signed, unsigned

from nmtkit.checkpoint import load_checkpoint, read_progress
from nmtkit.errors import UserError
from nmtkit.training.averaging import average_checkpoints

MEMORY = 1 << 29  # bytes, in addition to the memory of Python and torch
LONGEST_MESSAGE = 1000  # characters
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 7, 2**31, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "x", "float32", "int8", "\ud800", "\x1b[2J", "../../x", "x" * 10_000, [], {}, [[]], [-1], [2**62, 4]),
)
TYPE_NAMES = ("int8", "uint8", "float16", "float64", "complex64", "float8_e4m3fn", "quint8", "float32 ", "", "Float32")


def change_header(content: bytes, draw: random.Random) -> bytes:
    """Replace a value at any depth of the header, or remove it."""
    members = members_of(content)
    header = header_of(members)
    place: Any = header
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = draw.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or draw.random() < 0.2:
            break
        place = place[key]
    if draw.random() < 0.2:
        del place[key]
    else:
        place[key] = draw.choice(ODD_VALUES)
    return archive_of(members | {"archive/data/0": json.dumps(header).encode()})


def change_type(content: bytes, draw: random.Random) -> bytes:
    """Change the element type of a tensor."""
    members = members_of(content)
    header = header_of(members)
    draw.choice(header["tensors"])[1] = draw.choice(TYPE_NAMES)
    return archive_of(members | {"archive/data/0": json.dumps(header).encode()})


def change_size(content: bytes, draw: random.Random) -> bytes:
    """Make a member shorter or longer, or remove it."""
    members = members_of(content)
    name = draw.choice(list(members))
    size = draw.choice([0, 1, len(members[name]) - 1, len(members[name]) + draw.choice([1, 4, 64])])
    changed = (members[name] + bytes(64))[: max(0, size)]
    return archive_of({**members, name: changed} if draw.random() < 0.8 else _without(members, name))


def change_tokenizer(content: bytes, draw: random.Random) -> bytes:
    """Flip bits in the vocabulary or the SentencePiece model, and sometimes truncate it."""
    members = members_of(content)
    name = draw.choice(["archive/data/1", "archive/data/2"])
    header = header_of(members)
    changed = _flipped(members[name], draw, draw.choice([1, 2, 10]))
    if draw.random() < 0.2:
        changed = changed[: draw.randrange(len(changed))]
    header["tensors"][int(name[-1]) - 1][2] = [len(changed)]
    return archive_of(members | {name: changed, "archive/data/0": json.dumps(header).encode()})


def change_directory(content: bytes, draw: random.Random) -> bytes:
    """Change bytes of the zip directory or its end record."""
    archive = unsigned(content)
    start = archive.index(b"PK\1\2")
    changed = bytearray(archive[start:])
    for _ in range(draw.choice([1, 2, 8])):
        changed[draw.randrange(len(changed))] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
    return signed(archive[:start] + bytes(changed))


def cut(content: bytes, draw: random.Random) -> bytes:
    """Truncate the file, or remove its middle."""
    archive = unsigned(content)
    start, end = sorted(draw.randrange(len(archive)) for _ in range(2))
    return signed(archive[:start] if draw.random() < 0.5 else archive[:start] + archive[end:])


def flip(content: bytes, draw: random.Random) -> bytes:
    """Flip bits anywhere."""
    return signed(_flipped(unsigned(content), draw, draw.choice([1, 5, 50])))


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(change_header, change_header, change_type, change_size, change_tokenizer, change_directory, cut, flip),
)


def _without(members: Members, name: str) -> Members:
    return {other: content for other, content in members.items() if other != name}


def _flipped(content: bytes, draw: random.Random, count: int) -> bytes:
    changed = bytearray(content)
    for _ in range(count):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def read(path: Path, good: Path) -> tuple[str, str]:
    """Read a mutated checkpoint; return the outcome, "refused" or "loaded", and the error message if there is one."""
    outcome = "refused"
    try:
        read_progress(path)
        checkpoint = load_checkpoint(path)
        outcome = "loaded"
        checkpoint.build_model()
        checkpoint.source.decode(checkpoint.source.encode(["the dog runs"])[0])
        average_checkpoints([good, path])
    except UserError as error:
        return outcome, str(error)
    return outcome, ""


def main(checkpoint: Path, folder: Path, seed: int, count: int) -> None:
    """Read `count` mutations of a checkpoint, of all kinds in turn, and print the outcomes."""
    torch.set_num_threads(1)
    content, path, draw = checkpoint.read_bytes(), folder / "mutated.pt", random.Random(seed)
    average_checkpoints([checkpoint])  # allocates the memory that Python and torch always need
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, -1))
    outcomes: Counter[str] = Counter()
    others = []
    for number in range(count):
        mutation = MUTATIONS[number % len(MUTATIONS)]
        path.write_bytes(mutation(content, draw))
        try:
            outcome, message = read(path, checkpoint)
            outcomes[outcome] += 1
            if len(message) > LONGEST_MESSAGE:
                others.append(f"{number}, {mutation.__name__}: {message}")
        except BaseException:
            others.append(f"{number}, {mutation.__name__}: {traceback.format_exc(limit=-3)}")
    print(json.dumps({**outcomes, "others": others}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

"""Damaged and forged datasets: each is refused in one line, or read as what a dataset may hold."""

import hashlib
import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmtkit.data import corpus
from nmtkit.data.batch import collate
from nmtkit.data.binary import HEADER
from nmtkit.data.corpus import Dataset
from nmtkit.data.subwords import SubwordSampling
from nmtkit.errors import UserError
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.pipeline import preprocess
from nmtkit.text.tokenizer import SENTENCEPIECE
from nmtkit.text.vocabulary import BOS, EOS, PAD

Files = dict[str, bytes]
SEEDS = 12  # of each kind of damage
MOST_BYTES = 16 << 20  # that Python and NumPy may have at once for a dataset of some KB
ODD_NUMBERS = (0, 1, 2, 5, 10**6, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 2**63, 10**30, 0.5, "", "x", "..", "../x", "a\nb", "\ud800", "\x1b[2J"),
    *([], ["x"], {}, {"x": 1}, [["x", 1]], "train", "en", "space", "sentencepiece", 1e308),
)


@pytest.fixture(scope="module", params=["space", "sentencepiece", "space in shards"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a small dataset, by name."""
    folder, draw = tmp_path_factory.mktemp("fuzz"), random.Random(1)
    words = ["hund", "katze", "läuft", "über", "straße", "und", "der", "die"]
    for language in ("en", "de"):
        lines = [" ".join(draw.choices(words, k=draw.randint(0, 6))) for _ in range(24)]
        (folder / f"text.{language}").write_text("".join(f"{line}\n" for line in ["hund der", *lines]))
    text, (tokenizer, *in_shards) = str(folder / "text"), request.param.split(maxsplit=1)
    size = "100" if in_shards else None
    config = FilesConfig("en", "de", (text,), testpref=(text,), destdir=folder / "dataset", shard_size=size)
    is_joined = tokenizer == SENTENCEPIECE
    vocabulary = VocabularyConfig(tokenizer, 30 if is_joined else None, is_joined)
    made = preprocess(config, vocabulary, CleaningConfig()).folder
    return {path.name: path.read_bytes() for path in made.iterdir()}


def sealed(files: Files, description: dict[str, Any]) -> Files:
    """The files with a description whose sizes and checksums are right, as far as it has them."""
    listed = description.get("files")
    facts = listed if isinstance(listed, dict) else {}
    for name in facts.keys() & files.keys():
        facts[name] = {"bytes": len(files[name]), "sha256": hashlib.sha256(files[name]).hexdigest()}
    description.pop("sha256", None)
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    description["sha256"] = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return files | {"dataset.json": json.dumps(description).encode()}


def resealed(files: Files) -> Files:
    return sealed(files, json.loads(files["dataset.json"]))


def pick(draw: random.Random, files: Files, *endings: str) -> str:
    return draw.choice(sorted(name for name in files if name.endswith(endings)))


def with_bytes(files: Files, name: str, place: int, content: bytes) -> Files:
    old = files[name]
    return files | {name: old[:place] + content + old[place + len(content) :]}


def flip(draw: random.Random, files: Files) -> Files:
    """Change a few bytes of any file; the description keeps its own checksum."""
    name = pick(draw, files, "")
    for _ in range(draw.randint(1, 3)):
        files = with_bytes(files, name, draw.randrange(len(files[name])), bytes([draw.randrange(256)]))
    return files if name == "dataset.json" else resealed(files)


def resize(draw: random.Random, files: Files) -> Files:
    """Cut a file off, or let it grow."""
    name = pick(draw, files, ".bin", ".idx", ".dropped", ".txt", ".model")
    content = files[name]
    size = draw.choice((0, 1, len(content) // 2, len(content) - 1, len(content) - 8))
    return resealed(files | {name: draw.choice((content[:size], content + content[:size], content + bytes(8)))})


def forge_index(draw: random.Random, files: Files) -> Files:
    """Write odd numbers into the header or the offsets of an index, or into the lines left out."""
    name = pick(draw, files, ".idx", ".idx", ".dropped")
    for _ in range(draw.randint(1, 2)):
        place = draw.randrange(8 if name.endswith(".idx") else 0, len(files[name]), 8)
        files = with_bytes(files, name, place, struct.pack("<Q", draw.choice(ODD_NUMBERS)))
    return resealed(files)


def forge_offsets(draw: random.Random, files: Files) -> Files:
    """Move two neighbouring offsets by the same odd number, so that the length between them stays."""
    name = pick(draw, files, ".idx")
    place = HEADER.size + 8 * draw.randrange((len(files[name]) - HEADER.size) // 8 - 1)
    shift = draw.choice(ODD_NUMBERS)
    pair = ((offset + shift) % 2**64 for offset in struct.unpack_from("<2Q", files[name], place))
    return resealed(with_bytes(files, name, place, struct.pack("<2Q", *pair)))


def forge_tokens(draw: random.Random, files: Files) -> Files:
    """Write odd ids into a token file."""
    name = pick(draw, files, ".bin")
    for _ in range(draw.randint(1, 2)):
        token = draw.choice((0, 1, 2, 3, 4, 29, 30, 2**15, 2**16 - 1))
        files = with_bytes(files, name, draw.randrange(0, len(files[name]), 2), struct.pack("<H", token))
    return resealed(files)


def forge_description(draw: random.Random, files: Files) -> Files:
    """Put an odd value, or an odd key, somewhere into the description."""
    description = json.loads(files["dataset.json"])
    place: Any = description
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or draw.random() < 0.3:
            break
        place = place[key]
    change = draw.random()
    if change < 0.2:
        del place[key]
    elif change < 0.3 and isinstance(place, dict):
        place[str(draw.choice(ODD_VALUES))] = place.pop(key)
    else:
        place[key] = draw.choice(ODD_VALUES)
    return sealed(files, description)


MUTATIONS: list[Callable[[random.Random, Files], Files]] = [
    *(flip, resize, forge_index, forge_offsets, forge_tokens, forge_description),
]


def read_all(folder: Path) -> None:
    """Read a dataset in every way that a stage does, and hold it to what a dataset may have."""
    dataset = Dataset.open(folder)
    for name in dataset.split_names:
        split = dataset.split(name)
        every = np.arange(len(split))
        split.longest()
        split.lines.describe(every.tolist())
        for side, tokenizer in ((split.source, dataset.source), (split.target, dataset.target)):
            tokens, lengths = side.gather(every)
            assert tokens.tolist() == [token for number in every for token in side[int(number)].tolist()]
            assert lengths.tolist() == side.lengths[:].tolist() == side.lengths[every].tolist()
            for *ids, end in (side[int(number)].tolist() for number in every):
                assert end == EOS
                assert not {PAD, BOS, EOS} & set(ids)
                assert "\n" not in tokenizer.decode(ids)
        batch = collate(split, every)
        assert batch.target_tokens == split.target.tokens
        if dataset.source.kind == SENTENCEPIECE:
            SubwordSampling(dataset, split, rate=0.3, longest=100, seed=1).gather(1, every)


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def refusal(folder: Path) -> str | None:
    """The message with which a dataset is refused; None where all of it is read."""
    try:
        read_all(folder)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_forged_dataset_is_refused_in_one_line_or_is_valid(
    mutate: Callable[[random.Random, Files], Files], files: Files, tmp_path: Path
) -> None:
    refused = 0
    tracemalloc.start()
    try:
        for seed in range(SEEDS):
            write(tmp_path, mutate(random.Random(seed), files))
            tracemalloc.reset_peak()
            message = refusal(tmp_path)
            refused += message is not None
            assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, seed
            assert message is None or ("\n" not in message and str(tmp_path) in message), seed
    finally:
        tracemalloc.stop()
    assert refused > 0


def test_an_unchanged_dataset_is_read(files: Files, tmp_path: Path) -> None:
    write(tmp_path, resealed(files))
    assert refusal(tmp_path) is None


def test_forged_offsets_and_ids_are_refused_if_checksums_are_skipped(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "ALWAYS_VERIFY_BELOW", 0)
    messages = []
    for seed in range(SEEDS):
        mutate = (forge_offsets, forge_tokens)[seed % 2]
        write(tmp_path, mutate(random.Random(seed), files) | {"dataset.json": files["dataset.json"]})
        messages.append(refusal(tmp_path) or "")
    assert any("the offsets are damaged" in message for message in messages)
    assert any(".bin: sentence" in message for message in messages)
    assert not any("checksum" in message for message in messages)

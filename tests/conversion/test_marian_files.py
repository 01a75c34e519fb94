"""Marian's own files, and the folder for the browser.

`foreign/marian` is a random model that Marian 1.12.42 wrote and converted, with its greedy outputs and scores.
"""

import functools
import hashlib
import http.server
import json
import re
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, programs
from patience import PATIENCE
from training_runs import last

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.config import ExportConfig, ImportConfig
from nmtkit.conversion.importers import find_importer
from nmtkit.conversion.marian_export import to_marian
from nmtkit.decoding.config import EngineConfig
from nmtkit.errors import UserError
from nmtkit.inference.shortlist import Shortlist, fingerprint
from nmtkit.model.config import DeviceConfig, TransformerConfig
from nmtkit.text.tokenizer import SentencePieceTokenizer, SpaceTokenizer
from nmtkit.text.vocabulary import BOS, EOS, SPECIALS
from nmtkit.training.config import BatchConfig, CheckpointConfig, OptimizerConfig, StopConfig, TrainingOptions
from nmtkit.training.trainer import train

Make = Callable[..., Checkpoint]
FOREIGN = Path(__file__).parent / "foreign/marian"
SOURCES = (FOREIGN / "source.txt").read_text().splitlines()
TARGETS = (FOREIGN / "target.txt").read_text().splitlines()
SETTINGS = "special:model.yml"


def imported(path: Path, **options: Any) -> Checkpoint:
    return find_importer(path).read(path, ImportConfig("en", "de", **options))


def exported(checkpoint: Checkpoint, folder: Path, browser: bool = False, **options: Any) -> Path:
    to_marian(checkpoint, folder, "auto", ExportConfig(**options), browser=browser)
    (model,) = folder.glob("model.*")
    return model


def scores(checkpoint: Checkpoint) -> list[float]:
    translator = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    return translator.score(SOURCES, TARGETS, length_penalty=0.0)


def check_equal(a: Checkpoint, b: Checkpoint) -> None:
    """Two checkpoints have the same model, to the last bit, and the same tokenizers."""
    assert a.model_config.effective() == b.model_config.effective()
    assert a.weights.keys() == b.weights.keys()
    assert [name for name, weight in a.weights.items() if not np.array_equal(weight, b.weights[name])] == []
    assert a.joined == b.joined
    for ours, theirs in ((a.source, b.source), (a.target, b.target)):
        assert (ours.kind, ours.vocab, ours.model) == (theirs.kind, theirs.vocab, theirs.model)


def resolved(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the tying that it means, and without the values that no file of Marian holds."""
    checkpoint.model_config = checkpoint.model_config.for_vocabularies(checkpoint.joined)
    return checkpoint


# Models of Marian ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["npz", "bin"])
def test_greedy_outputs_and_scores_equal_those_of_marian(suffix: str) -> None:
    checkpoint = imported(FOREIGN / f"model.{suffix}")
    translator = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    outputs = translator.translate(SOURCES, beam=1, max_len_a=3, max_len_b=3)
    assert outputs == (FOREIGN / "greedy.txt").read_text().splitlines()
    theirs = [float(line) for line in (FOREIGN / "scores.txt").read_text().splitlines()]
    assert scores(checkpoint) == pytest.approx(theirs, rel=2e-6)  # 1e-5 with a different epsilon in layer norms


def test_an_export_has_the_weights_of_marian_and_its_conversion_to_binary(tmp_path: Path) -> None:
    checkpoint = imported(FOREIGN / "model.npz")
    ours, theirs = np.load(exported(checkpoint, tmp_path / "npz")), np.load(FOREIGN / "model.npz")
    assert sorted(ours) == sorted(theirs)
    assert [name for name in theirs if name != SETTINGS and not np.array_equal(ours[name], theirs[name])] == []
    binary = exported(checkpoint, tmp_path / "bin", binary=True).read_bytes().split(b"type: transformer")[0]
    converted = (FOREIGN / "model.bin").read_bytes().split(b"bert-train")[0]
    differences = sum(a != b for a, b in zip(binary, converted, strict=True))
    assert differences == 2  # the size of the settings, in bytes and as a shape
    assert (tmp_path / "npz/vocab.spm").read_bytes() == (FOREIGN / "vocab.spm").read_bytes()
    check_equal(imported(tmp_path / "npz/model.npz"), checkpoint)
    check_equal(imported(tmp_path / "bin/model.bin"), checkpoint)


def test_vocabularies_in_yaml_give_the_same_scores_and_survive_a_round_trip(tmp_path: Path) -> None:
    pieces = SentencePieceTokenizer((FOREIGN / "vocab.spm").read_bytes()).vocab.pieces[len(SPECIALS) :]
    quoted = [f'"\\x{ord(piece[0]):02x}{piece[1:]}"' if piece[0] < "z" else piece for piece in pieces]
    listed = "".join(f"{piece}: {number}\n" for number, piece in enumerate(["</s>", "<unk>", *quoted]))
    (tmp_path / "vocab.yml").write_text(listed, encoding="utf-8")
    paths = {"dict": (tmp_path / "vocab.yml",) * 2, "spm_model": (FOREIGN / "vocab.spm",)}
    checkpoint = imported(FOREIGN / "model.npz", **paths)
    assert scores(checkpoint) == scores(imported(FOREIGN / "model.npz"))
    segmented = imported(Path(shutil.copy(FOREIGN / "model.npz", tmp_path)), dict=paths["dict"])
    assert segmented.source.kind == SpaceTokenizer.kind
    model = exported(segmented, tmp_path / "exported")
    assert (tmp_path / "exported/vocab.yml").read_text().splitlines()[0] == '"</s>": 0'
    check_equal(imported(model), segmented)


def test_an_import_recommends_the_search_of_the_model() -> None:
    search = find_importer(FOREIGN / "model.npz").search(FOREIGN / "model.npz")
    assert search == {"beam": 12, "length_penalty_form": "power", "length_penalty": 0.6}


@pytest.mark.parametrize("binary", [False, True])
def test_the_folder_of_a_model_is_imported_like_the_model_in_it(binary: bool, tmp_path: Path) -> None:
    checkpoint = imported(FOREIGN / "model.npz")
    exported(checkpoint, tmp_path / "folder", binary=binary)
    check_equal(imported(tmp_path / "folder"), checkpoint)
    assert find_importer(tmp_path / "folder").search(tmp_path / "folder")["beam"] == 4
    (tmp_path / "folder/again.npz").touch()
    with pytest.raises(UserError, match="folder: the folder contains several models of Marian: give one"):
        imported(tmp_path / "folder")


def forge(folder: Path, **changes: Any) -> Path:
    """Copy the model, with other values of weights, or of settings by names with underscores."""
    shutil.copytree(FOREIGN, folder, dirs_exist_ok=True)
    items = dict(np.load(FOREIGN / "model.npz"))
    lines = bytes(items.pop(SETTINGS)).rstrip(b"\0").decode().splitlines()
    for name, value in changes.items():
        if isinstance(value, np.ndarray):
            items[name] = value
        else:
            setting = name.replace("_", "-")
            lines = [line for line in lines if not line.startswith(f"{setting}:")]
            lines += [] if value is None else [f"{setting}: {value}"]
    items[SETTINGS] = np.frombuffer("\n".join(lines).encode() + b"\0", np.int8)
    np.savez(folder / "model.npz", **items)
    return folder / "model.npz"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"type": "amun"}, "type is 'amun'"),
    "pre-norm": ({"transformer_preprocess": "n"}, "transformer-preprocess is 'n'"),
    "another recurrence": ({"transformer_decoder_autoreg": "rnn"}, "dec-cell is 'gru'"),
    "a deep network": ({"transformer_ffn_depth": 3}, "transformer-ffn-depth is '3'"),
    "a wide decoder": ({"transformer_decoder_dim_ffn": 20}, "transformer-decoder-dim-ffn is '20'"),
    "an activation": ({"transformer_ffn_activation": "elu"}, "transformer-ffn-activation is 'elu'"),
    "a missing setting": ({"transformer_heads": None}, "its settings lack transformer-heads"),
    "trained positions": ({"Wpos": np.zeros((9, 12), np.float32)}, "the weight Wpos has no counterpart"),
    "integers": ({"decoder_l1_ffn_W1": np.zeros((12, 10), np.int8)}, "is torch.int8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_nmtkit_cannot_reproduce_is_rejected_by_name(case: str, tmp_path: Path) -> None:
    changes, reason = REFUSED[case]
    with pytest.raises(UserError, match=reason):
        imported(forge(tmp_path, **changes))


def test_damaged_files_and_unknown_vocabularies_are_rejected_by_name(tmp_path: Path) -> None:
    content, factored = (FOREIGN / "model.bin").read_bytes(), tmp_path / "vocab.fsv"
    factored.touch()
    with pytest.raises(UserError, match=r"vocabularies \.fsv are not supported"):
        imported(FOREIGN / "model.npz", dict=(factored, factored))
    at = struct.calcsize("<QQQ")  # of the first type
    int8 = content[:at] + struct.pack("<Q", 0x11001) + content[at + 8 :]
    for name, damaged in {"truncated.bin": content[:2000], "int8.bin": int8, "text.npz": b"text"}.items():
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UserError, match="type 0x11001" if name == "int8.bin" else f"{name}: damaged, or not a Mar"):
            imported(tmp_path / name)


# Models of nmtkit ------------------------------------------------------------------------------------------------

CHANGES: list[dict[str, Any]] = [
    {},
    {"activation": "gelu", "share_embeddings": "decoder"},
    {"activation": "swish", "share_embeddings": "none", "output_bias": True},
    {"decoder_recurrence": "ssru", "d_model": 12, "heads": 3},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_model_with_positions_of_marian_survives_a_round_trip_and_scores_the_same_there(
    changes: dict[str, Any], make_checkpoint: Make, tmp_path: Path
) -> None:
    checkpoint = resolved(make_checkpoint(positions="marian", **changes))
    for name, weight in checkpoint.weights.items():
        if weight.ndim == 1 and name != "projection_bias":  # which are drawn as 0 and 1
            weight += np.random.default_rng(1).normal(0, 0.3, weight.shape).astype(np.float32)
    model = exported(checkpoint, tmp_path / "exported")
    if changes.get("output_bias"):
        checkpoint.weights["projection_bias"][:] = 0  # as drawn: a bias of zeros is none
    again = imported(model)
    assert [n for n, w in again.weights.items() if not np.array_equal(w, checkpoint.weights[n])] == []
    assert (again.source.kind, again.source.model) == (checkpoint.source.kind, checkpoint.source.model)
    if shutil.which("pymarian") is None:
        pytest.skip("pymarian is not installed")
    texts = [tmp_path / name for name in ("source.txt", "target.txt")]
    for path in texts:
        shutil.copy(FOREIGN / path.name, path)
    vocabularies = [str(model.with_name("vocab.spm"))] * 2
    command = ["pymarian", "score", "-m", str(model), "-v", *vocabularies, "-t", *map(str, texts), "--cpu-threads", "1"]
    found = subprocess.run([*command, "--max-length", "500"], capture_output=True, text=True, check=True).stdout
    assert scores(checkpoint) == pytest.approx([float(line) for line in found.split()], rel=1e-5)


def test_a_trained_model_still_begins_its_outputs_with_a_zero_embedding(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    options = TrainingOptions(
        model=TransformerConfig(1, 1, d_model=8, d_ff=8, heads=2, positions="marian"),
        batches=BatchConfig(batch_tokens=400, max_tokens=200),
        optimizer=OptimizerConfig(warmup_updates=1, weight_decay=0.1, ema=0.9),
        stop=StopConfig(max_updates=3),
        checkpoints=CheckpointConfig(save_dir=tmp_path / "run"),
        device=DeviceConfig(device="cpu", precision="fp32", threads=1),
    )
    train(datasets["joined"], options)
    checkpoint = last(tmp_path / "run")
    is_zero = ~checkpoint.weights["target_embedding.weight"].any(axis=1)
    assert np.flatnonzero(is_zero).tolist() == [BOS]
    imported(exported(checkpoint, tmp_path / "exported"))


def test_other_positions_and_text_that_other_programs_segmented_are_refused(
    make_checkpoint: Make, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="Marian does not support --positions sinusoidal"):
        exported(make_checkpoint(), tmp_path / "exported")
    checkpoint = make_checkpoint(positions="marian")
    checkpoint.source = checkpoint.target = SpaceTokenizer(checkpoint.source.vocab)
    with pytest.raises(UserError, match="Bergamot needs SentencePiece models"):
        exported(checkpoint, tmp_path / "exported", browser=True)
    assert list(tmp_path.iterdir()) == []


# The browser -----------------------------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, tuple[int, bytes]]:
    """The type and the content of each item of a file .bin."""
    content = path.read_bytes()
    (count,) = struct.unpack_from("<Q", content, 8)
    headers = np.frombuffer(content, "<u8", 4 * count, 16).reshape(count, 4)
    at = 16 + headers.nbytes
    names = content[at : at + headers[:, 0].sum()].decode().split("\0")
    at += int(headers[:, 0].sum() + 4 * headers[:, 2].sum())
    at += 8 + struct.unpack_from("<Q", content, at)[0]
    ends = at + np.cumsum(headers[:, 3])
    return {
        name: (kind, content[end - size : end])
        for name, (_, kind, _, size), end in zip(names, headers.tolist(), ends, strict=False)
    }


def fixed(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with weights that no version of torch changes."""
    random = np.random.default_rng(1)
    weights = {name: random.standard_normal(w.shape, np.float32) for name, w in checkpoint.weights.items()}
    weights["target_embedding.weight"][BOS] = 0
    return replace(checkpoint, weights=weights)


# SHA-256 of the matrices of layers, by name, of the model `fixed` that `pymarian convert -g intgemm8` 1.12.42 wrote.
CONVERTED = "aa4eadb0d74eea89b494f5aaf0a3dbe089a0095480c4f04fa096326bbe5460db"


@pytest.mark.parametrize("sharing", ["all", "decoder", "none"])
def test_an_int8_model_has_the_integers_of_marian_and_is_within_half_a_step_of_the_weights(
    sharing: str, make_checkpoint: Make, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("we see\nthis\n")
    checkpoint = resolved(fixed(make_checkpoint(positions="marian", share_embeddings=sharing)))
    model = exported(checkpoint, tmp_path / "int8", browser=True, int8=tmp_path / "text")
    items = contents(model)
    digest = hashlib.sha256()
    for name, (kind, content) in items.items():
        if re.search("_l._.*_W.?$", name):
            assert kind == 0x4101
            size = 16 * (32 if "ffn" in name else 16) + 4
            digest.update(name.encode() + content[:size])
    if sharing == "all":
        assert digest.hexdigest() == CONVERTED
    again = imported(model, dict=(tmp_path / "int8/vocab.spm",) * 2)
    for name, weight in checkpoint.weights.items():
        step = np.abs(weight).max() / 127 if weight.ndim == 2 else 0
        assert np.abs(again.weights[name][: len(weight)] - weight).max() <= step * 0.501, name
    rows = len(checkpoint.target.vocab)
    assert rows % 8 > 0
    assert len(again.target.vocab) == rows + -rows % 8
    assert set(again.weights["projection_bias"][rows:]) == {-1e4}  # the engine never outputs them


def test_the_scale_of_an_input_in_int8_is_that_of_its_largest_values_in_the_text(
    make_checkpoint: Make, tmp_path: Path
) -> None:
    lines = ["we see", "this", "we see this and this"]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))
    checkpoint = fixed(make_checkpoint(positions="marian"))
    items = contents(exported(checkpoint, tmp_path / "int8", browser=True, int8=tmp_path / "text"))
    width = checkpoint.model_config.d_model
    angles = np.arange(99)[:, None] * 10000 ** (-np.arange(width // 2) / (width // 2 - 1))
    positions = np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, np.arange(width).reshape(2, -1).T.ravel()]
    largest = []
    for ids in checkpoint.source.encode(lines):
        embedded = checkpoint.weights["target_embedding.weight"][[*ids, EOS]] * width**0.5
        largest.append(np.abs(embedded + positions[: len(embedded)]).max())
    expected = 127 / (np.mean(largest) + 1.1 * np.std(largest))
    (found,) = struct.unpack_from("<f", items["encoder_l1_self_Wq_QuantMultA"][1])
    assert found == pytest.approx(expected, rel=1e-5)
    assert items["none_QuantMultA"] == items["Wemb_QuantMultA"]


def test_a_shortlist_for_the_browser_has_the_translations_of_each_piece(make_checkpoint: Make, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(positions="marian")
    size = len(checkpoint.source.vocab)
    own, frequent = np.arange(4, size, dtype=np.int32)[::-1].copy(), np.array([6, 9], np.int32)
    offsets = np.array([0, 0, 0, 0, *range(size - 3)])  # one translation of each piece, none of special ids
    vocabularies = fingerprint(checkpoint.source.vocab, checkpoint.target.vocab)
    with (tmp_path / "shortlist").open("wb") as file:
        Shortlist(offsets, own, frequent, size, vocabularies).write(file)
    exported(checkpoint, tmp_path / "folder", browser=True, shortlist=tmp_path / "shortlist")
    content = (tmp_path / "folder/lex.bin").read_bytes()
    magic, _, first, _, count, total = struct.unpack_from("<6Q", content)
    starts = struct.unpack_from(f"<{count}Q", content, 48)
    ids = struct.unpack_from(f"<{total}I", content, 48 + 8 * count)
    assert (magic, count, len(content)) == (0xF11A48D5013417F5, size + 1, 48 + 8 * count + 4 * total)
    assert first > EOS
    lists = [set(ids[start:end]) for start, end in pairwise(starts)]
    assert lists[: len(SPECIALS)] == [set(), set(), set(), set(frequent)]  # EOS ends each source
    assert lists[len(SPECIALS) :] == [{number} for number in own]


ENGINE = """onmessage = ({data: {id, name, args}}) => {
  if (name === "loadTranslationModel") loaded = args[1];
  const repeat = ({text, html}) => html ? `<i>${text}</i>` : `${loaded.model.byteLength} ${text}`;
  const answer = () => args[0].texts.map(one => ({target: {text: repeat(one)}}));
  postMessage({id, result: name === "translate" ? answer() : null});
};"""


@pytest.fixture
def page(make_checkpoint: Make, tmp_path: Path) -> Iterator[tuple[str, Path, http.server.ThreadingHTTPServer]]:
    """The address of an exported page with an engine that repeats the text, the folder and the server."""
    folder = tmp_path / "folder"
    exported(make_checkpoint(positions="marian"), folder, browser=True, page=True)
    (folder / "worker").mkdir()
    (folder / "worker/translator-worker.js").write_text(ENGINE)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", folder, server
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(programs() is None, reason="chromium and chromedriver are not installed")
def test_the_page_translates_as_one_types_and_without_its_server(
    page: tuple[str, Path, http.server.ThreadingHTTPServer], tmp_path: Path
) -> None:
    address, folder, server = page
    size = (folder / "model.bin").stat().st_size
    expected = f"{size} a dog\n\n{size} a cat"
    with Browser(tmp_path / "profile", phone=True) as browser:

        def wait_for(condition: str) -> None:
            end = time.monotonic() + PATIENCE
            while not browser.run(f"return {condition}"):
                assert time.monotonic() < end, browser.texts("body")
                time.sleep(0.05)

        for _ in range(2):
            browser.open(address)
            wait_for("progress.hidden")
            browser.type("#text", "a dog\n\na cat")
            wait_for(f"output.textContent === {json.dumps(expected)}")
            assert browser.texts("h1") == ["English to German"]
            browser.click("#html")
            browser.run("text.value = 'a <b>dog\\n& a cat'; text.dispatchEvent(new Event('input'))")
            wait_for("output.textContent === '<i>a <b>dog\\n&amp; a cat</b></i>'")
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
            server.shutdown()
            server.server_close()
            browser.open("about:blank")


@pytest.mark.skipif(programs() is None, reason="chromium and chromedriver are not installed")
def test_the_page_says_that_the_engine_is_missing(
    page: tuple[str, Path, http.server.ThreadingHTTPServer], tmp_path: Path
) -> None:
    address, folder, _ = page
    shutil.rmtree(folder / "worker")
    with Browser(tmp_path / "profile") as browser:
        browser.open(address)
        browser.wait_for("#status.bad")
        assert "The engine cannot start: copy the folder worker" in browser.texts("#status")[0]

"""A checkpoint in int8 translates to the same bytes as `--precision int8`, and everything else refuses it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TINY, Run
from forged import with_tensor

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.errors import UserError
from nmtkit.inference.shortlist import Shortlist, fingerprint
from nmtkit.machine import native_build

pytestmark = pytest.mark.skipif(not native_build.available("int8"), reason="the search is not compiled")
LINES = b"the dog runs on the street\n\na cat\ndie katze l\xc3\xa4uft\n"
MATRIX, BIAS = (f"weights.encoder.0.feed_forward.inner.{part}" for part in ("weight", "bias"))


@pytest.fixture
def make_both(make_checkpoint: Callable[..., Checkpoint], run_here: Run, tmp_path: Path) -> Callable[..., list[Path]]:
    """Writes a checkpoint of these options in fp32, and its export in int8."""

    def make(**options: Any) -> list[Path]:
        paths = [tmp_path / "fp32.pt", tmp_path / "int8.pt"]
        checkpoint = make_checkpoint(**options)
        spread = np.random.default_rng(1)
        for weight in checkpoint.weights.values():  # rows of different scales
            weight *= spread.uniform(0.5, 2.0, (len(weight), *[1] * (weight.ndim - 1))).astype(np.float32)
        save_checkpoint(paths[0], checkpoint)
        done = run_here("nmt-export", paths[0], "--to", "int8", "--output", paths[1])
        assert done.returncode == 0, done.stderr
        return paths

    return make


@pytest.mark.parametrize(
    "model",
    [
        {"norm": "pre"},
        {"decoder_recurrence": "ssru"},
        {"share_embeddings": "none", "output_bias": True},
        {"share_embeddings": "decoder", "positions": "learned", "norm": "pre", "d_k": 5},
    ],
    ids=str,
)
def test_it_gives_the_texts_scores_and_alignments_of_precision_int8(
    model: dict[str, Any], make_both: Callable[..., list[Path]], run_here: Run, tmp_path: Path
) -> None:
    paths = make_both(**model)
    vocabulary = load_checkpoint(paths[0]).source.vocab
    ids = np.arange(4, 80, dtype=np.int32)
    with (tmp_path / "shortlist").open("wb") as file:
        offsets = np.zeros(len(vocabulary) + 1, np.int64)
        Shortlist(offsets, ids[:0], ids, len(vocabulary), fingerprint(vocabulary, vocabulary)).write(file)
    (tmp_path / "terms").write_text("der\n\n\nhund\n")
    (tmp_path / "targets").write_text("der hund\n\neine katze\ndie\n")
    for options in (
        ("--format", "jsonl", "--alignment", "--nbest", "2"),
        ("--format", "jsonl", "--shortlist", tmp_path / "shortlist"),
        ("--format", "jsonl", "--constraints", tmp_path / "terms"),
        ("--score", tmp_path / "targets"),
    ):
        limits = () if "--score" in options else ("--max-len-b", "6")
        found, expected = (
            run_here("nmt-generate", "--checkpoint", path, *precision, *options, *limits, input=LINES)
            for path, precision in zip(reversed(paths), ((), ("--precision", "int8")), strict=True)
        )
        assert (found.returncode, found.stdout.count(b"\n")) == (0, expected.stdout.count(b"\n")), found.stderr
        assert found.stdout == expected.stdout


def test_it_stores_matrices_of_products_in_a_quarter_of_their_size(make_both: Callable[..., list[Path]]) -> None:
    fp32, int8 = map(load_checkpoint, make_both())
    assert int8.scales is not None
    assert MATRIX.removeprefix("weights.") in int8.scales
    for name, weight in int8.weights.items():
        if name in int8.scales:
            error = np.abs(weight * int8.scales[name][:, None] - fp32.weights[name])
            assert weight.dtype == np.int8
            assert (error <= 0.51 * int8.scales[name][:, None]).all()
        else:
            assert np.array_equal(weight, fp32.weights[name])


def test_everything_that_needs_fp32_weights_refuses_it_in_one_line(
    make_both: Callable[..., list[Path]], run_here: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    _, path = make_both()
    for command in (
        ("nmt-generate", "--checkpoint", path, "--precision", "fp32"),
        ("nmt-generate", "--checkpoint", path, "--precision", "bf16"),
        ("nmt-average", path, "--output", tmp_path / "new.pt"),
        ("nmt-export", path, "--to", "checkpoint", "--output", tmp_path / "new.pt"),
        ("nmt-train", datasets["joined"], "--save-dir", tmp_path / "run", *TINY, "--init-from", path),
    ):
        done = run_here(*command)
        assert (done.returncode, done.stdout) == (2, b""), done.stderr
        assert b"an int8 checkpoint can only translate" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "kind", "shape", "message"),
    [
        (MATRIX, "float32", [32, 16], r"inner.weight is float32 where int8 is expected"),
        (MATRIX.replace("weights", "scales"), "float32", [31], r"inner.weight has \[31\] where \[32\]"),
        (BIAS, "int8", [32], "inner.bias is int8 where float32 is expected"),
    ],
)
def test_integers_and_scales_that_do_not_fit_are_refused(
    name: str, kind: str, shape: list[int], message: str, make_both: Callable[..., list[Path]]
) -> None:
    path = make_both()[1]
    size = int(np.prod(shape)) * (4 if kind == "float32" else 1)
    path.write_bytes(with_tensor(path.read_bytes(), name, kind, shape, bytes(size)))
    with pytest.raises(UserError, match=message):
        load_checkpoint(path)


def test_a_model_that_the_compiled_search_does_not_have_is_not_quantized(
    make_checkpoint: Callable[..., Checkpoint], run_here: Run, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "a.pt", make_checkpoint(attention_window=2))
    done = run_here("nmt-export", tmp_path / "a.pt", "--to", "int8", "--output", tmp_path / "b.pt")
    assert done.returncode == 2
    assert b"int8: the compiled search does not support --attention-window" in done.stderr

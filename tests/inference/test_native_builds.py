"""Each build of the compiled search computes what the portable one does: primitives, products, whole searches."""

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from native_programs import compile_program
from numpy.typing import NDArray
from patience import PATIENCE
from repository import ROOT
from torch import Tensor

HERE = Path(__file__).parent
FAST = ("_native_avx2", "_native_avx512", "_native_avx512vnni")
# kQuantMax and kPairSumLimit of VNNI, for a portable program that computes the same int8 products
VNNI_LIMITS = ("-DNMTKIT_QUANT_MAX=127", "-DNMTKIT_PAIR_SUM_LIMIT=508")


def module(build: str) -> Any:
    """A build; skips the test where it was not compiled or the CPU cannot run it."""
    try:
        return import_module(f"nmtkit.{build}")
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) and "this CPU has no" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile a program of this folder for a build, once for all tests."""

    @cache
    def compile_once(source: str, build: str, *flags: str) -> Path:
        return compile_program(HERE / source, build, tmp_path_factory.mktemp("program") / build, *flags)

    return compile_once


# --- primitives

HEADERS = {f"{name}.h" for name in ("scalar", "avx2", "avx512", "neon")}


def functions(header: str) -> set[str]:
    """The functions that a header defines for the other files, without its private ones."""
    text = (ROOT / "nmtkit/native" / header).read_text(encoding="utf-8")
    return set(re.findall(r"^inline \w+ (\w+)\(", text, re.M)) - {"map", "dot_bytes", "lane_mask"}


def test_the_headers_of_all_builds_define_the_same_functions() -> None:
    reference = functions("scalar.h")
    assert len(reference) > 20
    assert all(functions(header) == reference for header in HEADERS)


def output_of(command: list[str | Path]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("build", FAST)
def test_each_vector_primitive_computes_the_same_as_the_portable_one(build: str, compiled: Callable[..., Path]) -> None:
    module(build)
    reference, found = (output_of([compiled("primitives.cpp", each)]) for each in ("_native_scalar", build))
    assert len(reference) > 30
    assert found == reference


# --- whole searches

W, B, BEAM, STEPS = 37, 4, 4, 12
ACTIVATIONS = ("relu", "gelu", "swish", "swiglu")  # in the order of `Activation` in model.h
MODERN = {"pre_norm": True, "rms_norm": True, "rotary": True, "activation": 3}
SIZES: list[dict[str, Any]] = [
    {},
    {"pre_norm": True, "d_k": 5, "d_v": 24, "activation": 1},
    {"activation": 2},
    {**MODERN, "d_k": 10},
    {"qk_norm": True, "rotary": True},
]


class Weights(NamedTuple):
    """A random Transformer in the order of portable_search.cpp, and sentences for it."""

    sizes: dict[str, int]  # in the order of `random_weights`
    embeddings: list[Tensor]  # (W, D): source, target; then the gains of all queries and keys (d_k,)
    matrices: list[tuple[Tensor, Tensor | None]]  # (N, K), (N,)
    norms: list[tuple[Tensor, Tensor]]  # (D,), (D,)
    source: Tensor  # (B, S)
    lengths: Tensor  # (B,)
    positions: Tensor  # (S or steps, D, or d_k with rotary positions)


class Step(NamedTuple):
    """Input and output of one step of R rows."""

    origins: Tensor  # (R,)
    tokens: Tensor  # (R,)
    position: Tensor  # (D,) or (d_k,)
    best_tokens: Tensor  # (R, BEAM)
    log_probs: Tensor  # (R, BEAM)


def random_weights(int8: bool, **changes: int) -> Weights:
    sizes = {"d_model": 16, "heads": 2, "d_k": 8, "d_v": 8, "pre_norm": False, "int8": int8}
    sizes = {**sizes, "encoder_layers": 2, "decoder_layers": 2, "activation": 0}
    sizes = {**sizes, "rms_norm": False, "rotary": False, "qk_norm": False, **changes}
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    def matrix(rows: int, columns: int) -> tuple[Tensor, Tensor | None]:
        return random(rows, columns, scale=columns**-0.5), None if sizes["rms_norm"] else random(rows, scale=0.1)

    D, keys, values = sizes["d_model"], sizes["heads"] * sizes["d_k"], sizes["heads"] * sizes["d_v"]
    self_attention = [(2 * keys + values, D), (D, values)]
    cross_attention, feed_forward = [(keys, D), (keys + values, D), (D, values)], [(32, D), (D, 32)]
    if sizes["activation"] == ACTIVATIONS.index("swiglu"):
        feed_forward[0] = (64, D)
    shapes = [*self_attention, *feed_forward] * sizes["encoder_layers"]
    shapes += [*self_attention, *cross_attention, *feed_forward] * sizes["decoder_layers"]
    count = 2 * sizes["encoder_layers"] + 3 * sizes["decoder_layers"] + 2 * sizes["pre_norm"]
    lengths = torch.tensor([7, 1, 130, 12])  # one that is longer than a block of rows
    return Weights(
        sizes,
        [*(random(W, D, scale=0.5) for _ in range(2)), *(1 + random(sizes["d_k"], scale=0.1) for _ in range(2))],
        [*(matrix(*shape) for shape in shapes), (random(W, D), None)],
        [(1 + random(D, scale=0.1), random(D, scale=0.1)) for _ in range(count)],
        torch.randint(4, W, (B, int(lengths.max())), generator=generator),
        lengths,
        random(int(lengths.max()), sizes["d_k"] if sizes["rotary"] else D, scale=0.5),
    )


def named(weights: Weights) -> dict[str, NDArray[np.float32]]:
    """The weights by the names of parameters in nmtkit/model/transformer.py."""
    sizes, found = weights.sizes, dict[str, Tensor | None]()
    matrices, norms = iter(weights.matrices), iter(weights.norms)
    blocks: dict[str, tuple[str, ...]] = {"encoder": ("self_attention", "feed_forward")}
    blocks["decoder"] = ("self_attention", "cross_attention", "feed_forward")
    parts: dict[str, tuple[str, ...]] = {
        "self_attention": ("qkv", "out"),
        "cross_attention": ("q", "kv", "out"),
        "feed_forward": ("inner", "outer"),
    }
    for stack, sublayers in blocks.items():
        for number in range(sizes[f"{stack}_layers"]):
            for sublayer in sublayers:
                for part in parts[sublayer]:
                    name = f"{stack}.{number}.{sublayer}.{part}"
                    found[f"{name}.weight"], found[f"{name}.bias"] = next(matrices)
                if sizes["qk_norm"] and sublayer != "feed_forward":
                    name = f"{stack}.{number}.{sublayer}"
                    found[f"{name}.q_norm.weight"], found[f"{name}.k_norm.weight"] = weights.embeddings[2:]
            for sublayer in sublayers:
                name = f"{stack}.{number}.around_{sublayer}.norm"
                found[f"{name}.weight"], found[f"{name}.bias"] = next(norms)
    found["source_embedding.weight"], found["target_embedding.weight"] = weights.embeddings[:2]
    found["projection.weight"], _ = next(matrices)
    for name in ("encoder_norm", "decoder_norm") if sizes["pre_norm"] else ():
        found[f"{name}.weight"], found[f"{name}.bias"] = next(norms)
    return {name: weight.numpy() for name, weight in found.items() if weight is not None}


def beam_search(native: Any, weights: Weights) -> list[Step]:
    """A beam search of STEPS steps without an end, by a build of the compiled search."""
    sizes = weights.sizes
    model = native.model(
        *(sizes[name] for name in ("d_model", "heads", "d_k", "d_v", "pre_norm")),
        sizes["d_model"] ** 0.5,
        1e-5,  # in norms
        *(sizes[name] for name in ("rms_norm", "rotary")),
        ACTIVATIONS[sizes["activation"]],
        *(sizes[name] for name in ("encoder_layers", "decoder_layers")),
        named(weights),
        "int8" if sizes["int8"] else "fp32",
        2,
    )
    inputs = (each.numpy() for each in (weights.source, weights.lengths, weights.positions))
    search = native.encode(model, *inputs, 2)
    origins, tokens, totals = torch.arange(B), torch.full((B,), 2), torch.zeros(B, 1)
    steps = []
    for position in weights.positions[:STEPS]:
        rows = len(tokens)
        best_tokens, log_probs = torch.empty(rows, BEAM, dtype=torch.long), torch.empty(rows, BEAM)
        native.reorder(search, origins.numpy())
        results = (log_probs.numpy(), best_tokens.numpy())
        native.best_step(search, tokens.numpy(), position.numpy(), (), *results, 2)
        steps.append(Step(origins, tokens, position, best_tokens, log_probs))
        totals, chosen = (totals.reshape(-1, 1) + log_probs).reshape(B, -1).topk(BEAM)
        origins = (chosen // BEAM + torch.arange(B).unsqueeze(1) * (rows // B)).flatten()
        tokens = best_tokens.reshape(B, -1).gather(1, chosen).flatten()
    return steps


@pytest.mark.parametrize("build", FAST)
@pytest.mark.parametrize("changes", SIZES)
@pytest.mark.parametrize("int8", [False, True])
def test_a_search_finds_the_tokens_and_scores_of_the_portable_build(
    build: str, changes: dict[str, Any], int8: bool
) -> None:
    if int8 and build == "_native_avx512vnni":
        pytest.skip("VNNI quantizes with 8 bits, the portable build with 7")
    weights = random_weights(int8, **changes)
    for found, expected in zip(
        beam_search(module(build), weights), beam_search(module("_native_scalar"), weights), strict=True
    ):
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.best_tokens, expected.best_tokens)
        torch.testing.assert_close(found.log_probs, expected.log_probs, rtol=0.0, atol=1e-5)


def write_search(path: Path, weights: Weights, steps: list[Step]) -> None:
    """Write the file that portable_search.cpp reads."""
    vectors = [tensor for pair in weights.norms for tensor in pair]
    layers = weights.matrices
    with path.open("wb") as file:

        def write(values: NDArray[Any] | Tensor | list[int]) -> None:
            array = np.asarray(values).ravel()
            array = array.astype("<f4" if array.dtype.kind == "f" else "<i8")
            file.write(np.int64(array.size).tobytes() + array.tobytes())

        def write_matrix(weight: Tensor, bias: Tensor | None) -> None:
            write(list(weight.shape))
            write(weight)
            write(np.zeros(0, dtype=np.float32) if bias is None else bias)

        def write_layers(count: int, matrices: int, norms: int) -> None:
            for _ in range(count):
                for _ in range(matrices):
                    write_matrix(*layers.pop(0))
                for _ in range(2 * norms):
                    write(vectors.pop(0))

        layers, sizes = list(layers), weights.sizes
        write(list(sizes.values()))
        for embedding in weights.embeddings:
            write(embedding)
        write_layers(sizes["encoder_layers"], 4, 2)
        write_layers(sizes["decoder_layers"], 7, 3)
        write_layers(1, 1, 2 * sizes["pre_norm"])
        for tensor in (weights.source, weights.lengths, weights.positions):
            write(tensor)
        write([len(steps)])
        for step in steps:
            for tensor in step:
                write(tensor)


def check_program(command: list[str | Path], build: str, directory: Path) -> None:
    """Compare a compiled portable_search.cpp with a build of this machine."""
    for int8, changes in product([False, True], SIZES):
        weights, path = random_weights(int8, **changes), directory / "search"
        write_search(path, weights, beam_search(module(build), weights))
        for threads in ("1", "3"):
            done = subprocess.run([*command, path, "1e-5", threads], capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.startswith(f"{STEPS} steps, ")


@pytest.mark.parametrize("build", ["_native_scalar", *FAST])
def test_a_program_of_the_portable_build_reproduces_the_search_of_each_build(
    build: str, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    module(build)
    limits = VNNI_LIMITS if build == "_native_avx512vnni" else ()
    check_program([compiled("portable_search.cpp", "_native_scalar", *limits)], build, tmp_path)


def compile_for_aarch64(source: str, build: str, tmp_path: Path) -> list[str | Path]:
    """The command that runs a program for aarch64 here. Skips the test where compiler or emulator are missing."""
    if shutil.which("qemu-aarch64-static") is None:
        pytest.skip("qemu-aarch64-static is not installed")
    compiler = "aarch64-linux-gnu-g++"
    program = compile_program(HERE / source, build, tmp_path / build, "-static", compiler=compiler)
    return ["qemu-aarch64-static", program]


@pytest.mark.slow
@pytest.mark.parametrize("build", ["_native_scalar", "_native_neon"])
def test_aarch64_reproduces_the_search_of_the_portable_build(build: str, tmp_path: Path) -> None:
    check_program(compile_for_aarch64("portable_search.cpp", build, tmp_path), "_native_scalar", tmp_path)


@pytest.mark.slow
def test_each_neon_primitive_computes_the_same_as_the_portable_one(tmp_path: Path) -> None:
    reference, found = (
        output_of(compile_for_aarch64("primitives.cpp", build, tmp_path))
        for build in ("_native_scalar", "_native_neon")
    )
    assert len(reference) > 30
    assert found == reference

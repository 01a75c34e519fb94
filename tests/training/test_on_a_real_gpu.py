"""Training and search on a GPU of this machine; skipped where there is none."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import TINY, Run
from reference_loss import smoothed_loss
from searches import WAYS, close, padded
from torch import Tensor
from torch.testing import assert_close
from training_runs import assert_near, assert_same_end, metrics

from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.search import search
from nmtkit.inference.backends import torch_backend
from nmtkit.model.config import TransformerConfig
from nmtkit.model.embedding import look_up
from nmtkit.model.kernels import loss_kernel_on
from nmtkit.model.packed_attention import Kernel, PackedSide, Packing, attend_packed, attend_sentences, kernel_for
from nmtkit.text.vocabulary import EOS, NEVER_OUTPUT

varlen_attn = pytest.importorskip("torch.nn.attention.varlen").varlen_attn
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
GPU = torch.device("cuda", 0)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-8}  # of a gradient of at most 1


@pytest.mark.parametrize("width", [7, 64, 5000, 37_000])  # less than a block, one, several
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_loss_kernel_matches_the_reference(dtype: torch.dtype, width: int) -> None:
    kernel = loss_kernel_on(GPU)
    logits = (torch.randn(300, width, device=GPU) * 3).to(dtype)
    target = torch.randint(EOS, width, (300,), device=GPU)
    exact = logits.double().requires_grad_()
    expected = smoothed_loss(exact, target, 0.1)
    (gradient,) = torch.autograd.grad(expected, exact)
    nll, uniform = kernel.cross_entropy_(logits, target, 0.1, True)
    assert_close((0.9 * nll + 0.1 * uniform).double(), expected.detach(), rtol=1e-5, atol=1e-3)
    assert_close(logits.double(), gradient, rtol=0, atol=TOLERANCE[dtype])
    assert not logits[:, list(NEVER_OUTPUT)].any()


def test_packed_attention_is_computed_by_the_kernel_with_small_tiles() -> None:
    assert kernel_for(TransformerConfig(), torch.bfloat16, GPU) is attend_sentences


@pytest.mark.parametrize("kernel", [attend_sentences, varlen_attn])
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
def test_packed_attention_matches_attention_within_each_sentence(kernel: Kernel, causal: bool) -> None:
    lengths, filler = [5, 1, 250, 33], 7
    side = PackedSide(torch.tensor(lengths, device=GPU), sum(lengths), max(lengths), filler)
    packing = Packing.of(side, kernel)
    q, k, v = (torch.randn(side.tokens + filler, 8, 64, device=GPU).bfloat16().requires_grad_() for _ in range(3))
    found = attend_packed(kernel, q, k, v, packing, packing, (-1, 0) if causal else (-1, -1))[: side.tokens]
    sentences = [slice(start, start + length) for start, length in zip((0, 5, 6, 256), lengths, strict=True)]
    expected = torch.cat([attend(q[each].float(), k[each].float(), v[each].float(), causal) for each in sentences])
    assert_close(found.float(), expected, atol=0.03, rtol=0.03)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    others = torch.autograd.grad((found.float() * weights).sum(), (q, k, v))
    for gradient, other in zip(gradients, others, strict=True):
        assert (gradient - other).float().norm() < 0.02 * gradient.float().norm()


def test_the_gradient_of_packed_attention_always_has_the_same_bits() -> None:
    side = PackedSide(torch.full((100,), 250, device=GPU), 25_000, 250, 88)
    packing = Packing.of(side, attend_sentences)
    x = torch.randn(3, 25_088, 8, 64, device=GPU).bfloat16().requires_grad_()
    q, k, v = x.unbind()
    attended = attend_packed(attend_sentences, q, k, v, packing, packing, (-1, 0))
    weights = torch.randn_like(attended)
    first, *others = (torch.autograd.grad(attended, x, weights, retain_graph=True)[0] for _ in range(5))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("rows", [40, 300, 37_000])  # torch adds atomically to a table with few rows
def test_the_gradient_of_a_look_up_always_has_the_same_bits(rows: int) -> None:
    table = torch.randn(rows, 512, device=GPU, requires_grad=True)
    ids = torch.randint(rows, (25_000,), device=GPU)
    weights = torch.randn(25_000, 512, device=GPU)
    first, *others = (torch.autograd.grad(look_up(ids, table), table, weights)[0] for _ in range(6))
    assert all(torch.equal(first, other) for other in others)
    assert_close(
        first.double(), torch.zeros_like(table).double().index_add(0, ids, weights.double()), rtol=0, atol=1e-3
    )


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention in one sentence, for q, k and v (T, H, K): (T, H·K)."""
    scores = torch.einsum("qhk,thk->hqt", q, k) / q.size(-1) ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
    return torch.einsum("hqt,thk->qhk", scores.softmax(-1), v).flatten(1)


def train(run_here: Run, dataset: Path, folder: Path, updates: int, *options: object) -> Path:
    """A run's folder after so many updates, without dropout."""
    base = *TINY, "--adam-eps", 1e-6, "--validate-every", 4, "--valid-bleu"
    done = run_here("nmt-train", dataset, "--save-dir", folder, *base, "--max-updates", updates, *options)
    assert done.returncode == 0, done.stderr
    return folder


def test_training_in_fp32_ends_near_that_of_a_cpu(run_here: Run, datasets: dict[str, Path], tmp_path: Path) -> None:
    options = "--dropout", 0, "--ema", 0.9, "--clip-norm", 1
    cpu, gpu = (
        train(run_here, datasets["joined"], tmp_path / device, 8, *options, "--device", device)
        for device in ("cpu", "cuda")
    )
    assert_near(gpu, cpu)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns
@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "fp32"),
        ("--precision", "fp16"),
        ("--precision", "bf16", "--packing", "on"),
        ("--precision", "bf16", "--packing", "on", "--positions", "learned"),
        ("--precision", "bf16", "--packing", "off", "--attention-dropout", 0.1),
        ("--precision", "bf16", "--compile", "--ema", 0.9, "--clip-norm", 1),
    ],
    ids=["fp32", "fp16", "bf16 packed", "learned positions", "bf16 padded", "bf16 compiled"],
)
def test_a_resumed_run_ends_with_the_bits_of_a_straight_run(
    options: tuple[object, ...], run_here: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    more = *options, "--device", "cuda", "--d-model", 64, "--dropout", 0.3
    straight = train(run_here, datasets["joined"], tmp_path / "straight", 8, *more)
    train(run_here, datasets["joined"], tmp_path / "resumed", 4, *more)
    assert_same_end(train(run_here, datasets["joined"], tmp_path / "resumed", 8, *more), straight)
    losses = [row["loss"] for row in metrics(straight, "train")]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("way", [way for way in WAYS if "top" not in way])  # a GPU draws other random numbers
def test_a_search_finds_the_outputs_of_a_cpu(way: str, make_checkpoint: Callable[..., Checkpoint]) -> None:
    config = SearchConfig(max_len_a=1, max_len_b=6, **WAYS[way])  # type: ignore[arg-type]
    model = make_checkpoint(norm="pre").build_model()
    expected = search(torch_backend(model), *padded(), config, banned=((11, 12), (13,)))
    found = search(torch_backend(model.to(GPU)), *padded(), config, banned=((11, 12), (13,)))
    assert close(found, expected)

"""The fused loss against torch's own, computed in double precision."""

import math

import pytest
import torch
from native_builds import BUILDS, use_build, use_torch
from reference_loss import outputs, smoothed_loss
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.training import loss as loss_module
from nmtkit.training.loss import perplexity, projected_cross_entropy

D, W = 16, 50


def draw(rows: int, width: int = W) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, D, generator=random).requires_grad_()
    matrix = torch.randn(width, D, generator=random).requires_grad_()
    return hidden, matrix, torch.randint(EOS, width, (rows,), generator=random)


@pytest.mark.parametrize("build", [*BUILDS, None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
# rows below, at and beyond what is computed at a time; rows of several widths
@pytest.mark.parametrize(("rows", "width"), [(1, W), (512, W), (1300, W), (300, 4), (300, 7), (300, 1001)])
def test_value_and_gradients_match_torch(
    build: str | None, smoothing: float, rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch) if build is None else use_build(build, monkeypatch)
    hidden, matrix, target = draw(rows, width)
    loss, nll = projected_cross_entropy(hidden, matrix, target, smoothing)
    logits = hidden.double() @ matrix.double().T
    expected = smoothed_loss(logits, target, smoothing)
    assert_close(loss.double(), expected, rtol=2e-6, atol=1e-4)
    assert_close(nll.double(), smoothed_loss(logits, target, 0.0), rtol=2e-6, atol=1e-4)
    gradients = torch.autograd.grad(loss / rows, (hidden, matrix))
    expected_gradients = torch.autograd.grad(expected / rows, (hidden, matrix))
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_extreme_logits_neither_overflow_nor_vanish() -> None:
    hidden = torch.tensor([[100.0], [-100.0]], requires_grad=True)
    matrix = torch.tensor([[0.0], [-1.0], [0.0], [1.0]], requires_grad=True)
    loss, nll = projected_cross_entropy(hidden, matrix, torch.tensor([EOS, EOS]), 0.0)
    assert nll.item() == pytest.approx(200)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, (hidden, matrix)))


def test_an_empty_batch_has_no_loss_and_a_negative_log_likelihood_no_gradient() -> None:
    loss, nll = projected_cross_entropy(*draw(0), 0.1)
    assert (loss.item(), nll.item(), nll.requires_grad) == (0, 0, False)


def test_the_perplexity_of_a_run_that_diverges_is_infinite() -> None:
    assert (perplexity(1e4), perplexity(2)) == (math.inf, math.exp(2))


@pytest.mark.parametrize("build", [*BUILDS, None])
def test_bfloat16_products_give_nearly_the_same_loss_and_gradients(
    build: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch) if build is None else use_build(build, monkeypatch)
    hidden, matrix, target = draw(300)
    expected = projected_cross_entropy(hidden, matrix, target, 0.1)[0]
    expected_gradients = torch.autograd.grad(expected, (hidden, matrix))
    with torch.autocast("cpu", torch.bfloat16):
        loss = projected_cross_entropy(hidden, matrix, target, 0.1)[0]
    assert_close(loss, expected, rtol=0.01, atol=0)
    for gradient, exact in zip(torch.autograd.grad(loss, (hidden, matrix)), expected_gradients, strict=True):
        assert gradient.dtype == torch.float32
        assert F.cosine_similarity(gradient.flatten(), exact.flatten(), dim=0) > 0.999


def test_half_precision_keeps_small_gradients_and_does_not_overflow() -> None:
    """Pieces that are never wanted have gradients of the order of ε/W, which fp16 cannot hold to three digits."""
    W, random = 50_000, torch.Generator().manual_seed(1)
    hidden = (8 * torch.randn(64, D, generator=random)).requires_grad_()  # sure of most pieces that they do not come
    matrix = (torch.randn(W, D, generator=random) / 4).requires_grad_()
    target = torch.randint(EOS, 10, (64,), generator=random)
    exact = torch.autograd.grad(projected_cross_entropy(hidden, matrix, target, 0.1)[0], (hidden, matrix))
    with torch.autocast("cpu", torch.float16):
        loss = projected_cross_entropy(hidden, matrix, target, 0.1)[0]
    of_hidden, of_matrix = torch.autograd.grad(loss, (hidden, matrix))
    assert (of_hidden - exact[0]).norm() < 2e-3 * exact[0].norm()
    errors, sizes = (of_matrix - exact[1]).norm(dim=1), exact[1].norm(dim=1)
    assert (errors / sizes)[EOS:].median() < 2e-3


def test_half_precision_sums_many_rows_of_one_piece_without_overflow() -> None:
    hidden, matrix = torch.full((1024, D), 80.0, requires_grad=True), torch.zeros(W, D, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        loss = projected_cross_entropy(hidden, matrix, torch.full((1024,), EOS), 0.1)[0]
    (gradient,) = torch.autograd.grad(loss, matrix)
    assert_close(gradient[EOS], torch.full((D,), -1024 * 80 * 0.9 * (1 - 1 / (W - 2))), rtol=2e-3, atol=0)


def test_an_infinite_loss_has_no_finite_gradient() -> None:
    """A logit of -inf in fp16 makes the loss infinite, but the softmax's own gradient is finite."""
    hidden, matrix, target = draw(1)
    with torch.no_grad():
        matrix[target[0]] = -1e4 * hidden[0]
    with torch.autocast("cpu", torch.float16):
        loss = projected_cross_entropy(hidden, matrix, target, 0.1)[0]
    assert loss.isinf()
    assert not any(gradient.isfinite().any() for gradient in torch.autograd.grad(loss, (hidden, matrix)))


# --- PAD and BOS have no part in the loss


@pytest.mark.parametrize("build", [*BUILDS, None])
@pytest.mark.parametrize("large", [0.0, 1e5])
def test_no_logit_of_pad_or_bos_changes_the_loss_or_gets_a_gradient(
    build: str | None, large: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch) if build is None else use_build(build, monkeypatch)
    hidden, matrix, target = draw(40)
    expected = projected_cross_entropy(hidden, matrix, target, 0.1)
    expected_gradients = torch.autograd.grad(expected[0], (hidden, matrix))
    changed = matrix.detach().clone()
    changed[[PAD, BOS]] *= large
    loss, nll = projected_cross_entropy(hidden, changed.requires_grad_(), target, 0.1)
    of_hidden, of_matrix = torch.autograd.grad(loss, (hidden, changed))
    assert_close((loss, nll), expected, rtol=1e-6, atol=0)
    assert_close((of_hidden, of_matrix), expected_gradients, rtol=1e-5, atol=1e-5)
    assert (of_matrix[[PAD, BOS]] == 0).all()


@pytest.mark.parametrize("build", [*BUILDS, None])
@pytest.mark.parametrize("impossible", [PAD, BOS])
def test_pad_or_bos_as_a_target_has_an_infinite_loss(
    build: str | None, impossible: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch) if build is None else use_build(build, monkeypatch)
    hidden, matrix, _ = draw(2)
    loss, nll = projected_cross_entropy(hidden, matrix, torch.tensor([EOS, impossible]), 0.1)
    assert (loss.item(), nll.item()) == (float("inf"), float("inf"))


# --- the compiled cross-entropy, with every build


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_compiled_cross_entropy_keeps_what_is_not_finite(
    build: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for compiled in (True, False):
        use_build(build, monkeypatch) if compiled else use_torch(monkeypatch)
        logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
        logits[1, 4] = bad
        sums = loss_module._cross_entropy(logits, logits, torch.tensor([3, 4, 5]), 0.1, True)
        results.append((sums, logits))
    assert_close(*results, equal_nan=True)
    assert not results[0][0].isfinite().any()


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("width", [4, 7, 1001])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_compiled_cross_entropy_of_bf16_computes_in_fp32_and_rounds_the_gradient_once(
    build: str, width: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_build(build, monkeypatch)
    random = torch.Generator().manual_seed(width)
    logits = (5 * torch.randn(30, width, generator=random)).bfloat16()
    target = torch.randint(EOS, width, (30,), generator=random)
    exact = logits.double().requires_grad_()
    expected = smoothed_loss(exact, target, smoothing)
    expected_sums = smoothed_loss(exact, target, 0.0), -outputs(exact.log_softmax(-1)).mean(-1).sum()
    values = logits.clone()
    sums = loss_module._cross_entropy(values, values, target, smoothing, False)
    learned = loss_module._cross_entropy(logits, logits, target, smoothing, True)
    assert torch.equal(sums, learned)
    nll = sums[0].double()
    assert_close(nll, expected_sums[0], rtol=1e-6, atol=1e-4)
    assert_close((1 - smoothing) * nll + smoothing * sums[1], expected, rtol=1e-6, atol=1e-4)
    assert logits.dtype == torch.bfloat16
    assert_close(logits.double(), torch.autograd.grad(expected, exact)[0], rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_compiled_cross_entropy_does_not_depend_on_the_number_of_threads(
    build: str, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_build(build, monkeypatch)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        logits = torch.randn(100, 1001, generator=torch.Generator().manual_seed(1)).to(kind)
        sums = loss_module._cross_entropy(logits, logits, torch.arange(EOS, EOS + 100), 0.1, True)
        results.append((sums, logits))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("wrong", [-1, 20])
def test_compiled_cross_entropy_refuses_a_target_outside_the_vocabulary(
    build: str, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_build(build, monkeypatch)
    logits = torch.randn(2, 20)
    with pytest.raises(IndexError, match="target"):
        loss_module._cross_entropy(logits, logits, torch.tensor([3, wrong]), 0.1, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_matrix_gets_no_gradient_and_does_not_change_that_of_the_hidden_states(dtype: torch.dtype) -> None:
    target, gradients = torch.tensor([3, 4, 8]), []
    for trained in (True, False):
        torch.manual_seed(1)
        hidden, matrix = torch.randn(3, 8, requires_grad=True), torch.randn(9, 8, requires_grad=trained)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss, _ = projected_cross_entropy(hidden, matrix, target, 0.1)
        torch.autograd.backward(loss)
        assert (matrix.grad is not None) == trained
        gradients.append(hidden.grad)
    assert_close(gradients[1], gradients[0], rtol=0, atol=0)

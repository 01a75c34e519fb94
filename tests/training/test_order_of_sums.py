"""Gradients on a GPU: no sum of several numbers is left to atomic additions, whose order differs in each run."""

from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import GPU, fake_gpu
from packed_attention import attend_within_sentences
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.data.batch import make_batch
from nmtkit.data.packing import make_packed_batch
from nmtkit.model.architectures import make_model
from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.embedding import look_up
from nmtkit.model.presets import PRESETS
from nmtkit.text.vocabulary import EOS
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.ranks import Ranks

SCATTERING, ADDING = {"scatter_add", "scatter_add_"}, {"index_add", "index_add_"}
PUTTING = {"index_put", "index_put_", "_index_put_impl_"}
TINY: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 24, "heads": 2}
MODELS = {
    "sinusoids": TransformerConfig(**TINY),
    "learned positions": TransformerConfig(**TINY, positions="learned", share_embeddings="none", output_bias=True),
    "lstm_small": PRESETS["lstm_small"].model_config(),
    "conv_small": PRESETS["conv_small"].model_config(),
}


class AnyOrder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the operators that add several numbers to one element, in any order on a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator.overloadpacket.__name__
        if name in SCATTERING:  # (self, dim, index, numbers)
            self._note(name, torch.zeros_like(args[0]).scatter_add(args[1], args[2], torch.ones_like(args[3])))
        elif name in ADDING:
            self._note(name, torch.zeros_like(args[0]).index_add(args[1], args[2], torch.ones_like(args[3])))
        elif name in PUTTING and len(args) > 3 and args[3]:  # (self, indices, numbers, accumulate)
            self._note(name, torch.zeros_like(args[0]).index_put(args[1], torch.ones_like(args[2]), accumulate=True))
        elif name == "embedding_dense_backward" and 30 * args[2] < args[1].numel():  # torch 2.11 to 2.13
            self._note(name, args[1].flatten().bincount())
        return operator(*args, **(kwargs or {}))

    def _note(self, name: str, additions: Tensor) -> None:
        if additions.max() > 1:
            self.found.add(name)


def sentences(packed: bool) -> Any:
    random = np.random.default_rng(1)
    sides: list[Any] = []
    for _ in range(2):
        lengths = random.integers(1, 9, 12, endpoint=True).astype(np.int32)
        ids = random.integers(EOS + 1, 20, lengths.sum())
        ids[lengths.cumsum() - 1] = EOS
        sides += [ids, lengths]
    return (make_packed_batch if packed else make_batch)(*sides)


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize(
    ("model", "packed"), [(name, packed) for name in MODELS for packed in (False, True) if not (packed and "_" in name)]
)
def test_no_gradient_on_a_gpu_is_a_sum_in_any_order(model: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmtkit.training.loss.kernel_for", lambda *facts: attend_within_sentences)
    config: ModelConfig = MODELS[model]
    with fake_gpu(monkeypatch):
        model_on_gpu = make_model(config, 20, 20).to(GPU)
        scaler = torch.amp.GradScaler("cuda", enabled=False)
        gradient = UpdateGradient(MicroBatchLoss(model_on_gpu, 0.1), Ranks(GPU), torch.float32, scaler, seed=1)
        with AnyOrder() as any_order:
            gradient.compute(1, [(0, [sentences(packed)])], 60, votes=())
    assert not any_order.found


@pytest.mark.parametrize("fixed", [None, 1])
@pytest.mark.parametrize("count", [6, 600])  # torch adds atomically to a table with few rows
def test_looking_up_rows_on_a_gpu_has_the_gradient_of_a_cpu_in_a_fixed_order(
    count: int, fixed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, ids, factors = torch.randn(5, 3), torch.randint(5, (2, count // 2)), torch.randn(2, count // 2, 3)
    expected = torch.zeros(5, 3).index_add_(0, ids.flatten(), factors.flatten(0, 1))
    if fixed is not None:
        expected[fixed] = 0
    with fake_gpu(monkeypatch), AnyOrder() as any_order:
        on_gpu = table.to(GPU).requires_grad_()
        rows = look_up(ids.to(GPU), on_gpu, fixed)
        (found,) = torch.autograd.grad((rows * factors.to(GPU)).sum(), on_gpu)
    assert not any_order.found
    assert torch.equal(rows.cpu(), table[ids])
    assert_close(found.cpu(), expected)

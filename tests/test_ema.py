"""The moving average of the weights: its recurrence, and that it takes the model's place and leaves it untouched."""

import pytest
import torch
from torch import Tensor

from nmtkit.checkpoint import collect_weights
from nmtkit.model.config import ModelConfig
from nmtkit.model.transformer import Transformer
from nmtkit.training.ema import MovingAverage


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(1)
    return Transformer(ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, heads=2), 12, 12)


@torch.no_grad()
def train(model: Transformer) -> None:
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter))


def copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_the_average_follows_its_recurrence_with_an_early_decay_that_grows(model: Transformer) -> None:
    average = MovingAverage(model, decay=0.5)
    expected = {name: weight.double() for name, weight in collect_weights(model).items()}
    for update in range(1, 21):
        train(model)
        average.step(update)
        decay = min(0.5, (1 + update) / (10 + update))
        for name, weight in collect_weights(model).items():
            expected[name] = decay * expected[name] + (1 - decay) * weight.double()
    for name, tensor in expected.items():
        assert average.averages[name].dtype == torch.float32
        torch.testing.assert_close(average.averages[name].double(), tensor, rtol=1e-5, atol=1e-5)


def test_the_model_has_the_averages_only_for_a_while(model: Transformer) -> None:
    average = MovingAverage(model, decay=0.9)
    train(model)
    average.step(1)
    weights, averages = copy(collect_weights(model)), copy(average.averages)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with average.in_model():
        for name, weight in collect_weights(model).items():
            assert torch.equal(weight, averages[name])
            assert not torch.equal(weight, weights[name])
    for name, weight in collect_weights(model).items():
        assert torch.equal(weight, weights[name])
        assert torch.equal(average.averages[name], averages[name])
    assert places == [parameter.data_ptr() for parameter in model.parameters()]  # tied and compiled models rely on it


def test_it_goes_on_from_saved_averages_as_if_never_stopped(model: Transformer) -> None:
    straight = MovingAverage(model, decay=0.9)
    for update in (1, 2):
        train(model)
        straight.step(update)
    resumed = MovingAverage(model, decay=0.9)
    resumed.load(copy(straight.averages))
    train(model)
    for each in (straight, resumed):
        each.step(3)
    assert all(torch.equal(resumed.averages[name], tensor) for name, tensor in straight.averages.items())

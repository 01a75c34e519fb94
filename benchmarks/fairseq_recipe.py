"""Check: the recipe examples/multi30k-bpe in nmtkit vs. in fairseq, definition by definition, in numbers.

    fairseq-preprocess -s en -t de --trainpref text/train --joined-dictionary --destdir data-bin
    python benchmarks/fairseq_recipe.py data-bin -s en -t de

Needs fairseq 0.12 in the Python environment of nmtkit. fairseq's trainer makes a few updates on its own batches; nmtkit
makes them on the same batches, from the same initial weights. "Aligned" is nmtkit's model with fairseq's definitions:
the decoder begins with `</s>`, `<s>` and `<pad>` are in the softmax, the smoothing is that of fairseq 0.12, and Adam's
ε has fairseq's effect. "nmtkit's own" is its usual training. Both use fairseq's learning rates.

Gradients of key biases are left out: they are 0 up to rounding, which Adam magnifies.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import click
import numpy as np
import torch
from fairseq_models import SPECIAL_IDS
from torch import Tensor
from torch.nn import functional as F

from nmtkit.conversion.weights import ForeignWeights, alternating, permute_width, sines_first
from nmtkit.data.batch import Batch, pad
from nmtkit.data.batching import BatchSampler
from nmtkit.machine import native_build
from nmtkit.model.config import TransformerConfig
from nmtkit.model.dropout import DropoutMask
from nmtkit.model.positions import sinusoids
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import BOS, EOS
from nmtkit.training.config import OptimizerConfig
from nmtkit.training.loss import batch_loss
from nmtkit.training.optim import learning_rate, make_optimizer, take_step

SMOOTHING = 0.1
CLIP_NORM = 0.5  # below the norms of the first gradients, so that they are clipped; the recipe has 25
UPDATES = 5
WARMUP = 4  # the recipe has 2000: its first updates would be too small to compare
SIZES = {"layers": 4, "embed-dim": 128, "ffn-embed-dim": 256, "attention-heads": 4}
CONFIG = TransformerConfig(
    encoder_layers=4,
    decoder_layers=4,
    d_model=128,
    d_ff=256,
    heads=4,
    positions="fairseq",
    share_embeddings="all",
    dropout=0.0,
)
OPTIMIZER = OptimizerConfig(lr=0.005, lr_schedule="inverse-sqrt", warmup_updates=WARMUP, adam_beta2=0.98, adam_eps=1e-8)
Loss = Callable[[Transformer, Batch], Tensor]
State = dict[str, Tensor]


class Step(NamedTuple):
    """One update: the loss of a target token before it, and the gradients after clipping."""

    loss: float
    gradients: State


class Reference:
    """fairseq's trainer with the recipe. Its weights and gradients have nmtkit's names."""

    def __init__(self, data: Path, languages: tuple[str, str], *options: str) -> None:
        modules: Any = import_module("fairseq.options"), import_module("fairseq.tasks")
        trainers: Any = import_module("fairseq.trainer")
        configs: Any = import_module("fairseq.dataclass.utils")
        sizes = [text for name, size in SIZES.items() for text in _for_both_stacks(name, size)]
        line = f"{data} -s {languages[0]} -t {languages[1]} --arch transformer --share-all-embeddings --cpu "
        line += f"--criterion label_smoothed_cross_entropy --label-smoothing {SMOOTHING} --optimizer adam "
        line += f"--clip-norm {CLIP_NORM} --lr-scheduler inverse_sqrt --lr 0.005 --warmup-updates {WARMUP} "
        line += "--max-tokens 4096 --update-freq 2 --seed 1"
        betas = ["--adam-betas", "(0.9, 0.98)"]
        arguments = modules[0].parse_args_and_arch(
            modules[0].get_training_parser(), [*line.split(), *betas, *sizes, *options]
        )
        config = configs.convert_namespace_to_omegaconf(arguments)
        torch.manual_seed(1)
        task = modules[1].setup_task(config.task)
        model, criterion = task.build_model(config.model), task.build_criterion(config.criterion)
        self.trainer = trainers.Trainer(config, task, model, criterion)
        self.epoch = self.trainer.get_train_iterator(epoch=1)
        self.lengths = self.epoch.dataset.src_sizes, self.epoch.dataset.tgt_sizes

    def updates(self) -> Iterator[list[dict[str, Any]]]:
        """The batches of each update of the first epoch."""
        iterators: Any = import_module("fairseq.data.iterators")
        return iter(iterators.GroupedIterator(self.epoch.next_epoch_itr(shuffle=True), 2))

    def step(self, samples: Sequence[dict[str, Any]]) -> Step:
        losses: list[tuple[Tensor, int]] = []  # fairseq logs rounded ones
        hook = self.trainer.criterion.register_forward_hook(lambda _, __, output: losses.append(output[:2]))
        self.trainer.train_step(samples)
        hook.remove()
        gradients = {name: weight.grad for name, weight in self._parameters() if weight.grad is not None}
        loss, tokens = (float(sum(each)) for each in zip(*losses, strict=True))
        return Step(loss / tokens, to_own(gradients))

    def weights(self) -> State:
        return to_own({name: weight.detach().clone() for name, weight in self._parameters()})

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.trainer.model.named_parameters()
        yield "encoder.embed_tokens.weight", self.trainer.model.encoder.embed_tokens.weight


class Own:
    """nmtkit's training from given weights."""

    def __init__(
        self, weights: State, loss: Loss, config: TransformerConfig = CONFIG, *, aligned_epsilon: bool = False
    ) -> None:
        size = len(weights["target_embedding.weight"])
        self.model, self._loss = Transformer(config, size, size), loss
        self.model.load_state_dict({**weights, "source_embedding.weight": weights["target_embedding.weight"]})
        self.model.train()
        self._optimizer = make_optimizer(self.model, OPTIMIZER)
        self._scaler = torch.amp.GradScaler("cpu", enabled=False)
        self._aligned_epsilon, self._updates = aligned_epsilon, 0

    def step(self, batches: Sequence[Batch], rate: float) -> Step:
        self.model.zero_grad()
        tokens = sum(batch.target_tokens for batch in batches)
        total = torch.stack([self._loss(self.model, batch) for batch in batches]).sum() / tokens
        total.backward()  # type: ignore[no-untyped-call]
        self._updates += 1
        if self._aligned_epsilon:  # fairseq adds it to the root of the second moment before the bias correction
            self._optimizer.param_groups[0]["eps"] = (
                OPTIMIZER.adam_eps / (1 - OPTIMIZER.adam_beta2**self._updates) ** 0.5
            )
        take_step(self.model, self._optimizer, self._scaler, rate, CLIP_NORM)
        gradients = {
            name: weight.grad.clone() for name, weight in self.model.named_parameters() if weight.grad is not None
        }
        return Step(float(total), gradients)

    def weights(self) -> State:
        return {name: weight.detach().clone() for name, weight in self.model.named_parameters()}


def _for_both_stacks(name: str, size: int) -> list[str]:
    return [text for stack in ("encoder", "decoder") for text in (f"--{stack}-{name}", str(size))]


def to_own(state: State) -> State:
    """fairseq's weights or gradients by nmtkit's names and ids; `<s>` keeps its own row."""
    foreign = ForeignWeights(state)
    embedding = foreign.take("encoder.embed_tokens.weight")
    order = [*(0 if number == BOS else other for number, other in enumerate(SPECIAL_IDS)), *range(4, len(embedding))]
    weights = {"target_embedding.weight": embedding[order], **foreign.take_stacks(CONFIG)}
    return permute_width(weights, alternating(CONFIG.d_model))


def to_batch(sample: dict[str, Any], start: int) -> Batch:
    """A batch of fairseq as nmtkit's; `start` begins each target."""
    inputs = sample["net_input"]
    src, source_lengths = pad(_own_ids(inputs["src_tokens"]))
    rows = _own_ids(sample["target"])
    tgt_out, target_lengths = pad(rows)
    tgt_in, _ = pad([[start, *row[:-1]] for row in rows])
    return Batch.of(src, source_lengths, tgt_in, tgt_out, target_lengths)


def _own_ids(tokens: Tensor) -> list[list[int]]:
    own = {other: number for number, other in enumerate(SPECIAL_IDS) if number != BOS}
    return [[own.get(number, number) for number in row if number != 1] for row in tokens.tolist()]


def aligned_loss(model: Transformer, batch: Batch) -> Tensor:
    """fairseq's criterion, of release 0.12, for nmtkit's model: the sum over all target tokens."""
    hidden = model.decode(batch.tgt_in, model.encode(batch.src, batch.source_lengths)).flatten(0, 1)
    log_probs = F.linear(hidden[batch.target_indices], model.output_matrix).log_softmax(-1)
    target = batch.tgt_out.flatten()[batch.target_indices]
    share = SMOOTHING / (log_probs.size(-1) - 1)
    return (1 - SMOOTHING - share) * F.nll_loss(log_probs, target, reduction="sum") - share * log_probs.sum()


def own_loss(model: Transformer, batch: Batch) -> Tensor:
    return batch_loss(model, batch, SMOOTHING)[0]


@contextmanager
def dropout_as_factor() -> Iterator[None]:
    """Replace dropout of rate p by a factor of 1 + p in both toolkits, so that its place changes the result."""
    attend = F.scaled_dot_product_attention

    def scaled(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * (1 + p) if training else x

    def attend_scaled(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
    ) -> Tensor:
        return attend(q, k, v, attn_mask=attn_mask, is_causal=is_causal) * (1 + dropout_p)

    def apply(mask: DropoutMask, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return x * (1 + mask.rate) if residual is None else residual + x * (1 + mask.rate)

    with (
        mock.patch.object(F, "dropout", scaled),
        mock.patch.object(F, "scaled_dot_product_attention", attend_scaled),
        mock.patch.object(DropoutMask, "apply", apply),
        mock.patch.object(native_build, "serves", return_value=False),
    ):
        yield


def without_key_biases(state: State) -> State:
    """The tensors without key biases, which the softmax of attention cancels."""
    d = CONFIG.d_model
    parts = {".qkv.bias": [*range(d), *range(2 * d, 3 * d)], ".kv.bias": list(range(d, 2 * d))}
    kept = {name: next((rows for end, rows in parts.items() if name.endswith(end)), None) for name in state}
    return {name: tensor if kept[name] is None else tensor[kept[name]] for name, tensor in state.items()}


def distance(first: State, second: State) -> float:
    """The largest difference of two states."""
    first, second = without_key_biases(first), without_key_biases(second)
    return max(float((tensor - second[name]).abs().max()) for name, tensor in first.items())


def root_mean_square(first: State, second: State) -> float:
    """The root of the mean square of the differences of two states."""
    first, second = without_key_biases(first), without_key_biases(second)
    return float(
        torch.cat([(tensor - second[name]).flatten() for name, tensor in first.items()]).square().mean().sqrt()
    )


def compare_steps(reference: Reference) -> None:
    """Make the same updates from the same weights in fairseq and in both variants of nmtkit."""
    weights = reference.weights()
    owns = {
        "aligned": (Own(weights, aligned_loss, aligned_epsilon=True), EOS),
        "nmtkit's own": (Own(weights, own_loss), BOS),
    }
    rates = []
    for number, samples in enumerate(islice(reference.updates(), UPDATES), 1):
        rates.append(reference.trainer.get_lr())
        theirs = reference.step(samples)
        for name, (own, start) in owns.items():
            ours = own.step([to_batch(sample, start) for sample in samples], rates[-1])
            largest = max(float(each.abs().max()) for each in theirs.gradients.values())
            error = distance(ours.gradients, theirs.gradients)
            print(f"update {number}, {name}: loss {ours.loss:.6f}, in fairseq {theirs.loss:.6f}")
            print(f"  clipped gradients: largest {largest:.1e}, largest difference {error:.1e}")
    moved = distance(weights, reference.weights())
    for name, (own, _) in owns.items():
        error = distance(own.weights(), reference.weights())
        share = root_mean_square(own.weights(), reference.weights()) / root_mean_square(weights, reference.weights())
        print(f"after {UPDATES} updates, {name}: largest difference of weights {error:.1e}")
        print(f"  root mean square of the differences: {share:.1e} of that of the changes")
    print(f"largest change of a weight: {moved:.1e}")
    print("learning rates of fairseq:", *(f"{rate:.3e}" for rate in rates))
    print("  of nmtkit:", *(f"{learning_rate(n + 1, OPTIMIZER, CONFIG.d_model, 8000):.3e}" for n in range(UPDATES)))


def compare_dropout(data: Path, languages: tuple[str, str]) -> None:
    rates = {"dropout": 0.3, "attention_dropout": 0.1, "activation_dropout": 0.2}
    options = [text for name, rate in rates.items() for text in ("--" + name.replace("_", "-"), str(rate))]
    reference = Reference(data, languages, *options)
    samples = next(reference.updates())
    for kinds in (("dropout",), ("dropout", "activation_dropout"), tuple(rates)):
        used: dict[str, Any] = {name: rate if name in kinds else 0.0 for name, rate in rates.items()}
        config = replace(CONFIG, **used)
        own = Own(reference.weights(), aligned_loss, config)
        with dropout_as_factor():
            ours = own.step([to_batch(sample, EOS) for sample in samples], 0.0)
        print(f"dropout as a factor, nmtkit with {', '.join(kinds)}: loss {ours.loss:.6f}")
    with dropout_as_factor():
        theirs = reference.step(samples)
    error = distance(ours.gradients, theirs.gradients)
    print(f"  fairseq with all three: {theirs.loss:.6f}; clipped gradients differ by {error:.1e}")


def compare_definitions(reference: Reference) -> None:
    """Positions, initial weights, and the batches of an epoch."""
    table = reference.trainer.model.encoder.embed_positions
    theirs = table.get_embedding(1026, CONFIG.d_model, 1)[2:]
    print(f"sinusoids differ by {(sines_first(sinusoids(1024, CONFIG.d_model, 'fairseq')) - theirs).abs().max():.1e}")
    size = len(reference.weights()["target_embedding.weight"])
    torch.manual_seed(1)
    own = dict(Transformer(CONFIG, size, size).named_parameters())
    for name, weight in reference.weights().items():
        if (".0." in name and "norm" not in name) or name.startswith("target"):
            print(f"initial {name}: σ {weight.std():.4f}, in nmtkit {own[name].std():.4f}")
    source, target = (np.asarray(lengths, dtype=np.int32) for lengths in reference.lengths)
    batches = reference.epoch.frozen_batches
    number = -(-len(batches) // 2)
    print(f"fairseq: {len(batches)} batches, {number} updates of {target.sum() / number:.0f} target tokens")
    updates = list(BatchSampler(source, target, 7000, 4096, seed=1).epoch(1))
    micro_batches = sum(len(update.micro_batches) for update in updates)
    print(f"nmtkit: {micro_batches} batches, {len(updates)} updates of {target.sum() / len(updates):.0f} target tokens")


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("-s", "--source-lang", required=True)
@click.option("-t", "--target-lang", required=True)
def main(data: Path, source_lang: str, target_lang: str) -> None:
    """Compare on DATA, a folder of fairseq-preprocess with a joint dictionary."""
    languages = source_lang, target_lang
    reference = Reference(data, languages, "--dropout", "0")
    compare_definitions(reference)
    compare_steps(reference)
    compare_dropout(data, languages)


if __name__ == "__main__":
    main()

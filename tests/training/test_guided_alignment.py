"""Training with word alignments: loss and gradient, the path of a file into micro-batches, and what a model learns."""

from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import torch
from commands import Run, Train
from small_transformers import W, make
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from training_runs import refused, tensors

from nmtkit.checkpoint import load_checkpoint
from nmtkit.data.alignments import Alignments
from nmtkit.data.batch import Batch, make_batch
from nmtkit.data.batching import START
from nmtkit.data.corpus import Dataset
from nmtkit.data.mixture import Mixture
from nmtkit.model.layers import DecoderLayer
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import EOS
from nmtkit.training.loader import Loader
from nmtkit.training.loss import MicroBatchLoss

LENGTHS = (3, 7), (9, 2), (5, 5)  # of sources and targets


def aligned_batch() -> Batch:
    """Random sentence pairs, some of whose target pieces have one link, several, or none."""
    random = np.random.default_rng(3)
    sides: list[Any] = []
    for lengths in zip(*LENGTHS, strict=True):
        ids = [[*random.integers(EOS + 1, W, length - 1), EOS] for length in lengths]
        sides += [np.concatenate(ids), np.array(lengths, np.int32)]
    batch = make_batch(*sides)
    alignment = torch.zeros(3, 7, 9)
    for row, (source, target) in enumerate(LENGTHS):
        alignment[row, :target, :source] = torch.from_numpy(random.integers(0, 2, (target, source)))
    alignment[0, 1] = 0
    alignment /= alignment.sum(2, keepdim=True).clamp_min(1)
    return Batch(**{**vars(batch), "alignment": alignment.double()})


def plain_loss(model: Transformer, batch: Batch, guidance: float) -> Tensor:
    """Cross-entropy plus -p·log(a + 1e-6), head by head, from what the last layer's attention is given."""
    given: list[Any] = []
    attention = cast(DecoderLayer, model.decoder[-1]).cross_attention
    hook = attention.register_forward_hook(lambda module, inputs, output: given.append(inputs))
    logits = model(batch.src, batch.source_lengths, batch.tgt_in)
    hook.remove()
    queries, keys = attention.q(given[0][0]), attention.kv(given[0][1])
    width, alignment = attention.widths[0] // attention.heads, batch.alignment
    assert alignment is not None
    total: Tensor = logits.new_zeros(())
    for row, (source, target) in enumerate(LENGTHS):
        total = total + F.cross_entropy(logits[row, :target], batch.tgt_out[row, :target], reduction="sum")
        for head in range(attention.heads):
            of_head = slice(head * width, (head + 1) * width)
            scores = queries[row, :target, of_head] @ keys[row, :source, of_head].T / width**0.5
            shares = alignment[row, :target, :source]
            total = total - guidance * (shares * (scores.softmax(-1) + 1e-6).log()).sum() / attention.heads
    return total


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"decoder_recurrence": "ssru", "positions": "marian"}])
@pytest.mark.parametrize("precision", [torch.float64, torch.float32], ids=str)  # torch's and the compiled operators
@pytest.mark.parametrize("checkpointing", [False, True])
def test_loss_and_gradient_are_those_of_the_definition(
    changes: dict[str, Any], precision: torch.dtype, checkpointing: bool
) -> None:
    model, batch = make(**changes).to(precision), aligned_batch()
    model.activation_checkpointing = checkpointing
    loss, nll = MicroBatchLoss(model, 0.0, guidance=0.3)(batch)
    loss.backward()
    ours = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    expected = plain_loss(model, batch, 0.3)
    expected.backward()  # type: ignore[no-untyped-call]
    rtol, atol = (1e-5, 1e-6) if precision == torch.float64 else (1e-3, 1e-4)
    assert_close(loss.double(), expected.double(), rtol=rtol, atol=atol)
    assert_close(nll.double(), MicroBatchLoss(model, 0.0)(batch)[0].detach().double(), rtol=rtol, atol=atol)
    for gradient, parameter in zip(ours, model.parameters(), strict=True):
        assert_close(gradient, parameter.grad, rtol=rtol, atol=atol)


def links(source: list[str], target: list[str]) -> str:
    return " ".join(f"{i}-{j}" for i, word in enumerate(source) for j, copy in enumerate(target) if word == copy)


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_lines_of_the_text_reach_their_pairs_in_every_part_of_a_batch(
    ranks: int, run_here: Run, tmp_path: Path
) -> None:
    """Equal words are aligned, and some lines are empty or duplicates, which nmt-preprocess drops."""
    random, words = Random(1), [f"w{number}" for number in range(9)]
    pairs = [tuple(random.choices(words, k=random.randint(0, 7)) for _ in range(2)) for _ in range(200)]
    for side, name in enumerate(("train.en", "train.de")):
        (tmp_path / name).write_text("".join(f"{' '.join(pair[side])}\n" for pair in [*pairs, pairs[0], pairs[1]]))
    (tmp_path / "train.align").write_text("".join(f"{links(*pair)}\n" for pair in [*pairs, pairs[0], pairs[1]]))
    text = ("-s", "en", "-t", "de", "--trainpref", tmp_path / "train", "--dedup", "pair", "--tokenizer", "space")
    assert run_here("nmt-preprocess", *text, "--destdir", tmp_path / "data").returncode == 0
    dataset = Dataset.open(tmp_path / "data")
    split = dataset.split("train")
    assert len(split) < len(pairs)
    alignments, seen = Alignments(tmp_path / "train.align", dataset, split), 0
    mixture = Mixture([(split.source.lengths, split.target.lengths)], [1.0], 300, 100, seed=1)
    for rank in range(ranks):
        loader = Loader([split], mixture, rank, ranks, num_workers=1, alignments=alignments)
        for work in loader.updates([START]):
            if work.update.epoch > 1:
                break
            for _, (batch,) in work.share():
                for part in batch.parts_within(40):
                    assert isinstance(part, Batch)
                    assert part.alignment is not None
                    equal = (part.tgt_out[:, :, None] == part.src[:, None, :]) & (part.src[:, None, :] > EOS)
                    assert_close(part.alignment, equal / equal.sum(2, keepdim=True).clamp_min(1))
                    seen += part.sentences
    assert seen == len(split)


def write_reversed(path: Path, text: Path) -> None:
    """Align the words of a text with their capitals in the reversed order."""
    counts = [len(line.split()) for line in text.read_text().splitlines()]
    path.write_text("".join(" ".join(f"{i}-{n - 1 - i}" for i in range(n)) + "\n" for n in counts))


def test_a_model_aligns_as_it_was_taught_in_the_layer_that_generation_reads(
    train: Train, run_here: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    text, given = datasets["separate"].parent / "train.en", tmp_path / "train.align"
    write_reversed(given, text)
    options = ("--decoder-layers", 3, "--decoder-recurrence", "ssru", "--positions", "marian", "--dropout", 0)
    sizes = ("--d-model", 32, "--lr-schedule", "linear", "--lr", 0.01, "--max-updates", 100)
    agreement = []
    for name, guide in (("free", ()), ("guided", ("--guided-alignment", given, "--guided-alignment-weight", 1))):
        train(tmp_path / name, *options, *sizes, *guide, dataset=datasets["separate"])
        checkpoint = tmp_path / name / "checkpoint_last.pt"
        assert load_checkpoint(checkpoint).search == ({"alignment_layer": 3} if guide else {})
        scored = ("--input", text, "--score", text.with_suffix(".de"), "--format", "pharaoh-pieces")
        found = run_here("nmt-generate", "--checkpoint", checkpoint, *scored).stdout.decode().splitlines()
        both = [(set(a.split()), set(b.split())) for a, b in zip(found, given.read_text().splitlines(), strict=True)]
        agreement.append(sum(len(a & b) for a, b in both) / sum(len(b) for _, b in both))
    assert agreement[0] < 0.7
    assert agreement[1] > 0.85


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    train: Train, datasets: dict[str, Path], tmp_path: Path
) -> None:
    write_reversed(tmp_path / "train.align", datasets["separate"].parent / "train.en")
    guided = ("--guided-alignment", tmp_path / "train.align", "--dropout", 0.3)
    for name, stops in (("whole", [6]), ("parts", [3, 6])):
        for stop in stops:
            train(tmp_path / name, *guided, "--max-updates", stop, dataset=datasets["separate"])
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert all(np.array_equal(tensor, parts[name]) for name, tensor in whole.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: ["0-0 1", *lines[1:]], ["train.align, line 1: not an alignment in Pharaoh format"]),
        (lambda lines: [*lines[:4], "0-0 99-0"], ["line 5: aligns piece 99 of the source", "</s>"]),
        (lambda lines: [lines[0], "0-12345678901"], ["line 2: not an alignment"]),
        (lambda lines: [lines[0], "0-50"], ["line 2: aligns piece 50 of the target"]),
        (lambda lines: lines[:-1], ["has 239 lines", "has 240"]),
        (lambda lines: [*lines, ""], ["has 241 lines", "has 240"]),
    ],
)
def test_a_file_that_does_not_fit_the_text_is_refused(
    change: Any, words: list[str], train: Train, datasets: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "train.align"
    write_reversed(path, datasets["separate"].parent / "train.en")
    lines = path.read_text().splitlines()
    changed = change(lines)
    is_short = len(changed) < 10
    path.write_text("\n".join([*changed, *(lines[len(changed) :] if is_short else [])]) + "\n")
    options = ("--guided-alignment", path, "--max-updates", 1)
    refused(train(tmp_path / "run", *options, dataset=datasets["separate"], code=2), *words)


@pytest.mark.parametrize("other", [("--packing", "on"), ("--augment", "default"), ("--arch", "gnmt")])
def test_options_that_cannot_be_guided_are_refused(other: tuple[str, str], run_here: Run, tmp_path: Path) -> None:
    refused(run_here("nmt-train", "data", *other, "--guided-alignment", "x"), "--guided-alignment supports only")

"""Beam search by nmtkit's Python API, of a model with random weights."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch

from gpu.lengths import AVERAGE, news_lengths
from gpu.measuring import Measurement, measure
from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding import engine
from nmtkit.decoding.config import SearchConfig, StreamConfig
from nmtkit.inference import torch_inference
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.torch_inference import FixedModel, TorchInference
from nmtkit.machine.precision import resolve_device, resolve_precision
from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary

SEED = 1


@dataclass(frozen=True)
class DecodingSetting:
    """What is translated, and how."""

    model: TransformerConfig
    vocabulary: int  # pieces, shared by both sides
    sentences: int
    length: int | None  # tokens of every output with EOS; None: of each output as of its source
    max_tokens: int  # padded source tokens of a batch
    beam: int
    repeats: int  # timed runs
    device: str
    precision: str
    fixed_shapes: bool = True  # the search of GPUs
    half_logits: bool = True  # the best candidates are chosen from logits in the model's precision
    two_stages: bool = True  # the best candidates are chosen in two stages


def make_sentences(setting: DecodingSetting) -> list[list[int]]:
    """Sentences of random pieces, without EOS, in random order."""
    random = np.random.default_rng(SEED)
    lengths = news_lengths(random, setting.sentences)
    return [random.integers(len(SPECIALS), setting.vocabulary, length).tolist() for length in lengths]


def make_checkpoint(setting: DecodingSetting) -> Checkpoint:
    """A checkpoint with random weights."""
    tokenizer = SpaceTokenizer(Vocabulary([*SPECIALS, *map(str, range(len(SPECIALS), setting.vocabulary))]))
    torch.manual_seed(SEED)
    model = make_model(setting.model, setting.vocabulary, setting.vocabulary)
    return Checkpoint(setting.model, as_arrays(collect_weights(model)), "en", "de", tokenizer, tokenizer)


def measure_decoding(setting: DecodingSetting) -> Measurement:
    """Output tokens a second of nmtkit, EOS counted."""
    device, sentences = resolve_device(setting.device), make_sentences(setting)
    few = sentences[: max(1, setting.max_tokens // AVERAGE)]  # a batch or two
    with _changed(setting):
        translate = _translator(setting)
        return measure(lambda: sum(map(len, translate(sentences))), lambda: translate(few), setting.repeats, device)


Translate = Callable[[list[list[int]]], list[tuple[str, ...]]]


def _translator(setting: DecodingSetting) -> Translate:
    """A function from the ids of sentences to the pieces of their translations, with EOS."""
    checkpoint, device = make_checkpoint(setting), resolve_device(setting.device)
    model = checkpoint.build_model().to(device, resolve_precision(setting.precision, device))
    translator = Translator(torch_backend(model), checkpoint.source, checkpoint.target)
    search = SearchConfig(beam=setting.beam, **_limits(setting.length))

    def translate(sentences: list[list[int]]) -> list[tuple[str, ...]]:
        batches, lines = StreamConfig(max_tokens=setting.max_tokens), list(map(translator.request, sentences))
        translations = translator.stream_chunks([lines], search, batches, warns_of_outputs=False)
        return [line.candidates[0].tokens for line in translations]

    return translate


@contextlib.contextmanager
def _changed(setting: DecodingSetting) -> Iterator[None]:
    """Disable the optimizations that the setting does not have."""
    with contextlib.ExitStack() as stack:
        if not setting.fixed_shapes:
            stack.enter_context(mock.patch.object(engine, "can_be_fixed", return_value=False))
        if not setting.half_logits:
            stack.enter_context(mock.patch.object(TorchInference, "best_step", FixedModel.best_step))
        if not setting.two_stages:
            stack.enter_context(mock.patch.object(torch_inference, "_SMALL", sys.maxsize))
        yield


def _limits(length: int | None) -> dict[str, Any]:
    if length is None:
        return {"max_len_a": 1.0, "max_len_b": 0}
    return {"max_len_a": 0.0, "max_len_b": length - 1, "min_len": length - 1}

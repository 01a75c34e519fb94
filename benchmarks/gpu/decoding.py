"""Beam search by nmtkit's Python API, of a model with random weights."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch

from gpu.lengths import AVERAGE, news_lengths
from gpu.measuring import Measurement, measure
from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, collect_weights
from nmtkit.decoding import engine
from nmtkit.decoding.config import SearchConfig, StreamConfig
from nmtkit.inference import top_k
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.protocol import InferenceModel
from nmtkit.inference.torch_inference import TorchInference
from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.model.precision import resolve_device, resolve_precision
from nmtkit.tokenizer import SpaceTokenizer
from nmtkit.vocab import SPECIALS, Vocabulary

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
    return Checkpoint(setting.model, collect_weights(model), "en", "de", tokenizer, tokenizer)


def measure_decoding(setting: DecodingSetting) -> Measurement:
    """Output tokens a second of nmtkit, EOS counted."""
    device = resolve_device(setting.device)
    checkpoint, sentences = make_checkpoint(setting), make_sentences(setting)
    model = checkpoint.build_model().to(device, resolve_precision(setting.precision, device))
    translator = Translator(torch_backend(model), checkpoint.source, checkpoint.target)
    search = SearchConfig(beam=setting.beam, **_limits(setting.length))
    batches = StreamConfig(max_tokens=setting.max_tokens, buffer=len(sentences))

    def translate(some: list[list[int]]) -> int:
        return sum(len(line.candidates[0].tokens) for line in translator.stream_encoded(some, search, batches))

    few = sentences[: max(1, setting.max_tokens // AVERAGE)]  # a batch or two
    with _changed(setting):
        return measure(lambda: translate(sentences), lambda: translate(few), setting.repeats, device)


@contextlib.contextmanager
def _changed(setting: DecodingSetting) -> Iterator[None]:
    """Disable the optimizations that the setting does not have."""
    with contextlib.ExitStack() as stack:
        if not setting.fixed_shapes:
            stack.enter_context(mock.patch.object(engine, "serves", return_value=False))
        if not setting.half_logits:
            stack.enter_context(mock.patch.object(TorchInference, "best_step", InferenceModel.best_step))
        if not setting.two_stages:
            stack.enter_context(mock.patch.object(top_k, "_SMALL", sys.maxsize))
        yield


def _limits(length: int | None) -> dict[str, Any]:
    if length is None:
        return {"max_len_a": 1.0, "max_len_b": 0}
    return {"max_len_a": 0.0, "max_len_b": length - 1, "min_len": length - 1}

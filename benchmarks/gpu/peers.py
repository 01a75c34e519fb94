"""CTranslate2 with models of the same sizes, on the same sentences."""

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from gpu.decoding import DecodingSetting, make_checkpoint, make_sentences
from gpu.measuring import Measurement, measure
from nmtkit.conversion.ctranslate2 import to_ctranslate2

_CTRANSLATE2_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def measure_ctranslate2(setting: DecodingSetting) -> Measurement:
    """Output tokens a second of CTranslate2 with nmtkit's weights; all outputs have the setting's length."""
    ctranslate2: Any = import_module("ctranslate2")
    checkpoint = make_checkpoint(setting)
    sentences = [checkpoint.source.vocab.to_pieces(ids) for ids in make_sentences(setting)]
    with tempfile.TemporaryDirectory() as folder:
        to_ctranslate2(checkpoint, Path(folder) / "model")
        engine = ctranslate2.Translator(
            str(Path(folder) / "model"), device=setting.device, compute_type=_CTRANSLATE2_TYPES[setting.precision]
        )
    translate = _ctranslate2_search(engine, setting)
    few = sentences[: max(1, len(sentences) // 10)]
    device = torch.device(setting.device)
    return measure(lambda: translate(sentences), lambda: translate(few), setting.repeats, device)


def _ctranslate2_search(engine: Any, setting: DecodingSetting) -> Callable[[list[list[str]]], int]:
    options = {
        "beam_size": setting.beam,
        "length_penalty": 0.6,
        "max_decoding_length": setting.length,
        "min_decoding_length": setting.length,
        "max_batch_size": setting.max_tokens,
        "batch_type": "tokens",
    }

    def translate(sentences: list[list[str]]) -> int:
        return sum(len(result.hypotheses[0]) for result in engine.translate_batch(sentences, **options))

    return translate

"""Other toolkits with models of the same sizes, on the same sentences: Hugging Face's Marian, and CTranslate2."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gpu.decoding import DecodingSetting, make_checkpoint, make_sentences
from gpu.measuring import Measurement, measure
from gpu.training import (
    LEARNING_RATE,
    PROFILED,
    SEED,
    SMOOTHING,
    TrainingSetting,
    Update,
    make_updates,
    with_utilization,
)
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.data.batch import Batch
from nmtkit.data.padding import pad
from nmtkit.decoding.batched_search import batches_by_tokens
from nmtkit.machine.precision import autocast, resolve_device, resolve_precision
from nmtkit.model.config import TransformerConfig
from nmtkit.text.vocabulary import BOS, EOS, PAD

_IGNORED = -100  # label of padding
_LONGEST = 512  # positions of a Marian model
_CTRANSLATE2_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def measure_marian_training(setting: TrainingSetting) -> Measurement:
    """Target tokens a second and utilization of Marian's training, with padding and fused Adam."""
    device = resolve_device(setting.device)
    precision = resolve_precision(setting.precision, device)
    updates = make_updates(replace(setting, packing=False))
    model = _marian(setting.model, setting.vocabulary).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def run(some: list[Update]) -> int:
        for update in some:
            optimizer.zero_grad()
            for _, batch in update.share:
                assert isinstance(batch, Batch)
                with autocast(device, precision):
                    loss = _marian_loss(model, batch.to(device))
                (loss / update.tokens).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return sum(update.tokens for update in some)

    measurement = measure(lambda: run(updates), lambda: run(updates[:PROFILED]), setting.repeats, device)
    return with_utilization(measurement, updates, device, setting.precision)


def _marian(config: TransformerConfig, vocabulary: int) -> Any:
    """A `MarianMTModel` with random weights, of the sizes of `config`."""
    transformers: Any = import_module("transformers")
    each = {"ffn_dim": config.d_ff, "attention_heads": config.heads}
    torch.manual_seed(SEED)
    model = transformers.MarianMTModel(
        transformers.MarianConfig(
            **{f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in each.items()},
            vocab_size=vocabulary,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            activation_function=config.activation,
            scale_embedding=True,
            max_position_embeddings=_LONGEST,
            pad_token_id=PAD,
            eos_token_id=EOS,
            forced_eos_token_id=None,
            decoder_start_token_id=BOS,
        )
    )
    return model


def _marian_loss(model: Any, batch: Batch) -> Tensor:
    """The label-smoothed loss, summed over target tokens."""
    labels = batch.tgt_out.masked_fill(batch.tgt_out == PAD, _IGNORED)
    mask = (batch.src != PAD).long()
    logits = model(batch.src, attention_mask=mask, decoder_input_ids=batch.tgt_in, use_cache=False).logits
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=_IGNORED, label_smoothing=SMOOTHING, reduction="sum"
    )


def measure_marian_decoding(setting: DecodingSetting) -> Measurement:
    """Output tokens a second of Marian's `generate`; all outputs have the setting's length."""
    device = resolve_device(setting.device)
    model = _marian(setting.model, setting.vocabulary).to(device, resolve_precision(setting.precision, device)).eval()
    options = {"num_beams": setting.beam, "max_new_tokens": setting.length, "min_new_tokens": setting.length}

    @torch.inference_mode()
    def translate(batches: list[Tensor]) -> int:
        tokens = 0
        for batch in batches:
            src = batch.to(device)
            tokens += model.generate(src, attention_mask=(src != PAD).long(), **options)[:, 1:].numel()
        return tokens

    batches = list(_batches(setting))
    return measure(lambda: translate(batches), lambda: translate(batches[-1:]), setting.repeats, device)


def _batches(setting: DecodingSetting) -> Iterator[Tensor]:
    """The batches of nmtkit, (B, S) with EOS and padding."""
    sentences = make_sentences(setting)
    for numbers in batches_by_tokens([len(ids) for ids in sentences], setting.max_tokens):
        yield torch.from_numpy(pad([[*sentences[number], EOS] for number in numbers])[0])


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

"""The cases of each part of the report, and their sizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpu.decoding import DecodingSetting, measure_decoding
from gpu.measuring import Measurement
from gpu.peers import measure_ctranslate2, measure_marian_decoding, measure_marian_training
from gpu.training import TrainingSetting, measure_training
from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS


@dataclass(frozen=True)
class Case:
    """A measurement. Its rate is compared with that of the case `baseline` of the same part, if it has one."""

    name: str
    measure: Callable[[], Measurement]
    baseline: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment


@dataclass(frozen=True)
class Sizes:
    """The sizes of a report."""

    models: Mapping[str, TransformerConfig]
    vocabulary: int
    padded_vocabulary: int  # the next multiple of 64
    small_update: int  # target tokens
    large_update: int
    updates: int  # of a timed run
    repeats: int
    product: int  # width of the matrices of the environment's product
    sentences: int
    search_batches: tuple[int, ...]  # source tokens
    output: int  # tokens of each output beside peers
    beam: int
    seconds: float  # limit of a case
    compiler: str  # torch's backend


def _preset(name: str) -> TransformerConfig:
    config = PRESETS[name].model_config()
    assert isinstance(config, TransformerConfig)
    return config


FULL = Sizes(
    models={"base": _preset("transformer_base"), "big": _preset("transformer_big")},
    vocabulary=37_000,
    padded_vocabulary=37_056,
    small_update=4096,
    large_update=25_000,
    updates=20,
    repeats=3,
    product=8192,
    sentences=2400,
    search_batches=(4096, 8192, 16_384, 32_768),
    output=27,
    beam=4,
    seconds=150,
    compiler="inductor",
)
QUICK = Sizes(
    models={"base": TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, heads=2)},
    vocabulary=100,
    padded_vocabulary=128,
    small_update=200,
    large_update=400,
    updates=2,
    repeats=3,
    product=64,
    sentences=12,
    search_batches=(64, 256),
    output=6,
    beam=2,
    seconds=60,
    compiler="eager",
)


def training_cases(sizes: Sizes, device: str) -> list[Case]:
    """Each model with small and large updates of one micro-batch, and with --compile."""
    cases = []
    for model in sizes.models:
        small, large = (_training(sizes, device, model, size) for size in (sizes.small_update, sizes.large_update))
        settings = {
            f"{small.batch_tokens:,} tokens an update": small,
            f"{large.batch_tokens:,} tokens an update": large,
            f"{large.batch_tokens:,} tokens an update, --compile": replace(large, compiled="whole"),
        }
        names = [f"{model}, {name}" for name in settings]
        for name, setting in zip(names, settings.values(), strict=True):
            cases.append(Case(name, partial(measure_training, setting), names[1] if setting.compiled else ""))
    return cases


def technique_cases(sizes: Sizes, device: str) -> list[Case]:
    """One technique changed at a time: the base model with large updates."""
    setting = _training(sizes, device, "base", sizes.large_update)
    changes: dict[str, dict[str, Any]] = {
        "padding instead of packing": {"packing": False},
        "packed attention by varlen_attn": {"small_tiles": False},
        "loss without the fused kernel": {"fused_loss": False},
        "cuDNN attention allowed, padding": {"cudnn_attention": True, "packing": False},
        "attention of separate operators, padding": {"fused_attention": False, "packing": False},
        "activations in fp32": {"half_activations": False},
        "Adam of separate operators": {"fused_adam": False},
        "the host waits for each update": {"runs_ahead": False},
        f"micro-batches of {sizes.small_update:,} tokens": {"max_tokens": sizes.small_update},
        f"vocabulary of {sizes.padded_vocabulary:,}, a multiple of 64": {"vocabulary": sizes.padded_vocabulary},
        "activation checkpointing": {"checkpointing": True},
        "fp16 with loss scaling": {"precision": "fp16"},
        "fp32, padding": {"precision": "fp32", "packing": False},
        "each layer compiled separately": {"compiled": "layers"},
        "encoder and decoder compiled as a whole": {"compiled": "whole"},
    }
    cases = [Case(DEFAULT, partial(measure_training, setting))]
    for name, change in changes.items():
        cases.append(Case(name, partial(measure_training, replace(setting, **change)), DEFAULT))
    fixed_segments = {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}
    cases.append(Case("memory segments of fixed size", partial(measure_training, setting), DEFAULT, fixed_segments))
    return cases


DEFAULT = "defaults"


def decoding_cases(sizes: Sizes, device: str) -> list[Case]:
    """Each model with batches of several sizes, and the largest in fp16."""
    cases = []
    for model in sizes.models:
        smallest, largest = f"{model}, {sizes.search_batches[0]:,} tokens a batch", sizes.search_batches[-1]
        for tokens in sizes.search_batches:
            name = f"{model}, {tokens:,} tokens a batch"
            setting = _decoding(sizes, device, model, tokens)
            cases.append(Case(name, partial(measure_decoding, setting), "" if name == smallest else smallest))
        half = replace(_decoding(sizes, device, model, largest), precision="fp16")
        cases.append(Case(f"{model}, {largest:,} tokens a batch, fp16", partial(measure_decoding, half), smallest))
    return cases


def search_technique_cases(sizes: Sizes, device: str) -> list[Case]:
    """One technique changed at a time: the base model with the largest batches, or with the smallest."""
    smallest, *_, largest = sizes.search_batches
    few, many = (_decoding(sizes, device, "base", tokens) for tokens in (smallest, largest))
    small = f"batches of {smallest:,} tokens"
    cases = [Case(DEFAULT, partial(measure_decoding, many)), Case(small, partial(measure_decoding, few), DEFAULT)]
    changes: dict[str, tuple[DecodingSetting, str]] = {
        "search with shapes that depend on the hypotheses": (replace(many, fixed_shapes=False), DEFAULT),
        "candidates chosen from log-probabilities in fp32": (replace(many, half_logits=False), DEFAULT),
        "candidates chosen in one stage": (replace(many, two_stages=False), DEFAULT),
    }
    return cases + [
        Case(name, partial(measure_decoding, setting), baseline) for name, (setting, baseline) in changes.items()
    ]


def peer_cases(sizes: Sizes, device: str) -> list[Case]:
    """nmtkit, Marian and CTranslate2 in turn, for each model."""
    cases = []
    for model in sizes.models:
        training = _training(sizes, device, model, sizes.large_update)
        ours = f"{model}, training: nmtkit"
        cases += [
            Case(ours, partial(measure_training, training)),
            Case(f"{model}, training: Marian in transformers", partial(measure_marian_training, training), ours),
        ]
        decoding = replace(_decoding(sizes, device, model, sizes.search_batches[-2]), length=sizes.output)
        half = replace(decoding, precision="fp16" if device != "cpu" else "fp32")
        ours = f"{model}, decoding: nmtkit"
        cases += [
            Case(ours, partial(measure_decoding, decoding)),
            Case(f"{model}, decoding: Marian in transformers", partial(measure_marian_decoding, decoding), ours),
            Case(f"{model}, decoding: CTranslate2", partial(measure_ctranslate2, decoding), ours),
            Case(f"{model}, decoding: CTranslate2, fp16", partial(measure_ctranslate2, half), ours),
        ]
    return cases


PARTS: dict[str, Callable[[Sizes, str], list[Case]]] = {
    "training": training_cases,
    "techniques": technique_cases,
    "decoding": decoding_cases,
    "search techniques": search_technique_cases,
    "peers": peer_cases,
}


def _training(sizes: Sizes, device: str, model: str, batch_tokens: int) -> TrainingSetting:
    return TrainingSetting(
        model=sizes.models[model],
        vocabulary=sizes.vocabulary,
        batch_tokens=batch_tokens,
        max_tokens=None,
        updates=sizes.updates,
        repeats=sizes.repeats,
        device=device,
        precision=_precision(device),
        compiler=sizes.compiler,
    )


def _decoding(sizes: Sizes, device: str, model: str, max_tokens: int) -> DecodingSetting:
    return DecodingSetting(
        model=sizes.models[model],
        vocabulary=sizes.vocabulary,
        sentences=sizes.sentences,
        length=None,
        max_tokens=max_tokens,
        beam=sizes.beam,
        repeats=sizes.repeats,
        device=device,
        precision=_precision(device),
    )


def _precision(device: str) -> str:
    return "fp32" if device == "cpu" else "bf16"

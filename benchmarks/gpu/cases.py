"""The parts of the benchmark, their cases and their sizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from gpu import environment
from gpu.decoding import DecodingSetting, measure_decoding
from gpu.measuring import KernelSetting, Measurement
from gpu.peers import measure_ctranslate2
from gpu.training import TrainingSetting, measure_training
from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS


@dataclass(frozen=True)
class Case:
    """A measurement, compared with that of the case `baseline` of the same part if it has one.

    Without a measurement, it has printed its times and decisions.
    """

    name: str
    measure: Callable[[], Measurement | None]
    baseline: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment
    goal: float = 0.0  # tokens a second


@dataclass(frozen=True)
class Sizes:
    """The sizes of the benchmark."""

    models: Mapping[str, TransformerConfig]
    vocabulary: int
    padded_vocabulary: int  # the next multiple of 64
    update: int  # target tokens
    updates: int  # of a timed run
    repeats: int
    product: int  # width of the matrices of the environment's product
    rows: int  # tokens of an update, for single kernels
    heads: tuple[int, ...]  # of each model, for single kernels
    decoded: tuple[int, ...]  # sentences of a decoding step, for single kernels
    sentences: int
    search_batches: tuple[int, int]  # source tokens
    output: int  # tokens of each output compared with CTranslate2
    beam: int
    compiler: str  # torch's backend
    patience: float = 1.0  # factor of the seconds of a part


def _preset(name: str) -> TransformerConfig:
    config = PRESETS[name].model_config()
    assert isinstance(config, TransformerConfig)
    return config


FULL = Sizes(
    models={"base": _preset("transformer_base"), "big": _preset("transformer_big")},
    vocabulary=37_000,
    padded_vocabulary=37_056,
    update=25_000,
    updates=20,
    repeats=3,
    product=8192,
    rows=25_088,
    heads=(8, 16),
    decoded=(256, 512, 1024),
    sentences=2400,
    search_batches=(4096, 32_768),
    output=27,
    beam=4,
    compiler="inductor",
)
QUICK = Sizes(
    models={"base": TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, heads=2)},
    vocabulary=100,
    padded_vocabulary=128,
    update=400,
    updates=2,
    repeats=3,
    product=64,
    rows=12,
    heads=(1,),
    decoded=(2,),
    sentences=12,
    search_batches=(64, 256),
    output=6,
    beam=2,
    compiler="eager",
    patience=100.0,
)
_TRAINING_GOALS = {"base": 850e3, "big": 325e3}  # tokens a second on an H100
_DECODING_GOALS = {"base": 150e3, "big": 80e3}


def kernel_cases(name: str, sizes: Sizes, device: str) -> list[Case]:
    """One case: the function of `gpu.timings` with this name."""
    return [Case("kernels", partial(_time, name, _kernels(sizes, device)))]


def _time(name: str, *settings: object) -> None:
    getattr(import_module("gpu.timings"), name)(*settings)  # imported here, because it needs Triton


def check_cases(sizes: Sizes, device: str) -> list[Case]:
    """The environment, and the errors of the kernels."""
    facts = partial(environment.show, device, sizes.product)
    return [Case("environment", facts), *kernel_cases("check", sizes, device)]


def update_cases(sizes: Sizes, device: str) -> list[Case]:
    """An update of each model, launched by the host and as a graph."""
    settings = {model: replace(_training(sizes, device, model), updates=8) for model in sizes.models}
    return [
        Case(model, partial(_time, "update", _kernels(sizes, device), setting)) for model, setting in settings.items()
    ]


def training_cases(sizes: Sizes, device: str) -> list[Case]:
    """Each model without and with --compile."""
    cases = []
    for model in sizes.models:
        setting = _training(sizes, device, model)
        cases += [
            Case(model, partial(measure_training, setting), goal=_TRAINING_GOALS[model]),
            Case(f"{model}, --compile", partial(measure_training, replace(setting, compiled=True)), model),
        ]
    return cases


def technique_cases(sizes: Sizes, device: str) -> list[Case]:
    """The base model with one technique changed at a time, and the default."""
    setting = _training(sizes, device, "base")
    changes: dict[str, dict[str, Any]] = {
        "vocabulary of a multiple of 64": {"vocabulary": sizes.padded_vocabulary},
        "sums of split products in bf16": {"exact_sums": False},
        "padding instead of packing": {"packing": False},
        "the host waits for each update": {"runs_ahead": False},
        "activations in fp32": {"half_activations": False},
        "Adam of separate operators": {"fused_adam": False},
        "packed attention by varlen_attn": {"small_tiles": False},
        "cuDNN attention allowed, padding": {"cudnn_attention": True, "packing": False},
        "loss without the fused kernel": {"fused_loss": False},
    }
    cases = [Case(DEFAULT, partial(measure_training, setting))]
    for name, change in changes.items():
        cases.append(Case(name, partial(measure_training, replace(setting, **change)), DEFAULT))
    fixed_segments = {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}
    cases.append(Case("memory segments of fixed size", partial(measure_training, setting), DEFAULT, fixed_segments))
    return cases


DEFAULT = "default"


def decoding_cases(sizes: Sizes, device: str) -> list[Case]:
    """Each model with large batches; the base model with small ones and with one technique changed at a time."""
    few, many = (_decoding(sizes, device, "base", tokens) for tokens in sizes.search_batches)
    changes: dict[str, DecodingSetting] = {
        "small batches": few,
        "search with shapes that depend on the hypotheses": replace(many, fixed_shapes=False),
        "candidates chosen from log-probabilities in fp32": replace(many, half_logits=False),
        "candidates chosen in one stage": replace(many, two_stages=False),
    }
    models = {model: _decoding(sizes, device, model, sizes.search_batches[1]) for model in sizes.models}
    return [
        *(
            Case(model, partial(measure_decoding, setting), goal=_DECODING_GOALS[model])
            for model, setting in models.items()
        ),
        *(Case(name, partial(measure_decoding, setting), "base") for name, setting in changes.items()),
    ]


def peer_cases(sizes: Sizes, device: str) -> list[Case]:
    """nmtkit and CTranslate2 in turn, for each model; all outputs have the same length."""
    cases = []
    for model in sizes.models:
        setting = replace(_decoding(sizes, device, model, sizes.search_batches[1] // 2), length=sizes.output)
        half = replace(setting, precision="fp16" if device != "cpu" else "fp32")
        cases += [
            Case(f"{model}, nmtkit", partial(measure_decoding, setting)),
            Case(f"{model}, CTranslate2", partial(measure_ctranslate2, setting), f"{model}, nmtkit"),
            Case(f"{model}, CTranslate2, fp16", partial(measure_ctranslate2, half), f"{model}, nmtkit"),
        ]
    return cases


class Part(NamedTuple):
    """Cases, and the seconds within which they are measured."""

    seconds: float
    cases: Callable[[Sizes, str], list[Case]]


PARTS = {
    "check": Part(60, check_cases),
    "update": Part(40, update_cases),
    "attention": Part(45, partial(kernel_cases, "attention")),
    "norm": Part(25, partial(kernel_cases, "norm")),
    "loss": Part(25, partial(kernel_cases, "loss")),
    "decode": Part(45, partial(kernel_cases, "decode")),
    "gemm": Part(25, partial(kernel_cases, "gemm")),
    "training": Part(100, training_cases),
    "techniques": Part(95, technique_cases),
    "decoding": Part(80, decoding_cases),
    "peers": Part(60, peer_cases),
}


def _kernels(sizes: Sizes, device: str) -> KernelSetting:
    return KernelSetting(device, _precision(device), sizes.rows, sizes.vocabulary, sizes.heads, sizes.decoded)


def _training(sizes: Sizes, device: str, model: str) -> TrainingSetting:
    return TrainingSetting(
        model=sizes.models[model],
        vocabulary=sizes.vocabulary,
        batch_tokens=sizes.update,
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

"""Measures the inputs of matrix products on a text, for programs that quantize these inputs with fixed scales.

Letters: T positions, D width of an input.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import EngineConfig
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.text.vocabulary import BOS, EOS

_OUTPUT = "output"
_ONCE = ("encoder.", ".kv")  # products of all positions of a source at once


@torch.inference_mode()
def with_input_scales(checkpoint: Checkpoint, lines: Sequence[str]) -> Checkpoint:
    """Return a checkpoint in which each weight is filled with the scale of its product's input.

    The scale is 127 / (mean + 1.1 · standard deviation) of the largest absolute input of each product in greedy
    translations of `lines`, as in the students of Bergamot. Embeddings have the scale of the output's product. Raises
    UserError without a line to translate.
    """
    model: Any = checkpoint.build_model()
    largest: dict[str, list[Tensor]] = defaultdict(list)

    def record(name: str, x: Tensor) -> None:
        of_positions = x.abs().amax(-1).flatten()  # (T,), from x (1, T, D)
        at_once = name.startswith(_ONCE[0]) or name.endswith(_ONCE[1])
        largest[name].append(of_positions.amax(0, keepdim=True) if at_once else of_positions)

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs, name=name: record(name, inputs[0]))
    translator = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    config = replace(translator.search, beam=1)
    for translation in translator.stream(lines, config):
        if tokens := translation.candidates[0].tokens[:-1]:
            source = torch.tensor([[*translation.source_ids, EOS]])
            target = torch.tensor([[BOS, *checkpoint.target.vocab.to_ids(tokens)]])
            record(_OUTPUT, model.decode(target, model.encode(source, torch.tensor([source.size(1)]))))
    if not largest:
        raise UserError("no lines to translate")
    scales = {}
    for name, found in largest.items():
        deviation, mean = torch.std_mean(torch.cat(found), correction=0)
        scales[name] = float(127 / (mean + 1.1 * deviation))

    def filled(name: str, weight: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.full_like(weight, scales.get(name.rpartition(".")[0], scales[_OUTPUT]))

    return replace(checkpoint, weights={name: filled(name, weight) for name, weight in checkpoint.weights.items()})

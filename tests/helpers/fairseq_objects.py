"""Objects that fairseq's trainers store in checkpoints, pickled as it pickles them, without fairseq and omegaconf."""

import argparse
import sys
from collections import defaultdict
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

_CLASSES = {
    "fairseq.meters": ("AverageMeter", "TimeMeter", "StopwatchMeter"),
    "omegaconf.base": ("ContainerMetadata", "Metadata"),
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.nodes": ("AnyNode",),
}


class FairseqObjects:
    """Makes the objects while a test runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._classes: dict[str, type] = {}
        for module, names in _CLASSES.items():
            for package in (module.partition(".")[0], module):
                monkeypatch.setitem(sys.modules, package, ModuleType(package))
            for name in names:
                self._classes[name] = type(name, (), {"__module__": module})
                setattr(sys.modules[module], name, self._classes[name])

    def make(self, name: str, **attributes: object) -> Any:
        """An object of one of the classes."""
        made = self._classes[name]()
        vars(made).update(attributes)
        return made

    def meters(self) -> dict[str, Any]:
        """The `extra_state` of release 0.9."""
        meters = {name: self.make(name, sum=2.5, count=3) for name in _CLASSES["fairseq.meters"]}
        return {"train_meters": meters, "val_loss": 3.5}

    def config(self, value: object, parent: object = None) -> Any:
        """Options as omegaconf 2.0 stores them: each node also refers to its parent."""
        if isinstance(value, argparse.Namespace):
            return value
        metadata = {"ref_type": Any, "optional": True, "key": None}
        if not isinstance(value, dict | list):
            leaf = self.make("Metadata", **metadata, object_type=None)
            return self.make("AnyNode", _metadata=leaf, _parent=parent, _val=value)
        types = {"object_type": type(value), "element_type": int}
        cache = defaultdict(dict, {"env": {}})  # type: ignore[var-annotated]
        container = self.make("ContainerMetadata", **metadata, **types, resolver_cache=cache)
        node = self.make("DictConfig" if isinstance(value, dict) else "ListConfig", _metadata=container, _parent=parent)
        if isinstance(value, dict):
            node._content = {name: self.config(each, node) for name, each in value.items()}
        else:
            node._content = [self.config(each, node) for each in value]
        return node


def bleu_state() -> dict[str, Any]:
    """The `extra_state` of a release since 0.10 with --eval-bleu."""
    counts = {"val": np.array([1, 2, 3, 4]), "sum": np.array([5, 6, 7, 8]), "count": 2, "round": None}
    return {"metrics": {"valid": [(10, "_bleu_counts", "AverageMeter", counts)]}, "best": np.float64(0.5)}


def unused_weights(model: dict[str, Tensor]) -> dict[str, Tensor]:
    """The copies for a fused kernel that release 0.12.2 stores of each encoder layer, without training them."""
    shapes: dict[str, list[int]] = {}
    for name, weight in model.items():
        layer, _, part = name.rpartition("self_attn.")
        module, _, kind = part.partition(".")
        if not layer.startswith("encoder."):
            layer, _, part = name.rpartition("fc")
            module, _, kind = f"fc{part}".partition(".")
        if layer.startswith("encoder.layers.") and module in ("out_proj", "fc1", "fc2"):
            shapes[f"{layer}{module}_{kind}"] = [*weight.shape]
        elif layer.startswith("encoder.layers.") and module == "q_proj":
            shapes[f"{layer}in_proj_{kind}"] = [3 * len(weight), *weight.shape[1:]]
    return {name: torch.zeros(shape) for name, shape in shapes.items()}

"""The checkpoint file: all that inference or a resumed training needs, safe to load, with a checksum.

`nmtkit.storage.archive` reads and writes the file; this module defines the names and the meaning of its parts, which
docs/reference/checkpoint.md describes.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nmtkit.errors import RunError, UserError
from nmtkit.machine.memory import is_out_of_memory
from nmtkit.model.architectures import config_from_dict, make_model
from nmtkit.model.config import ModelConfig
from nmtkit.model.lora import add_low_rank, merge
from nmtkit.model.lora_config import LoraConfig
from nmtkit.model.translation_model import TranslationModel
from nmtkit.storage.archive import (
    FORMAT,
    IMPORT,
    LORA_VERSION,
    VERSION,
    as_user_errors,
    read_archive,
    read_archive_header,
)
from nmtkit.storage.archive_writer import bytes_to_tensor, write_archive
from nmtkit.storage.atomic import staged_file
from nmtkit.storage.run_files import BEST, LAST, list_checkpoints
from nmtkit.text.languages import is_direction
from nmtkit.text.tokenizer import StoredParts, Tokenizer, restore_tokenizers, shares_model, shares_vocabulary
from nmtkit.wording import quoted

SAFETENSORS_FILE, SAFETENSORS_HEADER = "model.safetensors", "config.json"  # written by nmt-export, not a checkpoint
#: The option, with its group, that each validation metric depends on; see `metric_setting`.
METRIC_OPTIONS = {"valid_loss": ("optimizer", "label_smoothing"), "valid_bleu": ("validation", "valid_beam")}
HIGHEST_IS_BEST = frozenset({"valid_bleu"})  #: of these metrics; the lowest of the others

_BEGINNING = 100  # bytes: the format is the first entry of the header
_WEIGHTS, _EMA, _OPTIMIZER = "weights.", "ema.", "optimizer."

NameParts = Callable[[tuple[str, str], bool, tuple[str, str]], tuple[StoredParts, StoredParts]]


@dataclass
class Checkpoint:
    """A model with its vocabularies and, during training, the state of the run.

    `weights` have the names of the bare module and are float32 on the CPU; a tied matrix appears once. `ema` are their
    moving averages by the same names, if the run kept any. `progress` holds plain JSON values: the update, the epoch,
    validation results, the options of the run. `optimizer` is None in a checkpoint for inference only.

    `checksum` is that of the file it was read from, as `nmtkit.storage.archive` computes it.

    With `lora`, `weights` and `ema` also have the low-rank additions of a run, which `merged` adds to the matrices.
    """

    model_config: ModelConfig
    weights: dict[str, Tensor]
    source_language: str
    target_language: str
    source: Tokenizer
    target: Tokenizer
    progress: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Tensor] | None = None
    ema: dict[str, Tensor] | None = None
    lora: LoraConfig | None = None
    checksum: str | None = None
    check_unchanged: Callable[[], None] | None = None  #: of the file it was read from, see `Archive`

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.source_language, self.target_language

    @property
    def joined(self) -> bool:
        """Whether source and target share one vocabulary."""
        return shares_vocabulary(self.source, self.target)

    def chosen(self, which: str = "auto") -> dict[str, Tensor]:
        """The weights that an option of `WeightsConfig` selects; UserError for missing averages."""
        if which == "ema" and self.ema is None:
            raise UserError("--weights ema: the checkpoint has no moving average, it was trained without --ema")
        return self.weights if which == "trained" or self.ema is None else self.ema

    def without_training(self, which: str = "auto") -> "Checkpoint":
        """The checkpoint with only the `chosen` weights, and without the state of training."""
        return replace(self, weights=self.chosen(which), optimizer=None, ema=None)

    def merged(self) -> "Checkpoint":
        """The checkpoint of the same model without low-rank additions, and so without their optimizer state."""
        if self.lora is None:
            return self
        scale = self.lora.scale
        ema = None if self.ema is None else merge(self.ema, scale)
        return replace(self, weights=merge(self.weights, scale), ema=ema, optimizer=None, lora=None)

    def build_model(self, which: str = "auto") -> TranslationModel:
        """The model with the `chosen` weights, in evaluation mode; UserError where they do not fit."""
        weights = self.chosen(which)
        check_weights(weights, self.parameter_shapes())  # before memory is allocated
        with memory_for_weights("the model", 4 * sum(map(Tensor.numel, weights.values()))):
            with _NoRandomInit():
                model = make_model(self.model_config, len(self.source.vocab), len(self.target.vocab))
            load_weights(model, weights)
        return model.eval()

    def parameter_shapes(self) -> dict[str, torch.Size]:
        """The shape of each parameter of the model that the options describe, in the model's order."""
        with torch.device("meta"), _NoRandomInit():
            model = make_model(self.model_config, len(self.source.vocab), len(self.target.vocab))
            if self.lora is not None:
                add_low_rank(model, self.lora)
        return {name: parameter.shape for name, parameter in model.named_parameters()}


_RANDOM_INIT = (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_)


class _NoRandomInit(TorchFunctionMode):
    """Skips random initialization, the slowest part of making a model whose weights are overwritten anyway."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _RANDOM_INIT:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def collect_weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name; a shared matrix appears once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model; UserError as of `check_weights`."""
    parameters = dict(model.named_parameters())
    check_weights(weights, {name: parameter.shape for name, parameter in parameters.items()})
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])


def check_weights(weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Raise UserError, naming the first mismatch, unless `weights` are dense float32 of these names and shapes."""
    check_names(weights, shapes)
    for name, shape in shapes.items():
        if difference := _unlike(weights[name], shape):
            raise UserError(f"the weights do not fit the model: {name} {difference}")


def check_names(weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Raise UserError, naming the first, for a missing or an unknown parameter."""
    for name in sorted(shapes.keys() ^ weights.keys()):
        raise UserError(f"the weights do not fit the model: {name} is {'missing' if name in shapes else 'unknown'}")


def check_finite(weights: Mapping[str, Tensor]) -> None:
    """Raise UserError, naming it, for a parameter that holds NaN or infinity."""
    for name, weight in weights.items():
        if not all(math.isfinite(extreme) for extreme in torch.aminmax(weight)):
            raise UserError(f"{name} holds NaN or infinity: use another checkpoint")


@contextlib.contextmanager
def memory_for_weights(purpose: str, size: int) -> Iterator[None]:
    """Raise RunError if memory runs out within: it names the `purpose` and the least `size` in bytes."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(f"out of memory: {purpose} takes {size / 2**30:.2f} GiB for its weights alone") from error


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically: to a temporary file, fsync, rename. RunError on failure."""
    with staged_file(path) as file:
        write_archive(file, to_header(checkpoint), _to_tensors(checkpoint))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint whose weights fit its model, with low-rank additions merged into the weights.

    UserError if it is missing, damaged, cut short, of a newer version, or not one of nmtkit.
    """
    return load_training_checkpoint(path).merged()


def load_training_checkpoint(path: Path) -> Checkpoint:
    """As `load_checkpoint`, with low-rank additions still separate, as a run resumes with them."""
    _refuse_folder(path)
    with as_user_errors(path):
        archive = read_archive(path)
        checkpoint = from_header(archive.header, _tokenizer_tensors, lambda name: archive.tensors[name].tobytes())
        tensors = {name: torch.from_numpy(tensor) for name, tensor in archive.tensors.items()}
        weights, ema, optimizer = (_with_prefix(prefix, tensors) for prefix in (_WEIGHTS, _EMA, _OPTIMIZER))
        shapes = checkpoint.parameter_shapes()
        check_weights(weights, shapes)
        check_weights(ema or weights, shapes)
    return replace(
        checkpoint,
        weights=weights,
        ema=ema or None,
        optimizer=optimizer or None,
        checksum=archive.checksum,
        check_unchanged=archive.check_unchanged,
    )


def read_progress(path: Path) -> dict[str, Any]:
    """The `progress` of a checkpoint without reading its tensors: fast for a model of any size.

    UserError as of `load_checkpoint`, except for damage outside the header, which is not read.
    """
    _refuse_folder(path)
    with as_user_errors(path):
        return _progress(read_archive_header(path))


def metric_setting(metric: str, progress: Mapping[str, Any]) -> tuple[Any, Any]:
    """The setting of a metric in METRIC_OPTIONS: the value of its option, and the version of the loss.

    Values of the metric compare only under equal settings. An option that is not recorded is None. The version is 1 if
    it is not recorded, or if the metric does not depend on the loss.
    """
    group, name = METRIC_OPTIONS[metric]
    version = progress.get("loss_version", 1) if metric == "valid_loss" else 1
    return progress.get("options", {}).get(group, {}).get(name), version


def read_model_config(path: Path) -> ModelConfig:
    """The options of a checkpoint's model, read as `read_progress` reads. UserError also for an unknown option."""
    _refuse_folder(path)
    with as_user_errors(path):
        return config_from_dict(read_archive_header(path)["model"])


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder: {checkpoint_in(path)}")


def checkpoint_in(folder: Path) -> str:
    """Advice for a user who gave a folder where a checkpoint was expected."""
    if is_export(folder):
        return f"nmt-export {folder} --to checkpoint converts its safetensors to a checkpoint"
    newest_first = (path for _, path in reversed(list_checkpoints(folder)))
    found = next((path for path in (folder / BEST, folder / LAST, *newest_first) if path.is_file()), None)
    return f"use {found}" if found else f"name the file of a checkpoint; {IMPORT}"


def is_export(path: Path) -> bool:
    """Whether a path is a folder of safetensors that nmt-export wrote, by the beginning of its header."""
    with contextlib.suppress(OSError), (path / SAFETENSORS_HEADER).open("rb") as file:
        return FORMAT.encode() in file.read(_BEGINNING)
    return False


def check_replaceable(output: Path) -> None:
    """Raise UserError for an existing file to write a checkpoint to, unless it is a checkpoint or empty."""
    if not output.exists():
        return
    if not output.is_file():  # reading a pipe would wait for its writer
        raise UserError(f"{output} is not a regular file: use another --output")
    try:
        if output.stat().st_size > 0:
            read_progress(output)
    except UserError as error:
        raise UserError(f"{output} exists and is not a checkpoint: use another --output, or remove it") from error


def to_header(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything except tensors and tokenizers, as JSON values."""
    lora = checkpoint.lora
    return {
        "format": FORMAT,
        "version": VERSION if lora is None else LORA_VERSION,
        "model": checkpoint.model_config.to_dict(),
        "source_language": checkpoint.source_language,
        "target_language": checkpoint.target_language,
        "joined_vocabulary": checkpoint.joined,
        "tokenizer": {"source": checkpoint.source.kind, "target": checkpoint.target.kind},
        "progress": checkpoint.progress,
        **({} if lora is None else {"lora": lora.to_dict()}),
    }


def from_header(header: dict[str, Any], name_parts: NameParts, read: Callable[[str], bytes]) -> Checkpoint:
    """The checkpoint of a header, still without weights, with the tokenizers of both sides.

    Their parts have the names that `name_parts` gives by kinds, shared vocabulary or not, and languages; `read` returns
    the content of a part.
    """
    languages, joined = (header["source_language"], header["target_language"]), header["joined_vocabulary"]
    if not is_direction(*languages):
        raise ValueError(f"{quoted(languages[0])} and {quoted(languages[1])} are not two languages")
    if not isinstance(joined, bool):
        raise TypeError("'joined_vocabulary' is not true or false")
    kinds = (header["tokenizer"]["source"], header["tokenizer"]["target"])
    source, target = restore_tokenizers(kinds, name_parts(kinds, joined, languages), read)
    config = config_from_dict(header["model"])
    lora = LoraConfig.from_dict(header["lora"]) if header["version"] == LORA_VERSION else None
    return Checkpoint(config, {}, *languages, source, target, _progress(header), lora=lora)


def _progress(header: dict[str, Any]) -> dict[str, Any]:
    progress: dict[str, Any] = header["progress"]
    if not isinstance(progress, dict):
        raise TypeError("the progress is not an object")
    return progress


def _to_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    sides = checkpoint.source, checkpoint.target
    parts = _tokenizer_tensors((sides[0].kind, sides[1].kind), checkpoint.joined)
    tensors: dict[str, Tensor] = {}
    for tokenizer, names in zip(sides, parts, strict=True):
        tensors[names.vocabulary] = bytes_to_tensor(tokenizer.vocab.to_bytes())
        tensors[str(names.model)] = bytes_to_tensor(tokenizer.model)
    tensors |= {_WEIGHTS + name: tensor for name, tensor in checkpoint.weights.items()}
    tensors |= {_EMA + name: tensor for name, tensor in (checkpoint.ema or {}).items()}
    tensors |= {_OPTIMIZER + name: tensor for name, tensor in (checkpoint.optimizer or {}).items()}
    return tensors


def _tokenizer_tensors(kinds: tuple[str, str], joined: bool, *_: object) -> tuple[StoredParts, StoredParts]:
    """The names of the tensors with the tokenizers of both sides; a side without a model has an empty one."""
    vocabulary = "source" if joined else "target"
    model = "source" if shares_model(kinds[1], joined) else "target"
    source = StoredParts("source.vocabulary", "source.tokenizer")
    return source, StoredParts(f"{vocabulary}.vocabulary", f"{model}.tokenizer")


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _unlike(weight: Any, shape: torch.Size) -> str | None:
    """Why a value cannot be the weights of a parameter of this shape; None if it can."""
    if not isinstance(weight, Tensor):
        return "is not a tensor"
    if weight.dtype != torch.float32 or weight.layout != torch.strided or weight.is_meta:
        kind = "without values" if weight.is_meta else f"{weight.layout} {weight.dtype}".replace("torch.", "")
        return f"is {kind} where strided float32 is expected"
    if weight.shape != shape:
        return f"has {list(weight.shape)} where {list(shape)} is expected"
    return None

"""The checkpoint file, which contains everything for inference or resuming, is safe to load, and has a checksum.

`nmtkit.storage.archive` reads and writes the file; this module defines its parts: see docs/reference/checkpoint.md.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nmtkit.config import flag
from nmtkit.errors import RunError, UserError
from nmtkit.machine.memory import is_out_of_memory
from nmtkit.model.architectures import config_from_dict
from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.lora_config import LoraConfig
from nmtkit.model.parameters import check_weights, means, merged, transformer_shapes
from nmtkit.storage import archive
from nmtkit.storage.atomic import staged_file
from nmtkit.storage.run_files import BEST, LAST, list_checkpoints
from nmtkit.text.changed_vocabularies import Changed
from nmtkit.text.languages import is_direction
from nmtkit.text.tokenizer import StoredParts, Tokenizer, restore_tokenizers, shares_model, shares_vocabulary
from nmtkit.wording import quoted

if TYPE_CHECKING:
    from nmtkit.model.translation_model import TranslationModel

T = TypeVar("T")
Weights = dict[str, NDArray[np.float32]]

SAFETENSORS_FILE, SAFETENSORS_HEADER = "model.safetensors", "config.json"  # written by nmt-export, not a checkpoint
#: The option, with its group, that each validation metric depends on; see `ranking_conditions`.
METRIC_OPTIONS = {"valid_loss": ("optimizer", "label_smoothing"), "valid_bleu": ("validation", "valid_beam")}
HIGHEST_IS_BEST = frozenset({"valid_bleu"})  #: of these metrics; the lowest of the others

_ONLY_INT8 = "an int8 checkpoint can only translate, on a CPU with --precision int8: use the one it was made from"
_BEGINNING = 100  # bytes: the format is the first entry of the header
_PREFIXES = {"weights": "weights.", "ema": "ema.", "optimizer": "optimizer.", "scales": "scales."}  # of tensors
_OF_VOCABULARY = ("source_embedding.", "target_embedding.", "projection")  # parameters with a row for each piece

NameParts = Callable[[tuple[str, str], bool, tuple[str, str]], tuple[StoredParts, StoredParts]]


@dataclass
class Checkpoint:
    """A model with its vocabularies and, during training, the state of the run.

    `weights` maps parameter names to arrays (…); a tied matrix appears once. `ema` are their moving averages, if any.
    With `scales`, one for each row, `weights` are int8, and their values are the products of both. With `lora`,
    `weights` and `ema` contain low-rank additions, which `merged` adds to the matrices. `progress` contains JSON
    values: the update, the epoch, validation results, and the options of the run. `optimizer` is None in a checkpoint
    for inference only. `search` contains defaults of nmt-generate.
    """

    model_config: ModelConfig
    weights: Weights
    source_language: str
    target_language: str
    source: Tokenizer
    target: Tokenizer
    progress: dict[str, Any] = field(default_factory=dict)
    optimizer: Weights | None = None
    ema: Weights | None = None
    lora: LoraConfig | None = None
    scales: Weights | None = None
    search: dict[str, Any] = field(default_factory=dict)
    checksum: str | None = None
    release: Callable[[], None] | None = None  #: of the file it was read from, see `Archive`

    @property
    def languages(self) -> tuple[str, str]:
        """The source and target language."""
        return self.source_language, self.target_language

    @property
    def joined(self) -> bool:
        """Whether source and target share one vocabulary."""
        return shares_vocabulary(self.source, self.target)

    def chosen(self, which: str = "auto") -> Weights:
        """Return the weights that the option of `WeightsConfig` selects. Raises UserError if missing or int8."""
        if self.scales is not None:
            raise UserError(_ONLY_INT8)
        if which == "ema" and self.ema is None:
            raise UserError("--weights ema: the checkpoint has no moving average, because it was trained without --ema")
        return self.weights if which == "trained" or self.ema is None else self.ema

    def without_training(self, which: str = "auto") -> "Checkpoint":
        """Return the checkpoint with only the `chosen` weights, and without training state."""
        return replace(self, weights=self.chosen(which), optimizer=None, ema=None)

    def merged(self) -> "Checkpoint":
        """Return the checkpoint with low-rank additions merged into the matrices, and without optimizer state."""
        if self.lora is None:
            return self
        scale = self.lora.scale
        ema = None if self.ema is None else merged(self.ema, scale)
        return replace(self, weights=merged(self.weights, scale), ema=ema, optimizer=None, lora=None)

    def with_vocabularies(self, changed: Changed) -> "Checkpoint":
        """Return the checkpoint with changed vocabularies, and without optimizer state."""

        def rows_of(weights: Weights) -> Weights:
            names = [name for name in weights if name.startswith(_OF_VOCABULARY)]
            return weights | {name: means(weights[name], changed.rows[not name.startswith("source")]) for name in names}

        plain, (source, target) = self.merged(), changed.tokenizers
        ema = None if plain.ema is None else rows_of(plain.ema)
        return replace(plain, weights=rows_of(plain.weights), ema=ema, source=source, target=target, optimizer=None)

    def build_model(self, which: str = "auto") -> "TranslationModel":
        """Build the model with the `chosen` weights, in evaluation mode. Raises UserError if they do not fit."""
        from nmtkit.model.weights import build_model

        weights = self.chosen(which)
        check_weights(weights, self.parameter_shapes())  # before memory is allocated
        with memory_for_weights("the model", sum(weight.nbytes for weight in weights.values())):
            return build_model(self.model_config, len(self.source.vocab), len(self.target.vocab), weights)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter of the model that the options describe, in the model's order."""
        sizes = len(self.source.vocab), len(self.target.vocab)
        if type(self.model_config) is TransformerConfig and self.lora is None:
            return transformer_shapes(self.model_config, *sizes)
        from nmtkit.model.weights import module_shapes

        return module_shapes(self.model_config, *sizes, self.lora)


@contextlib.contextmanager
def memory_for_weights(purpose: str, size: int) -> Iterator[None]:
    """Raise RunError with the `purpose` and the minimum `size` in bytes if memory runs out within this context."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(f"out of memory: {purpose} takes {size / 2**30:.2f} GiB for its weights alone") from error


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically, with a temporary file, fsync and a rename. Raises RunError on failure."""
    with staged_file(path) as file:
        archive.write_archive(file, to_header(checkpoint), _to_tensors(checkpoint))


def load_checkpoint(path: Path, merge: bool = True) -> Checkpoint:
    """Read a checkpoint whose weights fit its model. With `merge`, low-rank additions are merged into the weights.
    Raises UserError if the file is missing, damaged, of a newer version, or not an nmtkit checkpoint."""
    _refuse_folder(path)
    with archive.as_user_errors(path):
        read = archive.read_archive(path)
        checkpoint = from_header(read.header, _tokenizer_tensors, lambda name: read.tensors[name].tobytes())
        weights, *others = (_with_prefix(prefix, read.tensors) for prefix in _PREFIXES.values())
        ema, optimizer, scales = (part or None for part in others)
        checkpoint = replace(checkpoint, weights=weights, ema=ema, optimizer=optimizer, scales=scales)
        checkpoint = checkpoint.merged() if merge else checkpoint
        shapes = checkpoint.parameter_shapes()
        check_weights(checkpoint.weights, shapes, checkpoint.scales)
        if checkpoint.ema is not None:
            check_weights(checkpoint.ema, shapes)
    return replace(checkpoint, checksum=read.checksum, release=read.release)


def read_progress(path: Path) -> dict[str, Any]:
    """Read the `progress` of a checkpoint from its header, which is fast for any size. Raises UserError."""
    return _read_header(path, lambda header: header.get("progress", {}))


def ranking_conditions(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the values of the metric of the best checkpoint depend on, with names for messages. The
    values of two checkpoints are comparable only if all conditions are equal."""
    metric = progress.get("best_metric")
    group, name = METRIC_OPTIONS.get(str(metric), ("", ""))
    return {
        "the metric": metric,
        "the validation split": progress.get("validation_data", {}),
        flag(name): progress.get("options", {}).get(group, {}).get(name),
        "the version of the loss": progress.get("loss_version", 1) if metric == "valid_loss" else 1,
    }


def read_model_config(path: Path) -> ModelConfig:
    """Read the model options of a checkpoint like `read_progress`. Also raises UserError for an unknown option."""
    return _read_header(path, lambda header: config_from_dict(header["model"]))


def _read_header(path: Path, read: Callable[[dict[str, Any]], T]) -> T:
    _refuse_folder(path)
    with archive.as_user_errors(path):
        return read(archive.read_archive_header(path))


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder: {checkpoint_in(path)}")


def checkpoint_in(folder: Path) -> str:
    """Return advice for a user who gave a folder instead of a checkpoint."""
    if is_export(folder):
        return f"nmt-export {folder} --to checkpoint converts its safetensors to a checkpoint"
    newest_first = (path for _, path in reversed(list_checkpoints(folder)))
    found = next((path for path in (folder / BEST, folder / LAST, *newest_first) if path.is_file()), None)
    return f"use {found}" if found else f"give the file of a checkpoint; {archive.IMPORT}"


def is_export(path: Path) -> bool:
    """Whether a path is a safetensors folder from nmt-export. Reads only the beginning of the header."""
    with contextlib.suppress(OSError), (path / SAFETENSORS_HEADER).open("rb") as file:
        return archive.FORMAT.encode() in file.read(_BEGINNING)
    return False


def check_replaceable(output: Path) -> None:
    """Raise UserError if `output` exists and is neither a checkpoint nor an empty file."""
    if not output.exists():
        return
    if not output.is_file():  # reading a pipe would wait for its writer
        raise UserError(f"{output} is not a regular file: use a different --output")
    try:
        if output.stat().st_size > 0:
            read_progress(output)
    except UserError as error:
        raise UserError(f"{output} exists and is not a checkpoint: use a different --output, or remove it") from error


def to_header(checkpoint: Checkpoint) -> dict[str, Any]:
    """Convert everything except tensors and tokenizers to JSON values."""
    lora = checkpoint.lora
    return {
        "format": archive.FORMAT,
        "version": archive.VERSION if lora is None else archive.LORA_VERSION,
        "model": checkpoint.model_config.to_dict(),
        "source_language": checkpoint.source_language,
        "target_language": checkpoint.target_language,
        "joined_vocabulary": checkpoint.joined,
        "tokenizer": {"source": checkpoint.source.kind, "target": checkpoint.target.kind},
        "progress": checkpoint.progress,
        **({"search": checkpoint.search} if checkpoint.search else {}),
        **({} if lora is None else {"lora": lora.to_dict()}),
    }


def from_header(header: dict[str, Any], name_parts: NameParts, read: Callable[[str], bytes]) -> Checkpoint:
    """Create a checkpoint without weights from a header, with the tokenizers of both sides.

    `name_parts(kinds, joined, languages)` names their stored parts, and `read(name)` returns the content of a part.
    """
    languages, joined = (header["source_language"], header["target_language"]), header["joined_vocabulary"]
    if not is_direction(*languages):
        raise ValueError(f"{quoted(languages[0])} and {quoted(languages[1])} are not two languages")
    kinds = (header["tokenizer"]["source"], header["tokenizer"]["target"])
    source, target = restore_tokenizers(kinds, name_parts(kinds, joined, languages), read)
    config = config_from_dict(header["model"])
    lora = LoraConfig.from_dict(header["lora"]) if header["version"] == archive.LORA_VERSION else None
    progress, search = header.get("progress", {}), header.get("search", {})
    return Checkpoint(config, {}, *languages, source, target, progress, lora=lora, search=search)


def _to_tensors(checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
    sides = checkpoint.source, checkpoint.target
    parts = _tokenizer_tensors((sides[0].kind, sides[1].kind), checkpoint.joined)
    tensors: dict[str, NDArray[Any]] = {}
    for tokenizer, names in zip(sides, parts, strict=True):
        tensors[names.vocabulary] = np.frombuffer(tokenizer.vocab.to_bytes(), np.uint8)
        tensors[str(names.model)] = np.frombuffer(tokenizer.model, np.uint8)
    for part, prefix in _PREFIXES.items():
        tensors |= {prefix + name: tensor for name, tensor in (getattr(checkpoint, part) or {}).items()}
    return tensors


def _tokenizer_tensors(kinds: tuple[str, str], joined: bool, *_: object) -> tuple[StoredParts, StoredParts]:
    """Return the names of the tensors with the tokenizers of both sides. Without a model, the tensor is empty."""
    vocabulary = "source" if joined else "target"
    model = "source" if shares_model(kinds[1], joined) else "target"
    source = StoredParts("source.vocabulary", "source.tokenizer")
    return source, StoredParts(f"{vocabulary}.vocabulary", f"{model}.tokenizer")


def _with_prefix(prefix: str, tensors: dict[str, NDArray[Any]]) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

"""The checkpoint file: everything that generation or a resumed training needs, safe to load, checksummed.

The file is a torch archive of plain tensors by name, which `torch.load(weights_only=True)` reads like any other.
The tensor `header` is JSON in UTF-8; `source.vocabulary` and the like are the bytes of the dataset's files. A
SHA-256 of all bytes before it stands in the archive's comment. docs/formats.md describes the file byte by byte.
"""

import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nmtkit.checksum import sha256
from nmtkit.errors import UserError
from nmtkit.model.config import ModelConfig
from nmtkit.model.transformer import Transformer
from nmtkit.staging import link_file, staged_file
from nmtkit.tokenizer import Tokenizer, make_tokenizer
from nmtkit.vocab import Vocabulary

FORMAT, VERSION = "nmtkit checkpoint", 1
LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
SAFETENSORS_FILE = "model.safetensors"  # what nmt-export makes, which is no checkpoint

_COMMENT = b"sha256:"
_COMMENT_SIZE = len(_COMMENT) + 64
_WEIGHTS, _EMA, _OPTIMIZER = "weights.", "ema.", "optimizer."
_NAME = re.compile(r"checkpoint_(\d+)\.pt")


@dataclass
class Checkpoint:
    """A model with its vocabularies and, while it is being trained, the state of its training.

    `weights` are named as in the bare module, in float32 on the CPU; tied matrices stand once. `ema` are their moving
    averages, by the same names, if the run kept any. `progress` holds plain JSON values: the update, the epoch,
    validation results, the options of the run. `optimizer` is None in a checkpoint that is not meant to be trained on.
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

    @property
    def joined(self) -> bool:
        """Whether both sides have one vocabulary."""
        return self.source is self.target

    def chosen(self, which: str = "auto") -> dict[str, Tensor]:
        """The weights that `WeightsConfig` calls so; UserError where the averages are asked for and there are none."""
        if which == "ema" and self.ema is None:
            raise UserError("--weights ema: the checkpoint has no moving average, it was trained without --ema")
        return self.weights if which == "trained" or self.ema is None else self.ema

    def without_training(self, which: str = "auto") -> "Checkpoint":
        """The same with the `chosen` weights alone, and nothing that only a training needs."""
        return replace(self, weights=self.chosen(which), optimizer=None, ema=None)

    def build_model(self, which: str = "auto") -> Transformer:
        """The model with the `chosen` weights, in evaluation mode; UserError where they do not fit."""
        with _Undrawn():
            model = Transformer(self.model_config, len(self.source.vocab), len(self.target.vocab))
        load_weights(model, self.chosen(which))
        return model.eval()


_DRAWING = (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_)


class _Undrawn(TorchFunctionMode):
    """Within it no numbers are drawn, which takes longer than all else for weights that are written over then."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _DRAWING:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def collect_weights(model: Transformer) -> dict[str, Tensor]:
    """The parameters by name; a shared matrix stands once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def load_weights(model: Transformer, weights: dict[str, Tensor]) -> None:
    """Copy weights into a model; UserError naming the first that is missing, left over, or of another shape."""
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() ^ weights.keys()):
        raise UserError(f"the weights do not fit the model: {name} is {'missing' if name in parameters else 'unknown'}")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            raise UserError(
                f"the weights do not fit the model: {name} has {list(weights[name].shape)} "
                f"where {list(parameter.shape)} is expected"
            )
        parameter.copy_(weights[name])


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint whole or not at all: beside its final name, synced, then renamed. RunError if it fails."""
    tensors = _to_tensors(checkpoint)
    with staged_file(path) as file:
        try:
            torch.save(tensors, file)
            _append_checksum(file)
        except RuntimeError as error:  # torch's writer complains of its own file position, over what the disk said
            raise error.__context__ if isinstance(error.__context__, OSError) else OSError(str(error)) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. UserError if it is missing, damaged, cut short, of a newer version, or not one of ours."""
    if (path / SAFETENSORS_FILE).is_file():
        raise UserError(
            f"{path} is a folder of safetensors: nmt-export {path} --to checkpoint makes a checkpoint of it"
        )
    if path.is_dir():
        raise UserError(f"{path} is a folder: give one of its checkpoints, such as {path / BEST}")
    _verify_checksum(path)
    try:
        return _from_tensors(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (RuntimeError, pickle.UnpicklingError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a checkpoint of nmtkit ({type(error).__name__})") from error


def read_progress(path: Path) -> dict[str, Any]:
    """The `progress` of a checkpoint, without its tensors: quick however large the model is.

    UserError as of `load_checkpoint`, but for damage outside the header, which is not looked at.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            progress: dict[str, Any] = read_header(archive.read("archive/data/0"))["progress"]
            return progress
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (zipfile.BadZipFile, LookupError, ValueError, TypeError) as error:
        raise UserError(f"{path}: damaged, or not a checkpoint of nmtkit") from error


def list_checkpoints(save_dir: Path) -> list[tuple[int, Path]]:
    """The numbered checkpoints of a folder as (update, path), oldest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in save_dir.glob("checkpoint_*.pt"))
    return sorted((int(match[1]), path) for match, path in matches if match)


def checkpoint_path(save_dir: Path, update: int) -> Path:
    """Where the checkpoint after `update` updates stands."""
    return save_dir / f"checkpoint_{update}.pt"


def refuse_to_replace(path: Path) -> None:
    """Raise UserError where a file has a name that a training gives its checkpoints, so that it may be one of them, or
    is a pipe, in which no checkpoint can be written."""
    if path.is_fifo():
        raise UserError(f"{path} is a pipe, and a checkpoint needs a file: choose another --output")
    real = Path(os.path.realpath(path))
    if real.exists() and (real.name in (LAST, BEST) or _NAME.fullmatch(real.name)):
        raise UserError(f"{path} is a checkpoint of a training: choose another --output")


def link_checkpoint(path: Path, name: str) -> None:
    """Give a checkpoint a second name in its folder (`checkpoint_last.pt`), replacing the old bearer in one step."""
    link_file(path, path.with_name(name))


def to_header(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything but the tensors and the tokenizers, as JSON values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": checkpoint.model_config.to_dict(),
        "source_language": checkpoint.source_language,
        "target_language": checkpoint.target_language,
        "joined_vocabulary": checkpoint.joined,
        "tokenizer": {"source": checkpoint.source.kind, "target": checkpoint.target.kind},
        "progress": checkpoint.progress,
    }


def read_header(content: bytes) -> dict[str, Any]:
    """The inverse, of its JSON. UserError where it is of another format or of a newer version."""
    try:
        header: dict[str, Any] = json.loads(content)
    except RecursionError as error:
        raise UserError("not a checkpoint of nmtkit") from error
    if header["format"] != FORMAT:
        raise UserError("not a checkpoint of nmtkit")
    if header["version"] != VERSION:
        raise UserError(f"format version {header['version']}, this nmtkit reads {VERSION}: use a newer nmtkit")
    return header


def from_header(
    header: dict[str, Any], weights: dict[str, Tensor], tokenizer: Callable[[str], Tokenizer], **training: Any
) -> Checkpoint:
    """The checkpoint of a header, given its weights, and the tokenizer of each side, "source" or "target"."""
    source = tokenizer("source")
    return Checkpoint(
        ModelConfig.from_dict(header["model"]),
        weights,
        header["source_language"],
        header["target_language"],
        source,
        source if header["joined_vocabulary"] else tokenizer("target"),
        header["progress"],
        **training,
    )


def _to_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    header = to_header(checkpoint)
    sides = {"source": checkpoint.source} | ({} if checkpoint.joined else {"target": checkpoint.target})
    tensors: dict[str, Tensor] = {}
    for side, tokenizer in sides.items():
        tensors[f"{side}.vocabulary"] = _from_bytes(tokenizer.vocab.to_bytes())
        tensors[f"{side}.tokenizer"] = _from_bytes(tokenizer.model)
    tensors |= {_WEIGHTS + name: tensor for name, tensor in checkpoint.weights.items()}
    tensors |= {_EMA + name: tensor for name, tensor in (checkpoint.ema or {}).items()}
    tensors |= {_OPTIMIZER + name: tensor for name, tensor in (checkpoint.optimizer or {}).items()}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    # Named in the order of the archive's records, so that a reader in another language needs no pickle.
    header["tensors"] = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()]
    return {"header": _from_bytes(json.dumps(header, ensure_ascii=False).encode()), **tensors}


def _from_tensors(tensors: dict[str, Tensor]) -> Checkpoint:
    header = read_header(_to_bytes(tensors["header"]))
    return from_header(
        header,
        _with_prefix(_WEIGHTS, tensors),
        lambda side: _tokenizer(side, header, tensors),
        optimizer=_with_prefix(_OPTIMIZER, tensors) or None,
        ema=_with_prefix(_EMA, tensors) or None,
    )


def _tokenizer(side: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> Tokenizer:
    vocabulary = Vocabulary.from_bytes(_to_bytes(tensors[f"{side}.vocabulary"]))
    return make_tokenizer(header["tokenizer"][side], vocabulary, _to_bytes(tensors[f"{side}.tokenizer"]))


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _from_bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _append_checksum(file: BinaryIO) -> None:
    """Write the SHA-256 of the archive into its comment, the one place that zip keeps at the very end of a file."""
    file.seek(-2, os.SEEK_END)
    file.write(_COMMENT_SIZE.to_bytes(2, "little"))  # the length of the comment ends the zip directory
    file.flush()
    path = Path(file.name)
    file.write(_COMMENT + sha256(path, path.stat().st_size).encode())


def _verify_checksum(path: Path) -> None:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - _COMMENT_SIZE))
            comment = file.read()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if not comment.startswith(_COMMENT):
        raise UserError(f"{path}: cut short, or not a checkpoint of nmtkit: copy it again or take another checkpoint")
    if comment.removeprefix(_COMMENT).decode("ascii", "replace") != sha256(path, size - _COMMENT_SIZE):
        raise UserError(f"{path}: damaged, its checksum does not match: copy it again or take another checkpoint")

"""Export to Marian's own files, and to Bergamot, which is Marian in a browser."""

import json
import struct
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.calibration import with_input_scales
from nmtkit.conversion.config import ExportConfig
from nmtkit.conversion.folder import export_folder
from nmtkit.conversion.heads import with_full_heads
from nmtkit.conversion.huggingface_export import named_tensors, piece_ids
from nmtkit.conversion.known import MARIAN, check_known
from nmtkit.conversion.marian_file import (
    DECODER,
    MATRICES,
    NORM_EPSILON,
    OPTIONS,
    SPM,
    YAML,
    fixed,
    to_yaml,
    write_marian,
)
from nmtkit.conversion.marian_import import sentencepiece_ids
from nmtkit.conversion.weights import MASK
from nmtkit.data.corpus import write_tokenizers
from nmtkit.decoding.config import SearchConfig
from nmtkit.errors import UserError
from nmtkit.inference.shortlist import Shortlist
from nmtkit.model.config import TransformerConfig
from nmtkit.text.reading import read_lines
from nmtkit.text.tokenizer import SENTENCEPIECE_KINDS, Tokenizer
from nmtkit.text.vocabulary import EOS, SPECIALS, UNK

_KNOWN = {  # 1e-5, with which nmt-train trains, moves logits by about 1e-5
    **{**MARIAN, "positions": ("marian",), "decoder_recurrence": (None, "ssru")},
    "norm_epsilon": (NORM_EPSILON, 1e-5),
}
_BINARY, _INT8, _SHORTLIST = "model.bin", "model.intgemm.alphas.bin", "lex.bin"
_MULTIPLE, _INT8_MULTIPLE = 8, 16  # of the rows of a vocabulary, and of the widths of a model, in int8
_PAGE = {"index.html": "browser.html", "offline.js": "offline.js"}
_LISTS_MAGIC = 0xF11A48D5013417F5
_ALWAYS = 4  # each sentence may contain the first ids, and EOS is one of them


def to_marian(checkpoint: Checkpoint, folder: Path, weights: str, options: ExportConfig, *, browser: bool) -> None:
    """Write a checkpoint as a folder for Marian or, if `browser`, for Bergamot.

    Vocabularies that no SentencePiece model defines become lists in YAML, and Marian translates pieces. `weights` is as
    in `WeightsConfig`. Raises UserError if the folder exists, or if Marian does not support the model.
    """
    config = check_known(checkpoint.model_config, _KNOWN, "Bergamot" if browser else "Marian")
    checkpoint = with_full_heads(checkpoint.without_training(weights), config)
    source, target = checkpoint.source, checkpoint.target
    orders, suffix = _sentencepiece_orders(source, target, checkpoint.joined), SPM
    if orders is None and browser:
        raise UserError("Bergamot needs SentencePiece models that define the vocabularies: use --to marian")
    if orders is None:
        suffix = YAML
        orders = [[EOS, UNK, *range(len(SPECIALS), len(side.vocab))] for side in (source, target)]
    scales = None
    if options.int8:
        if config.d_model % _INT8_MULTIPLE or config.d_ff % _INT8_MULTIPLE:
            raise UserError(f"int8 needs --d-model and --d-ff divisible by {_INT8_MULTIPLE}: omit --int8")
        scales = with_input_scales(checkpoint, list(read_lines(options.int8)))
    lists = options.shortlist and Shortlist.read(options.shortlist, source.vocab, target.vocab)
    model = _INT8 if options.int8 else _BINARY if browser or options.binary else "model.npz"
    names = [f"{side}{suffix}" for side in (("vocab",) if checkpoint.joined else ("source", "target"))]
    with export_folder(folder, options.force) as staging:
        multiple = _MULTIPLE if scales else 1
        tensors = _tensors(checkpoint, config, orders, multiple)
        settings = _settings(tensors, config) | {"dim-vocabs": [n + -n % multiple for n in map(len, orders)]}
        write_marian(staging / model, tensors, settings, _tensors(scales, config, orders, multiple) if scales else None)
        for name, side, order in zip(names, (source, target), orders, strict=False):
            ids = piece_ids(side.vocab.pieces, order)
            listed = "".join(f"{json.dumps(piece, ensure_ascii=False)}: {ids[piece]}\n" for piece in ids)
            (staging / name).write_bytes(side.model if suffix == SPM else listed.encode())
        if suffix == YAML:
            write_tokenizers(staging, checkpoint.languages, checkpoint.source, checkpoint.target)
        if isinstance(lists, Shortlist):
            (staging / _SHORTLIST).write_bytes(_serialize(lists, *orders))
        if browser:
            description = {
                **{"from": checkpoint.source_language, "to": checkpoint.target_language, "model": model},
                **{"vocabularies": names, "shortlist": lists and _SHORTLIST},
                "bytes": {path.name: path.stat().st_size for path in sorted(staging.iterdir())},
                "config": {"gemm-precision": "int8shiftAlphaAll" if scales else "float32", "alignment": "soft"},
            }
            (staging / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        else:
            search: dict[str, Any] = {"relative-paths": True, "models": [model], "vocabs": [names[0], names[-1]]}
            search |= {"beam-size": SearchConfig().beam, "normalize": SearchConfig().length_penalty}
            (staging / DECODER).write_text(to_yaml(search), encoding="utf-8")
        for name, file in _PAGE.items() if options.page else ():
            (staging / name).write_bytes(resources.files(__package__).joinpath(file).read_bytes())


def _tensors(
    checkpoint: Checkpoint, config: TransformerConfig, orders: Sequence[Sequence[int]], multiple: int
) -> dict[str, Tensor]:
    """Return the weights (…) by the names of transformers, with vocabularies padded to a multiple."""
    tensors = {}
    for name, tensor in named_tensors(checkpoint, config, (orders[0], orders[1])).items():
        name = name.removeprefix("model.")
        if name == "final_logits_bias":
            tensor = F.pad(tensor, (0, -tensor.size(1) % multiple), value=MASK)
        elif name in MATRICES:
            tensor = F.pad(tensor, (0, 0, 0, -len(tensor) % multiple))
        tensors[name] = tensor
    return tensors


def _settings(tensors: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Any]:
    is_shared, is_tied = "shared.weight" in tensors, "lm_head.weight" not in tensors
    return {
        **{name: values[0] for name, values in fixed(bool(config.decoder_recurrence)).items()},
        **{theirs: getattr(config, ours) for ours, theirs in OPTIONS.items()},
        **{"tied-embeddings-all": is_shared, "tied-embeddings": is_tied and not is_shared},
        **{"tied-embeddings-src": False, "transformer-tied-layers": [], "input-types": [], "version": "nmtkit"},
    }


def _sentencepiece_orders(source: Tokenizer, target: Tokenizer, joined: bool) -> list[list[int]] | None:
    """Return nmtkit's id for each id of the SentencePiece models; None if these do not define the vocabularies."""
    if joined and source.model != target.model:
        return None
    orders = []
    for side in (source, target):
        if side.kind not in SENTENCEPIECE_KINDS:
            return None
        ids = {piece: number for number, piece in enumerate(side.vocab.pieces)}
        # An import names ids without a piece, and pieces with the name of a special id, by their id.
        names = enumerate(sentencepiece_ids(side.model))
        order = [ids.get(f"<unused{number}>", ids.get(name, -1)) for number, name in names]
        while (number := ids.get(f"<unused{len(order)}>", -1)) >= 0:
            order.append(number)
        if -1 in order or {*order, *range(len(SPECIALS))} != set(ids.values()):
            return None
        orders.append(order)
    return orders


def _serialize(shortlist: Shortlist, source: Sequence[int], target: Sequence[int]) -> bytes:
    """Serialize a shortlist in Marian's binary format, for these orders of ids.

    Frequent pieces become translations of EOS, which ends each source.
    """
    theirs = np.zeros(shortlist.size, np.uint32)
    theirs[target] = np.arange(len(target))
    lists = [shortlist.translations[shortlist.offsets[ours] : shortlist.offsets[ours + 1]] for ours in source]
    lists[source.index(EOS)] = np.union1d(lists[source.index(EOS)], shortlist.frequent)
    sizes = [*map(len, lists)]
    ids = np.concatenate([np.sort(theirs[each]) for each in lists]).astype("<u4")
    counts = struct.pack("<4Q", _ALWAYS, max(sizes), len(sizes) + 1, len(ids))
    body = counts + np.cumsum([0, *sizes], dtype="<u8").tobytes() + ids.tobytes()
    checksum = 0
    for word in np.frombuffer(body, "<u8", len(body) // 8).tolist():
        checksum ^= word + 0x9E3779B9 + (checksum << 6) + (checksum >> 2) & 2**64 - 1
    return struct.pack("<2Q", _LISTS_MAGIC, checksum) + body

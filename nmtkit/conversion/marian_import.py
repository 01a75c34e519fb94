"""Import of Marian's own models, `.npz` and `.bin`, with vocabularies of SentencePiece or in YAML."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.ctranslate2_import import tokenizers_beside
from nmtkit.conversion.fairseq_tokenizers import joint
from nmtkit.conversion.folder import read_part
from nmtkit.conversion.marian import UNK_PIECE, renumber
from nmtkit.conversion.marian_file import (
    DECODER,
    NORM_EPSILON,
    OPTIONS,
    SPM,
    YAML,
    find_model,
    fixed,
    parse_settings,
    read_marian,
)
from nmtkit.conversion.weights import MASK, OUTPUT, SHARED, ForeignWeights, Side, assemble, stack_modules
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.spm_model import PieceType, read_model
from nmtkit.text.vocabulary import BOS, PAD, SPECIALS, Vocabulary
from nmtkit.wording import quoted


def from_marian_file(path: Path, options: ImportConfig) -> Checkpoint:
    """Read a model file of Marian, or its folder, in float32, float16 or int8.

    Without vocabularies in `options`, `decoder.yml` names them. Raises UserError if a file is missing or damaged, or,
    naming it, for a feature that nmtkit's Transformer lacks.
    """
    languages = options.languages()
    with as_user_errors(path, "a Marian model"):
        path = find_model(path) or path
        tensors, settings = read_marian(path)
        config = _transformer_config(settings)
        weights = ForeignWeights(tensors)
        embeddings = weights.take_embeddings(shares=SHARED in weights, ties=OUTPUT not in weights)
        others = weights.take_modules(stack_modules(config))
        weights.refuse_rest()
        beside = _decoder_settings(path).get("vocabs", ())
        paths = options.dict or tuple(path.with_name(Path(name).name) for name in beside)
        if len(paths) != 2:
            raise UserError(f"its vocabularies, {SPM} or {YAML}, are missing: give them with --dict SOURCE TARGET")
        sizes = len(embeddings.source), len(embeddings.target)
        biases = embeddings.bias if paths[0] == paths[1] else None, embeddings.bias
        (source, source_rows), (target, target_rows) = map(_read_vocabulary, paths, sizes, biases)
        if target_rows[BOS] is not None:
            embeddings.target[target_rows[BOS]] = 0  # which is what the output begins with
        if {each.suffix for each in paths} == {SPM}:
            options = replace(options, spm_model=tuple(dict.fromkeys(paths)))
        tokenizers = tokenizers_beside(path.parent, joint((source, target)), languages, options)
        sides = Side(tokenizers[0], source_rows, sizes[0]), Side(tokenizers[1], target_rows, sizes[1])
        return assemble(config, languages, sides, embeddings, others, halves=True)


def search_settings(path: Path) -> dict[str, float | str]:
    """Return the options of nmt-generate, by name, that correspond to the search settings in a model's folder."""
    settings = _decoder_settings(find_model(path) or path)
    found: dict[str, float | str] = {"beam": int(settings["beam-size"][0])} if "beam-size" in settings else {}
    if "normalize" in settings:
        found |= {"length_penalty_form": "power", "length_penalty": float(settings["normalize"][0])}
    return found


def _transformer_config(settings: Mapping[str, Sequence[str]]) -> TransformerConfig:
    """Read the options of the model. Raises UserError, naming it, for a setting that is missing or not supported."""
    if missing := [name for name in OPTIONS.values() if not settings.get(name)]:
        raise UserError(f"its settings lack {missing[0]}")
    decoder_width = {"transformer-decoder-dim-ffn": ("0", settings[OPTIONS["d_ff"]][0])}
    has_ssru = settings.get("transformer-decoder-autoreg") == ["rnn"]
    for name, supported in {**fixed(has_ssru), **decoder_width}.items():
        if (found := " ".join(settings.get(name, supported[:1]))) not in supported:
            raise UserError(f"{name} is {quoted(found)}: only {', '.join(map(quoted, supported))} is supported")
    values: dict[str, Any] = {ours: settings[theirs][0] for ours, theirs in OPTIONS.items()}
    sizes = {name: int(value) for name, value in values.items() if name != "activation"}
    recurrence = "ssru" if has_ssru else None
    return TransformerConfig(
        **(values | sizes), positions="marian", norm_epsilon=NORM_EPSILON, decoder_recurrence=recurrence
    )


def _decoder_settings(path: Path) -> Mapping[str, Sequence[str]]:
    for file in (path.with_name(DECODER), path.with_name(f"{path.name}.{DECODER}")):
        if file.exists():
            with as_user_errors(file, "settings of Marian"):
                return parse_settings(read_part(file).decode())
    return {}


def _read_vocabulary(path: Path, size: int, bias: Tensor | None) -> tuple[Vocabulary, list[int | None]]:
    """Read a vocabulary in nmtkit's order, with Marian's id for each of nmtkit's.

    `<pad>` and `<s>` are ordinary pieces, unless `bias` excludes them from the outputs of the model.
    """
    with as_user_errors(path, "a vocabulary of Marian"):
        content = read_part(path)
        if path.suffix not in (SPM, YAML):
            raise UserError(f"vocabularies {path.suffix} are not supported, only {SPM} and {YAML}")
        ids = sentencepiece_ids(content) if path.suffix == SPM else _yaml_ids(content.decode())
        ids = {piece: number for piece, number in ids.items() if number < size}
        excluded = range(size) if bias is None else (bias.flatten() <= MASK).nonzero().flatten().tolist()
        pad, start = (ids.get(SPECIALS[n]) if ids.get(SPECIALS[n]) in excluded else None for n in (PAD, BOS))
        vocabulary, (_, *others) = renumber(ids, size, start, pad)
        return vocabulary, [pad, *others]


def sentencepiece_ids(model: bytes) -> dict[str, int]:
    """Return the ids of a SentencePiece model, by piece."""
    pieces = read_model(model)[1]
    return {UNK_PIECE if piece.type == PieceType.UNKNOWN else piece.text: i for i, piece in enumerate(pieces)}


def _yaml_ids(text: str) -> Mapping[str, int]:
    """Parse lines `piece: id`. Raises ValueError for other lines."""
    ids: dict[str, int] = {}
    for line in text.rstrip("\n").split("\n"):
        piece, _, number = line.rpartition(": ")
        if piece.startswith('"'):
            piece = piece[1:-1].encode("ascii", "backslashreplace").decode("unicode_escape")
        elif piece.startswith("'"):
            piece = piece[1:-1].replace("''", "'")
        ids[piece] = int(number)
    return ids

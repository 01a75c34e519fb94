"""Import of FSMT, Hugging Face's port of fairseq's translation models (facebook/wmt19-en-de and others)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.console.log import logger
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fairseq_tokenizers import joint, sides_of
from nmtkit.conversion.folder import read_object, read_part
from nmtkit.conversion.huggingface import CONFIG, TOKENIZER_CONFIG, read_weights
from nmtkit.conversion.huggingface_settings import DEFAULTS, check_fixed, read_settings, transformer_config
from nmtkit.conversion.huggingface_tokenizer import read_added_tokens, read_tokenizer_settings
from nmtkit.conversion.weights import (
    POSITION_OFFSET,
    POSITIONS,
    ForeignWeights,
    Side,
    are_sinusoids,
    assemble,
    with_positions,
)
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.moses_bpe import FINAL_MARK, MosesBpe, MosesBpeTokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.wording import quoted

MODEL_TYPE = "fsmt"
_OUTPUT = "decoder.output_projection.weight"
_SPECIALS = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}  # ids in FSMT
_REQUIRED: dict[str, Any] = {  # the only supported values, which are also the defaults
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_DEFAULTS: dict[str, Any] = {**DEFAULTS, "tie_word_embeddings": False}  # of transformers' FSMTConfig
SEARCH_DEFAULTS: dict[str, Any] = {"num_beams": 5, "length_penalty": 1.0, "max_length": 200}  #: also from FSMTConfig
_FIXED_TOKENIZER: dict[str, Any] = {
    **{"unk_token": "<unk>", "bos_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}
}
_MAX_POSITION_ERROR = 2e-4  # for large angles in float32


def from_fsmt(folder: Path, options: ImportConfig) -> Checkpoint:
    """Read the folder of an FSMT model. Raises UserError for missing or damaged files and unsupported features."""
    with as_user_errors(folder, "an FSMT model"):
        settings = read_settings(folder, _REQUIRED | _DEFAULTS)
        check_fixed(settings, _REQUIRED)
        config = transformer_config(settings, "fairseq")
        tokenizer = read_tokenizer_settings(folder, _FIXED_TOKENIZER)
        for token, number in read_added_tokens(folder, tokenizer, _SPECIALS).items():
            if _SPECIALS.get(token) != number:
                raise UserError(f"added token {quoted(token)} with the id {number} is not supported")
        pair = _languages(settings, tokenizer, options)
        sides = _sides(folder, pair, _is_lowercase(tokenizer))
        weights = read_weights(folder)
        others = weights.take_stacks(config)
        if tables := _take_learned_positions(weights, config.d_model):
            config, learned = with_positions(config, *tables)
            others |= learned
        embeddings = weights.take_embeddings(
            shares=settings["tie_word_embeddings"],
            ties=not all(name in weights for name in ("decoder.embed_tokens.weight", _OUTPUT)),
            scale=None if settings["scale_embedding"] else 1.0,
            output=_OUTPUT,
        )
        weights.refuse_rest()
        return assemble(config, pair, sides, embeddings, others, halves=config.positions == "fairseq")


def _languages(settings: Mapping[str, Any], tokenizer: Mapping[str, Any], options: ImportConfig) -> tuple[str, str]:
    """Take the languages from options or files. Raises UserError if both lack them, or if the files differ."""
    found = [values["langs"] for values in (settings, tokenizer) if values.get("langs") is not None]
    if len(found) == 2 and found[0] != found[1] and not (options.source_lang and options.target_lang):
        raise UserError(
            f"langs is {quoted(found[0])} in {CONFIG}, but {quoted(found[1])} in {TOKENIZER_CONFIG}: "
            "give --source-lang and --target-lang"
        )
    named = found[0] if found and isinstance(found[0], list) and len(found[0]) == 2 else (None, None)
    return options.languages(*named)


def _is_lowercase(tokenizer: Mapping[str, Any]) -> bool:
    """Whether text is first lowercased. Raises UserError if the setting is not a boolean."""
    lowercase = tokenizer.get("do_lower_case")
    if lowercase not in (True, False, None):
        raise UserError(f"{TOKENIZER_CONFIG}: do_lower_case is {quoted(lowercase)}, only true and false are supported")
    return bool(lowercase)


def _sides(folder: Path, languages: tuple[str, str], lowercase: bool) -> tuple[Side, Side]:
    """Read both sides from the files of FSMTTokenizer."""
    vocabularies = joint((_read_vocabulary(folder / "vocab-src.json"), _read_vocabulary(folder / "vocab-tgt.json")))
    lines = read_part(folder / "merges.txt").decode().split("\n")[:-1]
    last_first = (" ".join(line.split()[:2]) for line in reversed(lines))  # without counts
    merges = tuple(dict.fromkeys(last_first))[::-1]  # transformers ranks repeated pairs by the last line
    return sides_of(
        [
            MosesBpeTokenizer(
                vocabulary, MosesBpe(language, merges, mark=FINAL_MARK, normalize=True, lowercase=lowercase).to_bytes()
            )
            for vocabulary, language in zip(vocabularies, languages, strict=True)
        ]
    )


def _read_vocabulary(path: Path) -> Vocabulary:
    ids = read_object(path)
    pieces = sorted(ids, key=lambda piece: ids[piece])
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise UserError(f"{path.name}: the ids of its pieces are not 0, 1, 2, …")
    if {piece: ids.get(piece) for piece in _SPECIALS} != _SPECIALS:
        raise UserError(f"{path.name}: its first pieces are not {' '.join(_SPECIALS)}")
    return Vocabulary([*SPECIALS, *pieces[len(_SPECIALS) :]])


def _take_learned_positions(weights: ForeignWeights, d_model: int) -> tuple[Tensor, Tensor] | None:
    """Take the position tables (positions, D); None if they are not stored, or are sinusoids.

    transformers 5 stores them, and trains them with the other weights. Raises UserError if only one is stored, or if
    their width is not D.
    """
    if not any(name in weights for name in POSITIONS):
        return None
    source, target = (weights.take(name)[POSITION_OFFSET:] for name in POSITIONS)
    for name, table in zip(POSITIONS, (source, target), strict=True):
        if table.shape[1:] != (d_model,):
            raise UserError(f"{name} does not have the width d_model")
    if _are_sinusoids(source) and _are_sinusoids(target):
        return None
    logger.info("the positions differ from sinusoids: imported as learned positions")
    return source, target


def _are_sinusoids(table: Tensor) -> bool:
    """Whether a table (length, D) contains fairseq's sinusoids, within the rounding of its original number format."""
    fitting = (form for form in (torch.bfloat16, torch.float16) if table.to(form).float().equal(table))
    rounding = torch.finfo(next(fitting, torch.float32)).eps
    return are_sinusoids(table, "fairseq", _MAX_POSITION_ERROR + rounding)

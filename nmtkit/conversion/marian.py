"""Import of Marian models of Hugging Face's transformers, such as OPUS-MT.

The model is nmtkit's Transformer with post-norm, except for the order of the D dimensions and of the ids. In Marian,
EOS is 0, UNK is 1, and the start token is `<pad>`, usually the last id.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.folder import read_object, read_part
from nmtkit.conversion.huggingface import CONFIG, read_weights
from nmtkit.conversion.huggingface_settings import DEFAULTS, check_fixed, read_settings, transformer_config
from nmtkit.conversion.huggingface_tokenizer import read_added_tokens, read_tokenizer_settings
from nmtkit.conversion.weights import Embeddings, ForeignWeights, Side, are_sinusoids, assemble
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.spm_model import append_split_symbols, read_split_symbols
from nmtkit.text.tokenizer import SentencePieceVocabTokenizer
from nmtkit.text.user_symbols import check_symbols
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.wording import quoted

MODEL_TYPE = "marian"
SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
EOS_PIECE, UNK_PIECE, PAD_PIECE = "</s>", "<unk>", "<pad>"
SPECIAL_PIECES = (EOS_PIECE, UNK_PIECE, PAD_PIECE)

_MAX_POSITION_ERROR = 2e-3  # for sinusoids in fp16
_DEFAULTS: dict[str, Any] = {  # of transformers' MarianConfig
    **{**DEFAULTS, "activation_function": "gelu", "scale_embedding": False, "share_encoder_decoder_embeddings": True},
    **{"vocab_size": 58101, "pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0},
}
# The only supported values of other options, some from early releases, which are also the defaults.
_FIXED: dict[str, Any] = {
    **{"is_encoder_decoder": True, "is_decoder": False, "static_position_embeddings": True},
    **{"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False},
    **{"force_bos_token_to_be_generated": False, "quantization_config": None},
}
_FIXED_TOKENIZER: dict[str, Any] = {
    **{"eos_token": EOS_PIECE, "unk_token": UNK_PIECE, "pad_token": PAD_PIECE, "sp_model_kwargs": {}}
}


def from_marian(folder: Path, options: ImportConfig) -> Checkpoint:
    """Read a folder of `MarianMTModel` and `MarianTokenizer`.

    Weights in float16 and bfloat16 become float32. Raises UserError if a file is missing or damaged, or for a feature
    that nmtkit's Transformer lacks.
    """
    with as_user_errors(folder, "a Hugging Face Marian model"):
        settings = read_settings(folder, _DEFAULTS)
        check_fixed(settings, _FIXED)
        tokenizer = read_tokenizer_settings(folder, _FIXED_TOKENIZER)
        languages = options.languages(tokenizer.get("source_lang"), tokenizer.get("target_lang"))
        config = transformer_config(settings, "sinusoidal")
        tensors = read_weights(folder)
        embeddings = take_embeddings(tensors, settings)
        _drop_positions(tensors, config.d_model)
        others = tensors.take_stacks(config)
        tensors.refuse_rest()
        added = read_added_tokens(folder, tokenizer, SPECIAL_PIECES)
        sides = _sides(folder, settings, added, bool(tokenizer.get("separate_vocabs")))
        return assemble(config, languages, sides, embeddings, others, halves=True)


def _vocabulary_sizes(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of rows of both matrices. As in transformers, shared ones ignore decoder_vocab_size."""
    size = settings["vocab_size"]
    is_shared = settings["share_encoder_decoder_embeddings"]
    return size, size if is_shared else settings.get("decoder_vocab_size") or size


def take_embeddings(tensors: ForeignWeights, settings: Mapping[str, Any]) -> Embeddings:
    """Take the embeddings and the output matrix.

    With a separate output, transformers 5 stores and uses both embeddings even if config.json says they are shared.
    """
    return tensors.take_embeddings(
        shares=settings["share_encoder_decoder_embeddings"],
        ties=settings["tie_word_embeddings"],
        scale=None if settings["scale_embedding"] else 1.0,
    )


def _drop_positions(tensors: ForeignWeights, d_model: int) -> None:
    """Remove stored sinusoids, which nmtkit computes. Raises UserError if the positions are not sinusoids."""
    for stack in ("encoder", "decoder"):
        name = f"{stack}.embed_positions.weight"
        if name in tensors:
            table = tensors.take(name)
            if table.shape[1:] != (d_model,) or not are_sinusoids(table, "sinusoidal", _MAX_POSITION_ERROR):
                raise UserError(f"{name} is not the table of sinusoids: other positions are not supported")


def _sides(folder: Path, settings: Mapping[str, Any], added: Mapping[str, int], separate: bool) -> tuple[Side, Side]:
    """Read the tokenizers of both sides: two SentencePiece models with one vocabulary, or one each.

    `added` are the ids of added tokens, at which text of both sides is split.
    """
    symbols = _symbols(added)
    if separate and symbols:
        raise UserError(f"added token {quoted(symbols[0])}: not supported with separate vocabularies")
    ids = with_added(read_vocabulary(folder / VOCABULARY), added)
    target_ids = with_added(read_vocabulary(folder / TARGET_VOCABULARY), added) if separate else ids
    source_size, target_size = _vocabulary_sizes(settings)
    if not separate and target_size != source_size:
        raise UserError(f"{CONFIG}: vocab_size and decoder_vocab_size differ, but there is one {VOCABULARY}")
    eos, pad, start = (settings[f"{name}_token_id"] for name in ("eos", "pad", "decoder_start"))
    if target_ids.get(EOS_PIECE) != eos:
        raise UserError(f"eos_token_id is {quoted(eos)}, not the id of {EOS_PIECE} in the vocabulary")
    if start not in (pad, eos):
        raise UserError(f"decoder_start_token_id is {quoted(start)}: only pad_token_id is supported")
    vocabulary, rows = renumber(target_ids, target_size, start, pad)
    if separate:
        source_pad = ids.get(PAD_PIECE)
        source_vocabulary, source_rows = renumber(ids, source_size, source_pad, source_pad)
    else:
        source_vocabulary, source_rows = vocabulary, rows
    models = [_read_model(folder / name, symbols) for name in (SOURCE_MODEL, TARGET_MODEL)]
    return (
        Side(SentencePieceVocabTokenizer(source_vocabulary, models[0]), source_rows, source_size),
        Side(SentencePieceVocabTokenizer(vocabulary, models[1]), rows, target_size),
    )


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read a vocabulary, piece -> id. Raises UserError unless it has EOS and UNK, and a distinct id for each piece."""
    ids = read_object(path)
    if not all(type(number) is int for number in ids.values()) or len(set(ids.values())) < len(ids):
        raise UserError(f"{path.name} is not a list of pieces with distinct ids")
    for piece in (EOS_PIECE, UNK_PIECE):
        if piece not in ids:
            raise UserError(f"{path.name} has no {piece}")
    return ids


def _read_model(path: Path, symbols: Sequence[str]) -> bytes:
    """Read a SentencePiece model, and add split symbols. Raises UserError if nmtkit exported it with different ones."""
    model = read_part(path)
    try:
        stored = read_split_symbols(model)
    except UserError as error:
        raise UserError(f"{path.name} is {error}") from error
    if not stored:
        return append_split_symbols(model, symbols)
    if set(stored) != set(symbols):
        listed, added = " ".join(stored), " ".join(symbols) or "no added tokens"
        raise UserError(f"{path.name} has the split symbols {listed:.60}, but the tokenizer has {added:.60}")
    return model


def _symbols(added: Mapping[str, int]) -> list[str]:
    """List the added tokens that are not special. Raises UserError if nmtkit cannot split text at them."""
    symbols = [token for token in added if token not in SPECIAL_PIECES]
    check_symbols(symbols, "added token")
    for token in added:  # whether transformers finds an inner token depends on the text after it
        if inner := next((other for other in added if other in token[1:]), None):
            raise UserError(f"added token {quoted(token)}: it contains {quoted(inner)}, which is not supported")
    return symbols


def with_added(ids: dict[str, int], added: Mapping[str, int]) -> dict[str, int]:
    """Add tokens to a vocabulary, piece -> id. Raises UserError if one is a piece with a different id."""
    pieces = {number: piece for piece, number in ids.items()}
    for token, number in added.items():
        if ids.get(token, number) != number:
            raise UserError(f"added token {quoted(token)}: its id is {number}, but {ids[token]} in the vocabulary")
        if pieces.get(number, token) != token:
            raise UserError(f"added token {quoted(token)}: its id {number} belongs to {quoted(pieces[number])}")
    return {**ids, **added}


def renumber(
    ids: Mapping[str, int], size: int, start: int | None, pad: int | None
) -> tuple[Vocabulary, list[int | None]]:
    """Convert a vocabulary to nmtkit's ids, with the foreign id for each. Ids without a piece get a name.

    Raises UserError if an id is not below `size`.
    """
    pieces = {number: piece for piece, number in ids.items()}
    if not all(0 <= number < size for number in (*pieces, 0 if start is None else start)):
        raise UserError(f"the vocabulary has ids that are not below {size}, the size in {CONFIG}")
    eos, unk = ids[EOS_PIECE], ids[UNK_PIECE]
    others = [number for number in range(size) if number not in (eos, unk, start, pad)]
    named = [pieces.get(number, EOS_PIECE) for number in others]
    mark = "unused"
    while any(piece.startswith(f"<{mark}") for piece in ids):
        mark += "_"
    named = [f"<{mark}{number}>" if piece in SPECIALS else piece for number, piece in zip(others, named, strict=True)]
    return Vocabulary([*SPECIALS, *named]), [None if pad == start else pad, unk, start, eos, *others]

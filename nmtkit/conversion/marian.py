"""Import of Marian models of Hugging Face's transformers, such as OPUS-MT.

The model is nmtkit's Transformer with post-norm, except for the order of the D dimensions and of the ids. In Marian,
EOS is 0, UNK is 1, and the start token is `<pad>`, usually the last id.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion import huggingface
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.folder import read_object, read_part
from nmtkit.conversion.huggingface_settings import DEFAULTS, read_settings, transformer_config
from nmtkit.conversion.weights import Side, convert
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.spm_model import SPLIT_SYMBOL, append_symbols, read_symbols
from nmtkit.text.tokenizer import SentencePieceVocabTokenizer
from nmtkit.text.user_symbols import check_symbols
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.wording import quoted

SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
EOS_PIECE, UNK_PIECE, PAD_PIECE = "</s>", "<unk>", "<pad>"
SPECIAL_PIECES = (EOS_PIECE, UNK_PIECE, PAD_PIECE)

_DEFAULTS: dict[str, Any] = {  # of transformers' MarianConfig
    **{**DEFAULTS, "activation_function": "gelu", "scale_embedding": False, "share_encoder_decoder_embeddings": True},
    **{"vocab_size": 58101, "pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0},
}
# The only supported values of other options, some from early releases, which are also the defaults.
_FIXED: dict[str, Any] = {
    **{"is_encoder_decoder": True, "is_decoder": False, "static_position_embeddings": True},
    **{"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False},
    **{"force_bos_token_to_be_generated": False, "quantization_config": None, "forced_bos_token_id": None},
}
_FIXED_TOKENIZER = {"eos_token": EOS_PIECE, "unk_token": UNK_PIECE, "pad_token": PAD_PIECE, "sp_model_kwargs": {}}


def from_marian(folder: Path, options: ImportConfig) -> Checkpoint:
    """Read a folder of `MarianMTModel` and `MarianTokenizer`.

    Weights in float16 and bfloat16 become float32. Raises UserError if a file is missing or damaged, or for a feature
    that nmtkit's Transformer lacks.
    """
    with as_user_errors(folder, "a Hugging Face Marian model"):
        settings = read_settings(folder, _DEFAULTS)
        huggingface.check_fixed(huggingface.CONFIG, settings, _FIXED)
        tokenizer = huggingface.read_tokenizer_settings(folder, _FIXED_TOKENIZER)
        languages = options.languages(tokenizer.get("source_lang"), tokenizer.get("target_lang"))
        config = transformer_config(settings, "sinusoidal")
        weights = huggingface.read_weights(folder)
        added = huggingface.read_added_tokens(folder, tokenizer, SPECIAL_PIECES)
        sides = _sides(folder, settings, added, bool(tokenizer.get("separate_vocabs")))
        # With a separate output, transformers 5 stores and uses both embeddings even if the settings share them.
        shares, ties = settings["share_encoder_decoder_embeddings"], settings["tie_word_embeddings"]
        return convert(weights, config, languages, sides, shares=shares, ties=ties, unused_positions=0)


def _sides(folder: Path, settings: Mapping[str, Any], added: dict[str, int], separate: bool) -> tuple[Side, Side]:
    """Read the tokenizers of both sides: two SentencePiece models with one vocabulary, or one each.

    `added` are the ids of added tokens, at which text of both sides is split.
    """
    symbols = _symbols(added)
    if separate and symbols:
        raise UserError(f"added token {quoted(symbols[0])}: not supported with separate vocabularies")
    ids = read_vocabulary(folder / VOCABULARY) | added
    target_ids = read_vocabulary(folder / TARGET_VOCABULARY) | added if separate else ids
    source_size = target_size = settings["vocab_size"]
    if not settings["share_encoder_decoder_embeddings"]:  # as in transformers, shared matrices ignore the other size
        target_size = settings.get("decoder_vocab_size") or source_size
    if not separate and target_size != source_size:
        raise UserError(f"vocab_size and decoder_vocab_size differ, but there is one {VOCABULARY}")
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
    """Read a vocabulary, piece -> id. Raises UserError unless each piece has its own id."""
    ids = read_object(path)
    if not all(type(number) is int for number in ids.values()) or len(set(ids.values())) < len(ids):
        raise UserError(f"{path.name} is not a list of pieces with distinct ids")
    return ids


def _read_model(path: Path, symbols: Sequence[str]) -> bytes:
    """Read a SentencePiece model, and add the split symbols that it lacks."""
    with as_user_errors(path, "a SentencePiece model"):
        model = read_part(path)
        stored = read_symbols(model, SPLIT_SYMBOL)
    return append_symbols(model, SPLIT_SYMBOL, [symbol for symbol in symbols if symbol not in stored])


def _symbols(added: Mapping[str, int]) -> list[str]:
    """List the added tokens that are not special. Raises UserError if nmtkit cannot split text at them."""
    symbols = [token for token in added if token not in SPECIAL_PIECES]
    check_symbols(symbols, "added token")
    for token in added:  # whether transformers finds an inner token depends on the text after it
        if inner := next((other for other in added if other in token[1:]), None):
            raise UserError(f"added token {quoted(token)}: it contains {quoted(inner)}, which is not supported")
    return symbols


def renumber(
    ids: Mapping[str, int], size: int, start: int | None, pad: int | None
) -> tuple[Vocabulary, list[int | None]]:
    """Convert a vocabulary to nmtkit's ids, with the foreign id for each. Ids without a piece get a name.

    Raises UserError if an id is not below `size`.
    """
    pieces = {number: piece for piece, number in ids.items()}
    if not all(0 <= number < size for number in (*pieces, 0 if start is None else start)):
        raise UserError(f"the vocabulary has ids that are not below {size}, the size in {huggingface.CONFIG}")
    eos, unk = ids[EOS_PIECE], ids[UNK_PIECE]
    others = [number for number in range(size) if number not in (eos, unk, start, pad)]
    named = [pieces.get(number, EOS_PIECE) for number in others]
    mark = "unused"
    while any(piece.startswith(f"<{mark}") for piece in ids):
        mark += "_"
    named = [f"<{mark}{number}>" if piece in SPECIALS else piece for number, piece in zip(others, named, strict=True)]
    return Vocabulary([*SPECIALS, *named]), [None if pad == start else pad, unk, start, eos, *others]

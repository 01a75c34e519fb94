"""Export of models with language codes to the folder that `nmtkit.conversion.multilingual` imports."""

from typing import Any

import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.fairseq_tokenizers import SPECIAL_PIECES
from nmtkit.conversion.heads import with_full_heads
from nmtkit.conversion.huggingface import CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG, added_tokens
from nmtkit.conversion.huggingface_settings import settings_of
from nmtkit.conversion.known import MARIAN, Known, check_known
from nmtkit.conversion.marian import VOCABULARY
from nmtkit.conversion.multilingual import FAMILIES, IDS, MASK_PIECE, SPM_MODEL, Family
from nmtkit.conversion.weights import POSITION_OFFSET, alternating, permute_width, stack_tensors
from nmtkit.decoding.config import SearchConfig
from nmtkit.errors import UserError
from nmtkit.model.weights import as_tensors
from nmtkit.text.languages import SEVERAL, find_code
from nmtkit.text.spm_model import PieceType, read_model, without_language_codes
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

Parts = tuple[dict[str, Tensor], dict[str, dict[str, Any]], dict[str, bytes]]  # tensors, JSON files and others, by name
_POSITIONS = 1024  # the default of these models; their sinusoids have no limit
_UNUSED = "<unused"  # begins the names of rows without a piece
_MAX_TOKENS = 200  # default limit of outputs, as in the published models


def multilingual_parts(checkpoint: Checkpoint) -> Parts:
    """Return the files of an exported folder. Raises UserError if the model differs from others of its family."""
    family = _family(checkpoint)
    name = str(family.tokenizers[0]).removesuffix("Tokenizer")
    known: Known = {
        **MARIAN,
        **{"positions": ("learned" if family.is_bart else "fairseq",), "norm": ("pre",)},
        **{"output_bias": (False, family.is_bart), "embedding_norm": (family.is_bart,)},
    }
    config = check_known(checkpoint.model_config, known, f"Hugging Face's {name}")
    checkpoint = with_full_heads(checkpoint, config)
    weights = as_tensors(checkpoint.weights)
    if not family.is_bart:
        weights = permute_width(weights, torch.argsort(alternating(config.d_model)))
    pieces, codes = checkpoint.source.vocab.pieces, checkpoint.source.language_codes
    model, first = read_model(checkpoint.source.model)[1], min(checkpoint.source.vocab.to_ids(codes))
    if not family.has_vocabulary and any(piece.type == PieceType.UNUSED for piece in model):
        raise UserError(f"{name} cannot have a trimmed vocabulary: use --to ctranslate2")
    texts = {piece.text for piece in model}

    def place(own: int) -> int:  # new pieces move before the codes, and new codes before unused rows
        return 0 if own < first or pieces[own] in texts else 2 if pieces[own].startswith(_UNUSED) else 1

    is_imported = pieces[len(SPECIALS)].startswith(_UNUSED)  # the row of <s>, which trimming drops
    numbers = range(len(SPECIALS) + is_imported, len(pieces))
    others = sorted(numbers, key=place)
    order = [len(SPECIALS) if is_imported else PAD, PAD, EOS, UNK, *others]
    ids = {piece: number for number, piece in enumerate([*SPECIAL_PIECES, *(pieces[own] for own in others)])}
    tensors = {f"model.{name}": tensor for name, tensor in stack_tensors(weights, config)}
    tensors |= _embeddings(weights, order)
    if family.is_bart:
        bias = weights.get("projection_bias", torch.zeros(len(order) + 1))
        tensors["final_logits_bias"] = bias[order].unsqueeze(0)
        for stack, side in (("encoder", "source"), ("decoder", "target")):
            table = weights[f"{side}_positions.table"]
            unused = table.new_zeros(POSITION_OFFSET, config.d_model)
            tensors[f"model.{stack}.embed_positions.weight"] = torch.cat([unused, table])
    special = [token for token in (*SPECIAL_PIECES, *codes, MASK_PIECE) if token in ids]
    kind = "MBart" if family.is_bart else "M2M100"
    target = checkpoint.target_language
    forced = {} if target == SEVERAL else {"forced_bos_token_id": ids[find_code(target, codes)]}
    files = {
        CONFIG: settings_of(config)
        | {
            **{"architectures": [f"{kind}ForConditionalGeneration"], "model_type": family.model_type, **IDS},
            "vocab_size": len(order),
            "tie_word_embeddings": "lm_head.weight" not in tensors,
            "max_position_embeddings": config.max_positions if family.is_bart else _POSITIONS,
            "tokenizer_class": family.tokenizers[0],
        },
        GENERATION_CONFIG: {**IDS, **forced, "max_length": _MAX_TOKENS, "num_beams": SearchConfig().beam},
        TOKENIZER_CONFIG: {
            "tokenizer_class": family.tokenizers[0],
            "additional_special_tokens": [token for token in special if token not in SPECIAL_PIECES],
            **added_tokens({token: ids[token] for token in special}, special),
        },
    }
    if family.has_vocabulary:
        end = min(ids[code] for code in codes)
        files[VOCABULARY] = {piece: number for piece, number in ids.items() if number < end}
    return tensors, files, {SPM_MODEL: without_language_codes(checkpoint.source.model)}


def _family(checkpoint: Checkpoint) -> Family:
    codes, is_bart = set(checkpoint.source.language_codes), getattr(checkpoint.model_config, "embedding_norm", False)
    found = [family for family in FAMILIES if family.is_bart == is_bart and codes.issuperset(family.codes)]
    if not found or not checkpoint.joined:
        raise UserError("no model of Hugging Face has these language codes: use --to safetensors")
    return found[0]


def _embeddings(weights: dict[str, Tensor], order: list[int]) -> dict[str, Tensor]:
    """Return one matrix if all are equal, else three. </s> begins the decoder's input, with the row of BOS."""
    target = weights["target_embedding.weight"]
    begun = [BOS if own == EOS else own for own in order]
    decoder, output = target[begun], weights.get("projection.weight", target)[order]
    encoder = weights.get("source_embedding.weight", target)[order]
    if torch.equal(decoder, output) and torch.equal(encoder, output):
        return {"model.shared.weight": output}
    shared = {f"model.{name}.weight": encoder.clone() for name in ("shared", "encoder.embed_tokens")}
    return {**shared, "model.decoder.embed_tokens.weight": decoder, "lm_head.weight": output}

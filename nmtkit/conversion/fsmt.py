"""Import of FSMT, Hugging Face's port of fairseq's translation models (facebook/wmt19-en-de and others)."""

from pathlib import Path
from typing import Any

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion import huggingface
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fairseq_tokenizers import SPECIAL_PIECES, joint, sides_of
from nmtkit.conversion.folder import read_object, read_part
from nmtkit.conversion.huggingface_settings import DEFAULTS, read_settings, transformer_config
from nmtkit.conversion.weights import Side, convert
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.moses_bpe import FINAL_MARK, MosesBpe, MosesBpeTokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.wording import quoted

_OUTPUT = "decoder.output_projection.weight"
# The only supported values, which are also the defaults.
_REQUIRED: dict[str, Any] = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_DEFAULTS: dict[str, Any] = {**DEFAULTS, "tie_word_embeddings": False}  # of transformers' FSMTConfig
SEARCH_DEFAULTS: dict[str, Any] = {"num_beams": 5, "length_penalty": 1.0, "max_length": 200}  #: also from FSMTConfig
_FIXED_TOKENIZER = {"unk_token": "<unk>", "bos_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}


def from_fsmt(folder: Path, options: ImportConfig) -> Checkpoint:
    """Read the folder of an FSMT model. Raises UserError for missing or damaged files and unsupported features."""
    with as_user_errors(folder, "an FSMT model"):
        settings = read_settings(folder, _REQUIRED | _DEFAULTS)
        huggingface.check_fixed(huggingface.CONFIG, settings, {**_REQUIRED, "forced_bos_token_id": None})
        config = transformer_config(settings, "fairseq")
        tokenizer = huggingface.read_tokenizer_settings(folder, _FIXED_TOKENIZER)
        for token, number in huggingface.read_added_tokens(folder, tokenizer, SPECIAL_PIECES).items():
            if (number, token) not in enumerate(SPECIAL_PIECES):
                raise UserError(f"added token {quoted(token)} with the id {number} is not supported")
        pair = options.languages(*(settings.get("langs") or tokenizer.get("langs") or ()))
        sides = _sides(folder, pair, bool(tokenizer.get("do_lower_case")))
        weights = huggingface.read_weights(folder)
        ties = not all(name in weights for name in ("decoder.embed_tokens.weight", _OUTPUT))
        shares = settings["tie_word_embeddings"]
        return convert(weights, config, pair, sides, shares=shares, ties=ties, output=_OUTPUT)


def _sides(folder: Path, languages: tuple[str, str], lowercase: bool) -> tuple[Side, Side]:
    vocabularies = joint((_read_vocabulary(folder / "vocab-src.json"), _read_vocabulary(folder / "vocab-tgt.json")))
    lines = read_part(folder / "merges.txt").decode().split("\n")[:-1]
    last_first = (" ".join(line.split()[:2]) for line in reversed(lines))  # without counts
    merges = tuple(dict.fromkeys(last_first))[::-1]  # transformers ranks repeated pairs by the last line
    settings = (
        MosesBpe(language, merges, mark=FINAL_MARK, normalize=True, lowercase=lowercase).to_bytes()
        for language in languages
    )
    return sides_of([MosesBpeTokenizer(v, each) for v, each in zip(vocabularies, settings, strict=True)])


def _read_vocabulary(path: Path) -> Vocabulary:
    ids = read_object(path)
    pieces = sorted(ids, key=lambda piece: ids[piece])
    if [ids[piece] for piece in pieces] != list(range(len(pieces))) or (*pieces[:4],) != SPECIAL_PIECES:
        raise UserError(f"{path.name}: its pieces are not {' '.join(SPECIAL_PIECES)} and others with consecutive ids")
    return Vocabulary([*SPECIALS, *pieces[len(SPECIAL_PIECES) :]])

"""Import of Hugging Face's multilingual models with language codes: M2M-100, NLLB-200 and mBART-50.

Source and output begin with the code of their language. The decoder begins with </s> and the code of the target.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion import huggingface
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fairseq_tokenizers import SPECIAL_PIECES
from nmtkit.conversion.folder import read_object, read_part
from nmtkit.conversion.huggingface_settings import DEFAULTS, read_settings, transformer_config
from nmtkit.conversion.marian import VOCABULARY, read_vocabulary, renumber
from nmtkit.conversion.weights import Side, convert
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.languages import SEVERAL, find_code
from nmtkit.text.spm_model import LANGUAGE_CODE, append_symbols, read_model
from nmtkit.text.tokenizer import SentencePieceVocabTokenizer
from nmtkit.wording import quoted

SPM_MODEL, MASK_PIECE = "sentencepiece.bpe.model", "<mask>"
_SPM_SPECIALS = ["<unk>", "<s>", "</s>"]
_CODE = re.compile(r"[a-z]{2,}_[A-Za-z0-9_]+|__[a-z]+__")
# In the order of their ids. Of NLLB without _Latn.
_NLLB_CODES = """
ace_Arab ace acm_Arab acq_Arab aeb_Arab afr ajp_Arab aka amh_Ethi apc_Arab arb_Arab ars_Arab ary_Arab arz_Arab asm_Beng
ast awa_Deva ayr azb_Arab azj bak_Cyrl bam ban bel_Cyrl bem ben_Beng bho_Deva bjn_Arab bjn bod_Tibt bos bug bul_Cyrl cat
ceb ces cjk ckb_Arab crh cym dan deu dik dyu dzo_Tibt ell_Grek eng epo est eus ewe fao pes_Arab fij fin fon fra fur fuv
gla gle glg grn guj_Gujr hat hau heb_Hebr hin_Deva hne_Deva hrv hun hye_Armn ibo ilo ind isl ita jav jpn_Jpan kab kac
kam kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc kaz_Cyrl kbp kea khm_Khmr kik kin kir_Cyrl kmb kon kor_Hang kmr
lao_Laoo lvs lij lim lin lit lmo ltg ltz lua lug luo lus mag_Deva mai_Deva mal_Mlym mar_Deva min mkd_Cyrl plt mlt
mni_Beng khk_Cyrl mos mri zsm mya_Mymr nld nno nob npi_Deva nso nus nya oci gaz ory_Orya pag pan_Guru pap pol por
prs_Arab pbt_Arab quy ron run rus_Cyrl sag san_Deva sat_Beng scn shn_Mymr sin_Sinh slk slv smo sna snd_Arab som sot spa
als srd srp_Cyrl ssw sun swe swh szl tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl tha_Thai tir_Ethi taq taq_Tfng tpi tsn tso
tuk tum tur twi tzm_Tfng uig_Arab ukr_Cyrl umb urd_Arab uzn vec vie war wol xho ydd_Hebr yor yue_Hant zho_Hans zho_Hant
zul
"""
_M2M_CODES = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig
ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so
sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
_MBART_CODES = """
ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO
ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF
pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
"""


@dataclass(frozen=True)
class Family:
    """A family of models. Ids of pieces are in `vocab.json`, or else the ids of the SentencePiece model plus 1."""

    model_type: str
    tokenizers: tuple[str | None, ...]  #: their classes in transformers; None if it may be missing
    codes: tuple[str, ...]  #: their ids follow those of the pieces
    has_vocabulary: bool = False  #: a file `vocab.json`; without one, <mask> follows the codes
    is_bart: bool = False  #: learned positions, layer norm of embeddings, a bias; else fairseq's sinusoids
    defaults: tuple[tuple[str, Any], ...] = ()  #: of its config.json, other than those of M2M-100


_NLLB = Family("m2m_100", ("NllbTokenizer", None), tuple(c if "_" in c else f"{c}_Latn" for c in _NLLB_CODES.split()))
_M2M = Family(
    "m2m_100", ("M2M100Tokenizer", None), tuple(f"__{code}__" for code in _M2M_CODES.split()), has_vocabulary=True
)
_MBART = Family(
    "mbart",
    ("MBart50Tokenizer",),
    tuple(_MBART_CODES.split()),
    is_bart=True,
    defaults=(("activation_function", "gelu"), ("scale_embedding", False), ("attention_dropout", 0.0)),
)
FAMILIES = (_M2M, _NLLB, _MBART)
IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}  #: of all families
_REQUIRED: dict[str, Any] = {**IDS, "is_encoder_decoder": True, "quantization_config": None}  # only these values
# Of transformers' M2M100Config.
_DEFAULTS = DEFAULTS | {"vocab_size": 0, "attention_dropout": 0.1, "share_encoder_decoder_embeddings": True}
_FIXED_TOKENIZER: dict[str, Any] = {
    **{"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"},
    **{"unk_token": "<unk>", "mask_token": MASK_PIECE, "sp_model_kwargs": {}, "legacy_behaviour": False},
    **{"additional_special_tokens": huggingface.ANY, "extra_special_tokens": huggingface.ANY},
}


def from_multilingual(folder: Path, options: ImportConfig) -> Checkpoint:
    """Read the folder of an M2M-100, NLLB-200 or mBART-50 model.

    Raises UserError for missing or damaged files and unsupported features.
    """
    with as_user_errors(folder, "a multilingual model"):
        tokenizer = huggingface.read_tokenizer_settings(folder, _FIXED_TOKENIZER)
        family = _family(folder, tokenizer)
        settings = read_settings(folder, {**_REQUIRED, **_DEFAULTS, **dict(family.defaults)})
        huggingface.check_fixed(huggingface.CONFIG, settings, _REQUIRED)
        added = huggingface.read_added_tokens(folder, tokenizer, None)
        side, codes = _side(folder, family, settings["vocab_size"], added, options)
        languages = _languages(settings["forced_bos_token_id"], codes, options)
        config = transformer_config(settings, "learned" if family.is_bart else "fairseq")
        config = replace(config, norm="pre", embedding_norm=family.is_bart)
        weights = huggingface.read_weights(folder)
        weights.drop(lambda name: name.endswith((".embed_positions.weights", "._float_tensor")))  # of early releases
        shares, ties = settings["share_encoder_decoder_embeddings"], settings["tie_word_embeddings"]
        return convert(weights, config, languages, (side, side), shares=shares, ties=ties)


def _family(folder: Path, tokenizer: Mapping[str, Any]) -> Family:
    """Find the family of a folder. Raises UserError for others with the same architecture, such as mBART-25."""
    kind = huggingface.model_type(folder)
    named = tokenizer.get("tokenizer_class") or read_object(folder / huggingface.CONFIG).get("tokenizer_class")
    named = None if named is None else str(named).removesuffix("Fast")
    for family in FAMILIES:
        fits = family.model_type == kind and family.has_vocabulary == (folder / VOCABULARY).exists()
        if fits and named in family.tokenizers:
            return family
    supported = ", ".join(dict.fromkeys(str(family.tokenizers[0]) for family in FAMILIES))
    raise UserError(f"the tokenizer of this {kind} model is {named}: only {supported} are supported")


def _side(
    folder: Path, family: Family, size: int, added: Mapping[str, int], options: ImportConfig
) -> tuple[Side, dict[str, int]]:
    """Read the tokenizer of both sides, and the ids of language codes.

    Raises UserError if the added tokens contradict the vocabulary.
    """
    path = options.spm_model[0] if options.spm_model else folder / SPM_MODEL
    if not path.exists():
        raise UserError(f"{path.name} is missing: give that of the original model with --spm-model")
    with as_user_errors(path, "a SentencePiece model"):
        model = read_part(path)
        pieces = [piece.text for piece in read_model(model)[1]]
    if family.has_vocabulary:
        ids = read_vocabulary(folder / VOCABULARY)
    elif pieces[: len(_SPM_SPECIALS)] != _SPM_SPECIALS:
        raise UserError(f"{path.name} does not begin with the pieces {' '.join(_SPM_SPECIALS)}")
    else:
        ids = {piece: number for number, piece in enumerate([*SPECIAL_PIECES, *pieces[len(_SPM_SPECIALS) :]])}
    masks = () if family.has_vocabulary else (MASK_PIECE,)
    usual = {token: number for number, token in enumerate((*family.codes, *masks), len(ids))}
    found = {**usual, **{token: number for token, number in added.items() if token not in SPECIAL_PIECES}}
    for token, number in found.items():
        if usual.get(token, number) != number:
            raise UserError(f"{quoted(token)} has the id {number}, but the vocabulary leads to {usual[token]}: damaged")
    codes = {token: number for token, number in found.items() if token != MASK_PIECE}
    if unknown := [code for code in codes if not _CODE.fullmatch(code)]:
        raise UserError(f"added token {quoted(unknown[0])}: only language codes are supported")
    vocabulary, rows = renumber(ids | found, size, ids["</s>"], ids["<pad>"])
    return Side(SentencePieceVocabTokenizer(vocabulary, append_symbols(model, LANGUAGE_CODE, codes)), rows, size), codes


def _languages(forced: int | None, codes: Mapping[str, int], options: ImportConfig) -> tuple[str, str]:
    """Choose the languages of requests that name none: given ones, else the one target of a many-to-one model."""
    target = next((code for code, number in codes.items() if number == forced), SEVERAL)
    if forced is not None and target == SEVERAL:
        raise UserError(f"forced_bos_token_id is {forced}, which is not the code of a language")
    source, target = options.languages(SEVERAL, target)
    source, target = (name if name == SEVERAL else find_code(name, tuple(codes)) for name in (source, target))
    return source, target

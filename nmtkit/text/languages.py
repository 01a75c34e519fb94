"""The languages of the two sides of a dataset or a model."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from nmtkit.errors import UserError
from nmtkit.wording import quoted

SEVERAL = "mul"  #: ISO 639-2 code for text in several languages, marked by tags
UNSPACED = ("ja", "km", "lo", "my", "th", "zh")  #: languages without spaces between words
#: A letter of their scripts: Thai to Khmer, kana, and Han.
UNSPACED_LETTER = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
MAX_LANGUAGE = 255  #: characters, since languages are parts of file names
# ISO 639-2 and 639-3 -> 639-1. A macrolanguage and its member that models use have the same code: ara and arb.
_ISO_CODES = """
afr:af aka:ak alb:sq als:sq amh:am ara:ar arb:ar arm:hy asm:as aym:ay ayr:ay aze:az azj:az bak:ba bam:bm baq:eu bel:be
ben:bn bod:bo bos:bs bre:br bul:bg bur:my cat:ca ces:cs chi:zh cmn:zh cym:cy cze:cs dan:da deu:de dut:nl dzo:dz ekk:et
ell:el eng:en epo:eo est:et eus:eu ewe:ee fao:fo fas:fa fij:fj fin:fi fra:fr fre:fr fry:fy ful:ff fuv:ff gaz:om geo:ka
ger:de gla:gd gle:ga glg:gl gre:el grn:gn guj:gu hat:ht hau:ha heb:he hin:hi hrv:hr hun:hu hye:hy ibo:ig ice:is ind:id
isl:is ita:it jav:jv jpn:ja kan:kn kas:ks kat:ka kau:kr kaz:kk khk:mn khm:km kik:ki kin:rw kir:ky kmr:ku knc:kr kon:kg
kor:ko kur:ku lao:lo lav:lv lim:li lin:ln lit:lt ltz:lb lug:lg lvs:lv mac:mk mal:ml mao:mi mar:mr may:ms mkd:mk mlg:mg
mlt:mt mon:mn mri:mi msa:ms mya:my nep:ne nld:nl nno:nn nob:nb nor:no npi:ne nso:ns nya:ny oci:oc ori:or orm:om ory:or
pan:pa pbt:ps per:fa pes:fa plt:mg pol:pl por:pt pus:ps que:qu quy:qu ron:ro rum:ro run:rn rus:ru sag:sg san:sa sin:si
slk:sk slo:sk slv:sl smo:sm sna:sn snd:sd som:so sot:st spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw swe:sv swh:sw
tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tib:bo tir:ti tsn:tn tso:ts tuk:tk tur:tr twi:tw uig:ug ukr:uk urd:ur uzb:uz
uzn:uz vie:vi wel:cy wol:wo xho:xh ydd:yi yid:yi yor:yo zho:zh zsm:ms zul:zu
"""
_SHORT_CODES = dict(pair.split(":") for pair in _ISO_CODES.split())
#: Those with their own tokenization.
_TOKENIZED = ("de", "en", "fr", "ja", "km", "ko", "lo", "my", "th", "zh")


def is_language(name: object) -> bool:
    """Whether `name` can be a language code, and therefore the suffix of a file name."""
    return isinstance(name, str) and 0 < len(name) <= MAX_LANGUAGE and "/" not in name and name.isprintable()


def is_direction(source: object, target: object) -> bool:
    """Whether the names can be a source and target language: two languages, or `mul` on both sides."""
    return is_language(source) and is_language(target) and (source != target or source == SEVERAL)


def side_names(languages: tuple[str, str]) -> tuple[str, str]:
    """Return names of both sides for files and reports: the languages, or `source` and `target` if they are equal."""
    return languages if languages[0] != languages[1] else ("source", "target")


def includes(languages: tuple[str, str], others: tuple[str, str]) -> bool:
    """Whether each of `languages` is `mul` or equal to its counterpart in `others`."""
    return all(own in (SEVERAL, other) for own, other in zip(languages, others, strict=True))


def short_code(language: str) -> str:
    """Remove region and script from a language code, and prefer two letters: de for de-AT and deu_Latn."""
    code = re.split("[-_]", language.strip("_"))[0].lower()
    return _SHORT_CODES.get(code, code)


def check_single(option: str, language: str) -> None:
    """Raise UserError if the value of `option` is a pair of languages, such as en-de (but not en-DE, with a region)."""
    match = re.fullmatch("([a-z]{2,3})[-_]([a-z]{2,3})", language)
    if match and short_code(match[1]) != short_code(match[2]) in _TOKENIZED:
        raise UserError(f"{option} {language} is a pair of languages: give the second, {option} {match[2]}")


def find_code(language: str, codes: Sequence[str]) -> str:
    """Return the language code of a model for a language, given as this code or as an ISO code that fits only one.

    The ISO code of deu_Latn, de_DE and __de__ is de or deu. Raises UserError with close codes unless one code fits.
    """
    if language in codes:
        return language
    if not codes:
        raise UserError(f"language {quoted(language)}: the model has no language codes")
    if language in ("", SEVERAL):
        raise UserError(
            f"the model has {len(codes)} languages: give --source-lang and --target-lang, such as {codes[0]}"
        )
    name, part = _parts(language)
    found = [code for code in codes if _parts(code)[0] == name and part in ("", _parts(code)[1])]
    if len(found) == 1:
        return found[0]
    reason = f"language {quoted(language)} is not one of the model's {len(codes)} languages"
    if found:
        reason = f"language {quoted(language)} has several codes in this model"
    close = found or [code for code in codes if _parts(code)[0] == name]
    close += get_close_matches(language, codes, n=3, cutoff=0.5)
    raise UserError(f"{reason}: use {' or '.join(dict.fromkeys(close)) or 'a code such as ' + codes[0]}")


def language_of(language: str, codes: Sequence[str], default: str) -> str:
    """Return the language of a model's side, given as in `find_code`, or its `default` if it is not given.

    A model without codes has only its default. Raises UserError for a different language.
    """
    if not language:
        return default
    if not codes and short_code(language) != short_code(default):
        raise UserError(f"language {quoted(language)}: the model was trained for {quoted(default)}")
    return find_code(language, codes) if codes else default


def _parts(language: str) -> tuple[str, str]:
    first, *rest = re.split("[-_]", language.strip("_").lower())
    return short_code(first), "".join(rest)

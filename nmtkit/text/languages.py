"""The languages of the two sides of a dataset or a model."""

import re

from nmtkit.errors import UserError

SEVERAL = "mul"  #: ISO 639-2 code for text in several languages, marked by tags
UNSPACED = ("ja", "km", "lo", "my", "th", "zh")  #: languages without spaces between words
#: A letter of their scripts: Thai to Khmer, kana, and Han.
UNSPACED_LETTER = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
MAX_LANGUAGE = 255  #: characters, since languages are parts of file names
_SHORT_CODES = {  # ISO 639-2 and 639-3 -> 639-1, for languages with their own tokenization
    **{"deu": "de", "ger": "de", "eng": "en", "fra": "fr", "fre": "fr", "jpn": "ja", "khm": "km", "kor": "ko"},
    **{"lao": "lo", "mya": "my", "bur": "my", "tha": "th", "zho": "zh", "chi": "zh", "cmn": "zh"},
}


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
    code = re.split("[-_]", language)[0].lower()
    return _SHORT_CODES.get(code, code)


def check_single(option: str, language: str) -> None:
    """Raise UserError if the value of `option` is a pair of languages, such as en-de (but not en-DE, with a region)."""
    match = re.fullmatch("([a-z]{2,3})[-_]([a-z]{2,3})", language)
    if match and short_code(match[1]) != short_code(match[2]) in _SHORT_CODES.values():
        raise UserError(f"{option} {language} is a pair of languages: give the second, {option} {match[2]}")

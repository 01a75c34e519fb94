"""The languages of the two sides of a dataset or a model."""

import re

from nmtkit.errors import UserError

SEVERAL = "mul"  #: ISO 639-2: text of several languages, told apart by tags
UNSPACED = ("ja", "km", "lo", "my", "th", "zh")  #: languages without spaces between words
MAX_LANGUAGE = 255  #: characters: languages are parts of file names
_SHORT_CODES = {  # ISO 639-1 for ISO 639-2 and 639-3, of languages whose text is tokenized in a way of its own
    **{"deu": "de", "ger": "de", "eng": "en", "fra": "fr", "fre": "fr", "jpn": "ja", "khm": "km", "kor": "ko"},
    **{"lao": "lo", "mya": "my", "bur": "my", "tha": "th", "zho": "zh", "chi": "zh", "cmn": "zh"},
}


def is_language(name: object) -> bool:
    """Whether `name` can name a language, and so end a file name."""
    return isinstance(name, str) and 0 < len(name) <= MAX_LANGUAGE and "/" not in name and name.isprintable()


def is_direction(source: object, target: object) -> bool:
    """Whether the names can be those of the two sides: two languages, or `mul` on both sides."""
    return is_language(source) and is_language(target) and (source != target or source == SEVERAL)


def side_names(languages: tuple[str, str]) -> tuple[str, str]:
    """Names that differ for the two sides, for files and reports: the languages, or `source` and `target`."""
    return languages if languages[0] != languages[1] else ("source", "target")


def includes(languages: tuple[str, str], others: tuple[str, str]) -> bool:
    """Whether each of `languages` is `mul` or the same as its counterpart in `others`."""
    return all(own in (SEVERAL, other) for own, other in zip(languages, others, strict=True))


def short_code(language: str) -> str:
    """The code of a language without region and script, of two letters if known: de for de-AT, DE and deu_Latn."""
    code = re.split("[-_]", language)[0].lower()
    return _SHORT_CODES.get(code, code)


def check_single(option: str, language: str) -> None:
    """Raise UserError for a value of `option` that is a pair of languages, such as en-de; en-DE has a region."""
    match = re.fullmatch("([a-z]{2,3})[-_]([a-z]{2,3})", language)
    if match and short_code(match[1]) != short_code(match[2]) in _SHORT_CODES.values():
        raise UserError(f"{option} {language} is a pair of languages: give the second, {option} {match[2]}")

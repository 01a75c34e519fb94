"""Splits text into sentences, using the rules of sentencex and a few more."""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise, zip_longest

from nmtkit.text.languages import short_code

_SPACE = re.compile(r"[^\S \t\r\n]|[\ufeff\ud800-\udfff]")  # sentencex fails at some of these: it gets spaces instead
_ABBREVIATIONS = {  # and others after which a sentence continues, although sentencex ends it
    "ar": r"\w\.",  # د. أحمد
    "de": r"(?:Bd|Hrsg|(?i:ab|am|bis|das|dem|den|der|des|die|im|vom|zum|zur) \d+)\.",  # im 19. Jahrhundert
    "en": r"(?:St|[Aa]pprox|vs)\.",
    "es": r"(?:Sr|Sra|Sres|Srta)\.",
    "fr": r"(?:MM?|Mgr|p\. ex)\.",
    "hi": r"(?:\w|डॉ|प्रो|श्री|सु|कु|मो|पं)\.",
    "it": r"(?:Dott|Sigg?)\.",
    "ja": r".*[」』]",
    "pt": r"(?:Dra|Sra?)\.",
    "ru": r"(?:гг?|др|им|руб|см|стр|ул)\.",
    "th": r"\S{1,4}\.",  # in Thai, a full stop ends only abbreviations
}


def _ending(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?s:.*)(?<![^\W\d_]){pattern}\s*")


_UNFINISHED = {language: _ending(pattern) for language, pattern in _ABBREVIATIONS.items()}
_BEFORE_NUMBER = _ending(r"(?i:abs|art|chap|eqs?|figs?|kap|n[ro]s?|núm|pág|pag|pp?|secs?|vol|ziff)\.")
_NUMBER = re.compile(r"\W*(?:\d+|[a-z])[.)]\s*")  # number of a list item
_SHORT_WORD = re.compile(r"(?s:.*)\b[^\W\d_]{1,3}\.\s*")
_CLOSING_QUOTE = re.compile(r"(?s:.*)[\"”’»›“」』]\s*")
_END_INSIDE = re.compile(r"[.!?…。！？｡．؟۔।॥։።]\W*\w")  # every text of several sentences has one
_SPEAKER = re.compile(r"[^，。！？“”「」]{0,6}[说說道问問答喊叫想]")  # 她低声说, after a quotation


def split_sentences(text: str, language: str, protected: Sequence[tuple[int, int]] = ()) -> list[str]:
    """Split a text into sentences, parts whose concatenation is the text.

    White space belongs to the preceding part. No part is blank, unless the text is blank. The spans (start, end) in
    `protected` are never divided. Rules depend on `language`, a code such as de, pt_BR or jpn (default: English).
    """
    import sentencex  # imported late, since most commands never split text

    language = short_code(language)
    ends = [0, *accumulate(map(len, sentencex.segment(language, _SPACE.sub(" ", text))))]
    segments = [text[start:end] for start, end in pairwise(ends)]
    is_cased = next((letter for letter in text if letter.isalpha()), "a").isupper()
    parts, start = [], 0
    for end, (segment, following) in zip(ends[1:], zip_longest(segments, segments[1:], fillvalue=""), strict=True):
        is_inside = any(first < end < last for first, last in protected)
        if not following or not (is_inside or _continues(text[start:end], segment, following, language, is_cased)):
            parts.append(text[start:end])
            start = end
    return parts


def has_several_sentences(text: str, language: str) -> bool:
    """Whether `split_sentences` would divide a text."""
    return _END_INSIDE.search(text) is not None and len(split_sentences(text.strip(), language)) > 1


def _continues(part: str, segment: str, following: str, language: str, is_cased: bool) -> bool:
    """Whether the sentence in `part`, which ends with `segment` of sentencex, continues in the following segment."""
    if not _has_word(part) or not _has_word(following) or _NUMBER.fullmatch(part):
        return True
    if language in _UNFINISHED and _UNFINISHED[language].fullmatch(segment):
        return not (language == "ja" and following.startswith(("「", "『")))
    if following[0].isdigit():
        return _BEFORE_NUMBER.fullmatch(segment) is not None
    if language == "zh":
        return _CLOSING_QUOTE.fullmatch(segment) is not None and _SPEAKER.match(following) is not None
    is_short = is_cased and _SHORT_WORD.fullmatch(segment)
    return following[0].islower() and bool(is_short or _CLOSING_QUOTE.fullmatch(segment))


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))

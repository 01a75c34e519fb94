"""Stand-ins: the model is given a symbol or a name for text that it must not change, or cannot spell.

Models trained with `nmt-preprocess --placeholders` copy the symbols. Other models are given names, and the search
requires the name of a sentence that has only one: where text replaced nouns of Multi30k, BLEU was 33.6 instead of 28.7
with the text itself, and with two names in a sentence 27.9 instead of 24.8.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from unicodedata import category

from nmtkit.decoding.requests import Request
from nmtkit.text.languages import UNSPACED_LETTER
from nmtkit.text.segment import MAX_TAGS, Segment, Tag, has_letters, is_apart, protect
from nmtkit.text.tokenizer import SPACE, Tokenizer
from nmtkit.text.user_symbols import PLACEHOLDERS
from nmtkit.text.vocabulary import UNK, Vocabulary

_NAMES = ("Peter", "Maria", "Anna", "Martin", "Daniel", "Laura", "Robert", "Thomas", "Julia")
_LETTER = r"[^\W_\u0e00-\uffff]"  # or digit, of a script with spaces


class StandIns:
    """Chooses stand-ins, symbols or names, for the protected spans and the unknown words of requests."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self._source = source
        lacks_symbols = any(UNK in vocab.to_ids(PLACEHOLDERS) for vocab in (source.vocab, target.vocab))
        both = zip(source.encode(_NAMES), target.encode(_NAMES), _NAMES, strict=True)
        spelled = [(len(own), len(theirs), name) for own, theirs, name in both if UNK not in (*own, *theirs)]
        self._has_symbols = not lacks_symbols
        self._texts = [name for *_, name in sorted(spelled)] if lacks_symbols else PLACEHOLDERS
        self._can_lack = source.kind != SPACE and source.vocab.to_ids(["<0x0A>"]) == [UNK]
        self._ids_of = functools.cache(lambda character: source.encode([character])[0])
        self._spelled: set[str] = set()  # characters found so far that are pieces

    def of(self, request: Request, copies: bool) -> Request:
        """Return the request with stand-ins; with `copies`, also for words that the vocabulary cannot spell."""
        if request.ids is not None or request.target is not None:
            return request
        segment, text = request.segment, request.text
        if copies and (pattern := self._unknown(text)):
            segment = protect(segment or Segment((text,)), pattern)
        if segment is None or not 0 < len(segment.protected) < MAX_TAGS:
            return request
        free = iter([stand_in for stand_in in self._texts if stand_in.casefold() not in text.casefold()])
        parts, around = list(segment.parts), ["", *segment.parts, ""]
        for number, part in enumerate(parts):
            if isinstance(part, Tag) and part.is_protected and (self._has_symbols or has_letters(part.text)):
                left, right = (other if isinstance(other, str) else "" for other in around[number : number + 3 : 2])
                if is_apart(f"{left}x{right}", len(left), len(left) + 1):
                    parts[number] = replace(part, sent=next(free, ""))
        segment = Segment(tuple(parts), segment.movable)
        return replace(request, text=segment.text, segment=segment)

    def required(self, request: Request) -> list[str]:
        """Return the name that the translation must contain; empty for several, whose order the search would lose."""
        segment = None if self._has_symbols else request.segment
        names = [sent for sent in sent_of(segment) if sent in request.text] if segment else []
        return names if len(names) == 1 else []

    def _unknown(self, text: str) -> re.Pattern[str] | None:
        """A pattern of the words that consist of unknown characters; it may also match invisible ones inside."""
        characters = sorted(set(text) - self._spelled) if self._can_lack else []
        self._spelled.update(one for one in characters if UNK not in (ids := self._ids_of(one)) and ids)
        unknown = [character for character in characters if UNK in self._ids_of(character)]
        if not unknown:
            return None
        joiners = [one for one in characters if not self._ids_of(one) and not one.isspace()]
        run, one = (f"[{re.escape(''.join(some))}]" for some in ([*unknown, *joiners], unknown))
        spaced = "" if any(map(UNSPACED_LETTER.match, unknown)) else r"\u0e00-\uffff"
        symbols = [character for character in unknown if category(character)[0] == "S"]  # emoji may touch words
        alone = f"|[{re.escape(''.join([*symbols, *joiners]))}]+" if symbols else ""
        return re.compile(rf"(?<![^\W_{spaced}]){one}{run}*(?![^\W_{spaced}]){alone}")


def sent_of(segment: Segment) -> list[str]:
    """Return the stand-ins in a segment, in order."""
    return [part.sent for part in segment.parts if isinstance(part, Tag) and part.sent]


def once(texts: Sequence[str], segment: Segment | None, vocab: Vocabulary) -> list[str]:
    """Return the texts with each stand-in of a segment at most once, and without other symbols.

    Names lose their endings, as in `Marias`. A part of a compound, as in `Maria-Tag`, becomes a separate word, unless
    the source also joins a protected span to a word.
    """
    stand_ins = sent_of(segment) if segment else []
    if not stand_ins and UNK in vocab.to_ids(PLACEHOLDERS[:1]):  # no symbols
        return list(texts)
    seen = {*PLACEHOLDERS} - {*stand_ins}

    def replaced(match: re.Match[str]) -> str:
        stand_in = match[2] or match[4]
        is_first = stand_in not in seen
        seen.add(stand_in)
        before, after = " " if match[1] == "-" else match[1], " " if match[3] else ""
        return before + stand_in + after if is_first else after

    names = "|".join(stand_in for stand_in in stand_ins if stand_in not in PLACEHOLDERS) or "(?!)"
    is_joined = segment and re.search(rf"\w-(?:{names})|(?:{names})-\w", segment.text)
    hyphen = "(?!)" if is_joined else "-"
    name = rf"(?<!{_LETTER})({names}){_LETTER}{{,2}}(?:['’]{_LETTER}+)?(?!{_LETTER})({hyphen}(?=\w))?"
    pattern = re.compile(rf"(\s*|(?<=\w){hyphen})(?:{name}|({'|'.join(PLACEHOLDERS)}))")
    return [pattern.sub(replaced, text) for text in texts]

"""The tokenization of Moses's tokenizer.perl, the basis of published BLEU scores of WMT.

Letters, numbers and spaces are Unicode classes, as in Perl. Escapes (&apos; for ') are omitted, because each stands for
one character and does not change counts.
"""

from collections.abc import Sequence
from functools import lru_cache

import regex

_LETTERS = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"
_TITLES = (
    "Adj Adm Adv Asst Bart Bldg Brig Bros Capt Cmdr Col Comdr Con Corp Cpl DR Dr Ens Gen Gov Hon Hosp Insp Lt MM MR "
    "MRS MS Maj Messrs Mlle Mme Mr Mrs Ms Msgr Op Ord Pfc Ph Prof Pvt Rep Reps Res Rev Rt Sen Sens Sfc Sgt Sr St "
    "Supt Surg"
)
_ROMAN = "I II III IV V VI VII VIII IX X XI XII XIII XIV XV XVI XVII XVIII XIX XX"

# Words that keep their period within a sentence. In German, these include numbers, as in "am 3. Mai".
_ABBREVIATIONS = {
    "de": f"{_LETTERS} {_LETTERS.lower()} {_ROMAN} {_ROMAN.lower()} {_TITLES} {' '.join(map(str, range(1, 100)))} "
    "Art BSE Buchst Ca Chr Co D.h Dkr I.F Ltd Mio Mrd MwSt No Nos Nr SA Std Zt b.A bzgl bzw c.-à-d ca d.J d.h dergl "
    "dgl etc evtl ff g.U g.g.A ggf i.H.v jun k.o m.E o.ä pp s.p.a sen sog sogen spp u.E u.U u.a u.s.w u.ä usf usw v "
    "vgl vs z.B z.T z.Zt zzt",
    "en": f"{_LETTERS} {_TITLES} Drs Hr Nos Nr v vs i.e rev e.g Rs Jan Feb Mar Apr Jun Jul Aug Sep Oct Nov Dec",
    "fr": f"{_LETTERS} {_LETTERS.lower().replace('a ', '', 1)} A.C.N A.M C.N C.N.S C.P.I C.Q.F.D C.S E.V L.D LL.AA "
    "LL.AA.II LL.AA.RR LL.AA.SS LL.EE LL.MM LL.MM.II.RR MM N.B N.D N.D.A N.D.L.R N.D.T N.P.A.I N.S NN.SS P.S R.-V "
    "R.A.S R.I.P R.P S.A S.A.I S.A.R S.A.S S.E S.M S.M.I.R S.S SS T.S.V.P X.O Z.I al ann apr art auj av boul c.-à-d "
    "ca cf ch.-l chap contr dir e.g env etc ex fasc fig fr fém hab i.e ibid id inf lib loc.cit masc ms n/réf p.c.c "
    "p.ex p.j pl pp sec sect sing sq sqq suiv sup suppl tél vb vol vs éd B.P",
}
_NONBREAKING = {language: frozenset(words.split()) for language, words in _ABBREVIATIONS.items()}
_BEFORE_NUMBERS = {"en": frozenset({"No", "Art", "pp"})}  # words that keep their period before a number
LANGUAGES = tuple(_ABBREVIATIONS)

_SPACE = regex.compile(r"\p{White_Space}+")
_CONTROL = regex.compile(r"[\x00-\x1f]")
_SIGN = regex.compile(r"([^\p{Alphabetic}\p{Nd}\p{White_Space}.'`,-])")
_DOTS = regex.compile(r"\.{2,}")
_DOT = "\0"  # replaces each of several dots in a row, which stay together

_COMMAS = [
    (regex.compile(r"(\P{N}),"), r"\1 , "),
    (regex.compile(r",(\P{N})"), r" , \1"),
    (regex.compile(r"(\p{N}),$"), r"\1 ,"),
]
_APOSTROPHES = {
    "de": [(regex.compile(r"'"), r" ' ")],
    "en": [  # it 's
        (regex.compile(r"(\P{Alphabetic})'(\P{Alphabetic})"), r"\1 ' \2"),
        (regex.compile(r"([^\p{Alphabetic}\p{N}])'(\p{Alphabetic})"), r"\1 ' \2"),
        (regex.compile(r"(\p{Alphabetic})'(\P{Alphabetic})"), r"\1 ' \2"),
        (regex.compile(r"(\p{Alphabetic})'(\p{Alphabetic})"), r"\1 '\2"),
        (regex.compile(r"(\p{N})'(s)"), r"\1 '\2"),
    ],
    "fr": [  # l' homme
        (regex.compile(r"(\P{Alphabetic})'(\P{Alphabetic})"), r"\1 ' \2"),
        (regex.compile(r"(\P{Alphabetic})'(\p{Alphabetic})"), r"\1 ' \2"),
        (regex.compile(r"(\p{Alphabetic})'(\P{Alphabetic})"), r"\1 ' \2"),
        (regex.compile(r"(\p{Alphabetic})'(\p{Alphabetic})"), r"\1' \2"),
    ],
}
_LETTER = regex.compile(r"\p{Alphabetic}")
_DIGIT = regex.compile(r"[0-9]")
_LOWER = regex.compile(r"\p{Lowercase}")
_CLOSING = regex.compile(r"\.' ?$")
_QUOTES = str.maketrans(dict.fromkeys("“”„‟«»", '"'))
_COMPOUND = regex.compile(r"(\S)-(\S)")


@lru_cache(maxsize=1 << 16)  # each metric and system tokenizes the same references again
def tokenize(line: str, language: str) -> str:
    """Tokenize a line, with spaces between tokens. `language` is one of LANGUAGES, and determines abbreviations."""
    text = _SPACE.sub(" ", _CONTROL.sub("", _SPACE.sub(" ", f" {line} "))).strip(" ")
    text = _SIGN.sub(r" \1 ", text)
    text = _DOTS.sub(lambda dots: f" {_DOT * len(dots[0])} ", text)
    for pattern, replacement in (*_COMMAS, *_APOSTROPHES[language]):
        text = pattern.sub(replacement, text)
    words = text.rstrip(" ").split(" ")
    words = [_split_period(words, index, language) for index in range(len(words))]
    return " ".join(_CLOSING.sub(" . '", " ".join(words)).replace(_DOT, ".").split())


def plain_quotes(line: str) -> str:
    """Replace “ ” „ ‟ « » with the ASCII quote ", like the reference of Tensor2Tensor (its issue 317 on GitHub)."""
    return line.translate(_QUOTES)


def split_compounds(tokens: str) -> str:
    """Make hyphens within words separate tokens, like get_ende_bleu.sh of Tensor2Tensor."""
    return str(_COMPOUND.sub(r"\1 ##AT##-##AT## \2", tokens))


def _split_period(words: Sequence[str], index: int, language: str) -> str:
    """Return the word at `index`, with a space before its period if it ends a sentence."""
    word = words[index]
    stem = word.removesuffix(".")
    if stem in (word, ""):
        return word
    following = words[index + 1] if index + 1 < len(words) else None
    stays = following is not None and (
        ("." in stem and _LETTER.search(stem))
        or stem in _NONBREAKING[language]
        or _LOWER.match(following)
        or (stem in _BEFORE_NUMBERS.get(language, ()) and _DIGIT.match(following))
    )
    return word if stays else f"{stem} ."

"""BLEU and chrF as sacreBLEU and Moses compute them, each with a signature."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmtkit.decoding import moses
from nmtkit.log import logger
from nmtkit.tokenizer import count_segmented, join_subwords
from nmtkit.vocab import SPECIALS, UNK
from nmtkit.wording import counted

# Languages without spaces, in which the standard tokenization finds no words. sacreBLEU's own tokenizer for Japanese
# needs further packages; characters need none, and the signature names them.
_TOKENIZATION = {"zh": "zh", **dict.fromkeys(("ja", "th", "lo", "km", "my"), "char")}


@dataclass(frozen=True)
class Score:
    """A corpus score from 0 to 100; `text` is sacreBLEU's line with the signature and the components."""

    value: float
    text: str


def every_score(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Iterator[tuple[Score, str]]:
    """All scores of detokenized text in `language`, each with a description of the scores it is comparable with."""
    language = _without_region(language)
    if language in moses.LANGUAGES:
        yield (
            moses_bleu(hypotheses, references, language),
            "tokenized BLEU, by tokenizer.perl and multi-bleu.perl: the paper's for En-Fr, and those of its time",
        )
        yield (
            moses_bleu(hypotheses, references, language, split_compounds=True),
            "the same after compound splitting, by get_ende_bleu.sh: most papers' for En-De",
        )
    if language == "de":
        yield (
            moses_bleu(hypotheses, references, language, split_compounds=True, plain_quotes=True),
            "the same with \" for all double quotes: reportedly the reference of the paper's En-De",
        )
    yield bleu(hypotheses, references, language), "sacreBLEU: comparable with the same signature only"
    yield chrf(hypotheses, references), "chrF, which uses no tokenization: comparable with the same signature"


def bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """Cased sacreBLEU of detokenized text, with the tokenization of the language."""
    tokenization = _TOKENIZATION.get(_without_region(language), "13a")
    return _score(BLEU(tokenize=tokenization, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """chrF2 of detokenized text."""
    return _score(CHRF(), hypotheses, references)


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU on the words between spaces, as fairseq computes it.

    Subwords are joined on both sides, an unknown word of a reference matches nothing, and nothing is smoothed.
    """
    unknown = SPECIALS[UNK]
    hypotheses = [join_subwords(hypothesis) for hypothesis in hypotheses]
    known = [join_subwords(reference).replace(unknown, f"<{unknown}>") for reference in references]
    return _score(BLEU(tokenize="none", smooth_method="none", force=True), hypotheses, known)


def moses_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    split_compounds: bool = False,
    plain_quotes: bool = False,
) -> Score:
    """BLEU of detokenized text as Moses's multi-bleu.perl computes it, after the tokenization of its tokenizer.perl.

    `plain_quotes` unifies double quotes before the tokenization, `split_compounds` splits at hyphens after it, on both
    sides. `language` is one of moses.LANGUAGES. The signature is sacreBLEU's, with a name for the tokenization.
    """

    def tokens(line: str) -> str:
        text = moses.tokenize(moses.plain_quotes(line) if plain_quotes else line, language)
        return moses.split_compounds(text) if split_compounds else text

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    score = _score(metric, [tokens(line) for line in hypotheses], [tokens(line) for line in references])
    name = f"tok:moses-{language}{'-compounds' * split_compounds}{'-quotes' * plain_quotes}"
    return Score(score.value, score.text.replace("tok:none", name))


def warn_of_subwords(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Warn if either side has subwords, where the scores count words."""
    for side, lines in (("translation", hypotheses), ("reference", references)):
        if marked := count_segmented(lines):
            logger.warning(
                "subword marks (@@ or ▁) in %d of %s of the %s: the scores count words, join the subwords first",
                *(marked, counted(len(lines), "line"), side),
            )


def _without_region(language: str) -> str:
    """de for de-AT and de_AT."""
    return re.split("[-_]", language)[0]


def _score(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    result = metric.corpus_score(hypotheses, [references])
    return Score(result.score, result.format(signature=str(metric.get_signature())))

"""BLEU and chrF as sacreBLEU computes them, each with the signature that makes the number comparable."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmtkit.tokenizer import join_subwords
from nmtkit.vocab import SPECIALS, UNK

# Languages written without spaces, where the standard tokenization finds no words. sacreBLEU's own choice for
# Japanese needs packages beside it; characters need none, and the signature says which it was.
_TOKENIZATION = {"zh": "zh", **dict.fromkeys(("ja", "th", "lo", "km", "my"), "char")}


@dataclass(frozen=True)
class Score:
    """A corpus score on the scale from 0 to 100; `text` is sacreBLEU's line with the signature and the parts."""

    value: float
    text: str


def bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """sacreBLEU of detokenized text in `language`, cased, with the tokenization that suits the language."""
    return _score(
        BLEU(tokenize=_TOKENIZATION.get(re.split("[-_]", language)[0], "13a"), force=True), hypotheses, references
    )


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """chrF2 of detokenized text."""
    return _score(CHRF(), hypotheses, references)


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU on the words between spaces, as fairseq counts it: subwords are joined on both sides, and an unknown word of
    a reference matches nothing."""
    unknown = SPECIALS[UNK]
    hypotheses = [join_subwords(hypothesis) for hypothesis in hypotheses]
    known = [join_subwords(reference).replace(unknown, f"<{unknown}>") for reference in references]
    return _score(BLEU(tokenize="none", force=True), hypotheses, known)


def _score(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    result = metric.corpus_score(hypotheses, [references])
    return Score(result.score, result.format(signature=str(metric.get_signature())))

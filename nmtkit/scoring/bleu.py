"""BLEU and chrF as sacreBLEU and Moses compute them, each with a signature."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.tokenizers.tokenizer_base import BaseTokenizer

from nmtkit.console.log import logger
from nmtkit.errors import RunError, UserError
from nmtkit.scoring import moses
from nmtkit.text.languages import short_code
from nmtkit.text.tokenizer import count_segmented, join_subwords
from nmtkit.text.vocabulary import SPECIALS, UNK
from nmtkit.wording import counted


class Chrf(CHRF):
    """sacreBLEU's chrF, with scores as float, because confidence intervals cannot average a mixture with float32."""

    def _compute_score_from_stats(self, stats: list[int]) -> Any:
        result = super()._compute_score_from_stats(stats)
        result.score = float(result.score)
        return result


Metric = BLEU | CHRF

# Tokenizations for languages without spaces, in which the standard one finds no words, and for Korean. sacreBLEU has
# the same defaults, except `char`.
_TOKENIZATION = {
    **{"ja": "ja-mecab", "ko": "ko-mecab", "zh": "zh", "yue": "zh"},
    **dict.fromkeys(("th", "lo", "km", "my"), "char"),
}
_STANDARD = "13a"
_WITHOUT_PACKAGES = _TOKENIZATION | {"ja": "char", "ko": _STANDARD}
_EXTRAS = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}  # pip requirement of a tokenization


@dataclass(frozen=True)
class Score:
    """A corpus score from 0 to 100."""

    value: float
    signature: str  #: name of the metric, then sacreBLEU's signature: BLEU|nrefs:1|…
    components: str = ""  #: for BLEU: n-gram precisions, brevity penalty and lengths
    mean: float | None = None  #: mean of bootstrap resamples
    interval: float | None = None  #: half the width of the 95 % confidence interval around the mean
    p_value: float | None = None  #: for the difference from the baseline

    @property
    def text(self) -> str:
        """Format signature, score and components in one line, like sacreBLEU."""
        interval = f" (μ = {self.estimate})" if self.estimate else ""
        return f"{self.signature} = {self.value:.2f}{interval} {self.components}".rstrip()

    @property
    def estimate(self) -> str:
        """Format the mean with its 95 % confidence interval, or "" without one."""
        return "" if self.mean is None else f"{self.mean:.2f} ± {self.interval:.2f}"


def published_metrics(language: str, tokenize: str | None = None) -> Iterator[tuple[Metric, str]]:
    """Yield the metrics that papers use for `language`, each with a note on which scores it can be compared with.

    `tokenize` is sacreBLEU's tokenization; the default depends on the language. Raises UserError if it is not
    installed.
    """
    language = short_code(language)
    if language in moses.LANGUAGES:
        yield (
            moses_metric(language),
            "tokenized BLEU, by tokenizer.perl and multi-bleu.perl: as in the paper for En-Fr, and papers of its time",
        )
        yield (
            moses_metric(language, split_compounds=True),
            "tokenized BLEU after compound splitting, by get_ende_bleu.sh: as in most papers for En-De",
        )
    if language == "de":
        yield (
            moses_metric(language, split_compounds=True, plain_quotes=True),
            "tokenized BLEU after compound splitting, with plain double quotes: reportedly as in the paper for En-De",
        )
    tokenize = tokenize or _TOKENIZATION.get(language, _STANDARD)
    yield sacrebleu_metric(tokenize), "sacreBLEU: comparable only if the signatures are equal"
    yield Chrf(), "chrF, without tokenization: comparable only if the signatures are equal"


def sacrebleu_metric(tokenize: str) -> BLEU:
    """Create cased BLEU with a tokenization of sacreBLEU. Raises UserError if it is not installed, and RunError if its
    model cannot be downloaded or read."""
    try:
        return BLEU(tokenize=tokenize, force=True)
    except RuntimeError as error:
        if tokenize not in _EXTRAS:
            raise
        raise UserError(
            f"tokenization {tokenize} is not installed: pip install '{_EXTRAS[tokenize]}', or use --tokenize char"
        ) from error
    except OSError as error:  # a subword model cannot be downloaded or read
        raise RunError(
            f"cannot download or read sacreBLEU's model for --tokenize {tokenize}: {error}; "
            "connect to the internet, or use a different tokenization"
        ) from error


def moses_metric(language: str, split_compounds: bool = False, plain_quotes: bool = False) -> BLEU:
    """Create the BLEU that Moses computes from detokenized text, with tokenizer.perl and multi-bleu.perl.

    `plain_quotes` unifies double quotes before the tokenization; `split_compounds` splits at hyphens after it, on both
    sides. `language` is one of moses.LANGUAGES. The signature is sacreBLEU's, with a name for the tokenization.
    """
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    metric.tokenizer = _MosesTokenizer(language, split_compounds, plain_quotes)
    metric.tokenizer_signature = metric.tokenizer.signature()
    return metric


class _MosesTokenizer(BaseTokenizer):
    def __init__(self, language: str, split_compounds: bool, plain_quotes: bool) -> None:
        self.language, self.split_compounds, self.plain_quotes = language, split_compounds, plain_quotes

    def __call__(self, line: str) -> str:
        tokens = moses.tokenize(moses.plain_quotes(line) if self.plain_quotes else line, self.language)
        return moses.split_compounds(tokens) if self.split_compounds else tokens

    def signature(self) -> str:
        return f"moses-{self.language}{'-compounds' * self.split_compounds}{'-quotes' * self.plain_quotes}"


def score(metric: Metric, hypotheses: Sequence[str], references: Sequence[Sequence[str]], resamples: int = 1) -> Score:
    """Score detokenized text against one or more references, with a confidence interval from `resamples` if more than
    1."""
    result = metric.corpus_score(hypotheses, references, n_bootstrap=resamples)
    signature = str(metric.get_signature())
    values = json.loads(result.format(width=12, signature=signature, is_json=True))
    return Score(
        result.score,
        f"{result.name}|{signature}",
        values.get("verbose_score", ""),
        values.get("confidence_mean"),
        values.get("confidence_var"),
    )


def bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """Compute cased sacreBLEU of detokenized text, tokenized for the language without extra packages."""
    tokenize = _WITHOUT_PACKAGES.get(short_code(language), _STANDARD)
    return score(sacrebleu_metric(tokenize), hypotheses, [references])


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute chrF2 of detokenized text."""
    return score(Chrf(), hypotheses, [references])


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute BLEU on the words between spaces, like fairseq, without smoothing. Subwords are joined on both sides, and
    an unknown word in a reference matches nothing."""
    unknown = SPECIALS[UNK]
    hypotheses = [join_subwords(hypothesis) for hypothesis in hypotheses]
    known = [join_subwords(reference).replace(unknown, f"<{unknown}>") for reference in references]
    return score(BLEU(tokenize="none", smooth_method="none", force=True), hypotheses, [known])


def warn_of_subwords(name: str, lines: Sequence[str]) -> None:
    """Warn if a text contains subwords, because scores count words."""
    if marked := count_segmented("\n".join(lines)):
        logger.warning(
            "subword marks (@@ or ▁) in %d of %s of %s: scores count words, so join the subwords first",
            *(marked, counted(len(lines), "line"), name),
        )

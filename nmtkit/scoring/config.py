"""The options of nmt-score."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nmtkit.config import Config, option
from nmtkit.errors import UserError
from nmtkit.text.languages import check_single

TOKENIZATIONS = (  #: of sacreBLEU
    *("13a", "intl", "zh", "char", "ja-mecab", "ko-mecab", "flores101", "flores200", "spBLEU-1K", "none"),
)


@dataclass(frozen=True)
class ScoreConfig(Config):
    heading: ClassVar[str] = "Scores"

    reference: tuple[Path, ...] = option(
        (), metavar="FILE", help="Reference, one line per line of the translation. Repeat for several references."
    )
    target_lang: str = option(
        "",
        short="t",
        metavar="LANG",
        help="Language of the translation, such as de, which selects the tokenizer. Moses's tokenizer supports de, en "
        "and fr.",
    )
    tokenize: str | None = option(
        None,
        choices=TOKENIZATIONS,
        unset="by language: ja-mecab, ko-mecab, zh, char or 13a",
        help="Tokenizer of sacreBLEU's BLEU. ja-mecab and ko-mecab need pip install 'sacrebleu[ja]' or "
        "'sacrebleu[ko]'. flores101, flores200 and spBLEU-1K download a model.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.reference:
            raise UserError("--reference is missing: give the file of the reference")
        if not self.target_lang:
            raise UserError("--target-lang is missing")
        check_single("--target-lang", self.target_lang)


@dataclass(frozen=True)
class SignificanceConfig(Config):
    heading: ClassVar[str] = "Confidence and significance"

    confidence: bool = option(False, help="Print 95 % confidence intervals from bootstrap resampling.")
    paired_bs: bool = option(False, help="Compare each system with the first one by paired bootstrap resampling.")

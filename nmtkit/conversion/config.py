"""The options of nmt-export, and those of importers."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nmtkit.config import Config, option
from nmtkit.errors import UserError
from nmtkit.text.languages import is_direction, is_language
from nmtkit.wording import quoted

GROWING = ("add_characters", "add_language", "like")  #: options of every import
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")


@dataclass(frozen=True)
class ExportConfig(Config):
    heading: ClassVar[str] = "Result"

    quantization: str | None = option(
        None, choices=QUANTIZATIONS, unset="float32", help="With --to ctranslate2: number format of the weights."
    )
    dataset: Path | None = option(
        None,
        metavar="DATASET",
        help="With --to shortlist: dataset whose training text is aligned. Its vocabulary must be that of CHECKPOINT.",
    )
    translations: int = option(
        50,
        min=1,
        max=10**6,
        metavar="K",
        help="With --to shortlist: maximum number of target tokens for each source token.",
    )
    frequent: int = option(
        100,
        min=0,
        max=10**6,
        metavar="F",
        help="With --to shortlist: number of most frequent target tokens that are always allowed.",
    )
    binary: bool = option(False, help="With --to marian: write model.bin instead of model.npz.")
    shortlist: Path | None = option(
        None, metavar="FILE", help="With --to bergamot: include this shortlist, written by --to shortlist."
    )
    int8: Path | None = option(
        None,
        metavar="FILE",
        help="With --to bergamot: quantize to int8, with the ranges of activations measured on this "
        "source text. A few hundred lines suffice.",
    )
    page: bool = option(False, help="With --to bergamot: add index.html, a page that translates in the browser.")
    force: bool = option(False, help="Replace an earlier export at --output.")


@dataclass(frozen=True)
class ImportConfig(Config):
    """Options for languages and tokenizer files that an imported model does not contain."""

    heading: ClassVar[str] = "Source"

    source_lang: str | None = option(
        None, short="s", metavar="CODE", unset="the model's", help="Source language, such as en."
    )
    target_lang: str | None = option(None, short="t", metavar="CODE", unset="the model's", help="Target language.")
    dict: tuple[Path, ...] = option(
        (),
        count=2,
        metavar="SOURCE TARGET",
        help="fairseq: dictionaries of source and target. Default: dict.CODE.txt next to the model. Marian: "
        "vocabularies, .spm or .yml. Default: as in decoder.yml next to the model.",
    )
    bpe_codes: Path | None = option(
        None,
        metavar="FILE",
        help="fairseq: BPE codes of both languages. Default: bpecodes or code next to the model.",
    )
    spm_model: tuple[Path, ...] = option(
        (),
        metavar="FILE",
        help="fairseq, CTranslate2, Marian, OpenNMT-py, Eole, NLLB, mBART: SentencePiece model of both languages. "
        "Repeat for separate models, source first.",
    )

    add_characters: tuple[Path, ...] = option(
        (),
        metavar="FILE",
        help="Add the characters of this text that the vocabulary lacks, such as those of a new script. Repeatable.",
    )
    add_language: str | None = option(
        None,
        metavar="CODE",
        help="Add this language code or tag to a multilingual model, such as gsw_Latn or '<2gsw>'. Needs --like.",
    )
    like: str | None = option(
        None, metavar="CODE", help="With --add-language: the code of a similar language, whose embedding is copied."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.add_language and not self.like:
            raise UserError("--add-language CODE needs --like CODE, a similar language of the model")

    @property
    def grows(self) -> bool:
        """Whether an option extends the vocabulary, which works for nmtkit checkpoints too."""
        return bool(self.add_characters or self.add_language)

    def paths(self) -> tuple[Path, ...]:
        """The paths of all given files."""
        return (*self.dict, *filter(None, [self.bpe_codes]), *self.spm_model, *self.add_characters)

    def languages(self, source: object = None, target: object = None) -> tuple[str, str]:
        """Return the languages of the options, else of the model. Raises UserError if missing, malformed or equal."""
        source, target = self.source_lang or source, self.target_lang or target
        for language in (source, target):
            if language is not None and not is_language(language):
                shown = quoted(language)
                raise UserError(f"{shown} is not a language: give --source-lang and --target-lang")
        if not isinstance(source, str) or not isinstance(target, str):
            raise UserError("the languages are unknown: give --source-lang and --target-lang")
        if not is_direction(source, target):
            raise UserError(f"both languages are {source!r}: give --source-lang and --target-lang")
        return source, target

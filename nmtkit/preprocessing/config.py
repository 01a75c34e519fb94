"""The options of nmt-preprocess."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nmtkit.config import Config, option
from nmtkit.errors import UserError
from nmtkit.text.languages import is_direction, is_language
from nmtkit.text.spm_training import NORMALIZATIONS
from nmtkit.text.tokenizer import LEARNED_KINDS, SENTENCEPIECE, SPACE
from nmtkit.text.user_symbols import PLACEHOLDERS, check_symbols
from nmtkit.text.vocabulary import SPECIALS

# Subwords for a corpus of up to this many pairs. Small models learn little about rare subwords.
_VOCAB_SIZES = {1_000: 1_000, 5_000: 2_000, 15_000: 4_000, 60_000: 6_000, 400_000: 10_000, 3_000_000: 16_000}
_LARGE_VOCAB_SIZE = 32_000
BYTE_FALLBACK_SIZE = 1_000  #: smaller vocabularies have no byte pieces by default, since these would fill them
_SIZE = re.compile(r"(\d{1,18})([KMGT]?)", re.ASCII | re.IGNORECASE)

# Reasons for dropping a pair, in order, and the options that control each.
REASONS: Mapping[str, tuple[str, ...]] = {
    "empty": (),
    "identical": ("drop_identical",),
    "script": ("source_script", "target_script"),
    "overlap": ("exclude_overlap",),
    "language": ("min_langid",),
    "duplicate": ("dedup",),
    "too long": ("max_length",),
    "ratio": ("max_ratio",),
}


@dataclass(frozen=True)
class FilesConfig(Config):
    heading: ClassVar[str] = "Files"

    source_lang: str = option("", short="s", metavar="LANG", help="Source language, the suffix of its files.")
    target_lang: str = option("", short="t", metavar="LANG", help="Target language, the suffix of its files.")
    trainpref: tuple[str, ...] = option(
        (),
        metavar="PREFIX",
        help="Training text: PREFIX.LANG for both languages, plain or .gz, .xz, .bz2; or a .tsv (source, tab, target) "
        "or .tmx file. Repeat to join corpora. With -s mul -t mul, for multilingual text with tags: PREFIX.source "
        "and PREFIX.target.",
    )
    validpref: tuple[str, ...] = option(
        (), metavar="PREFIX", help="Validation text. Repeat for the splits valid1, valid2, …"
    )
    testpref: tuple[str, ...] = option((), metavar="PREFIX", help="Test text. Repeat for the splits test1, test2, …")
    destdir: Path = option(
        Path("data-bin"), metavar="DIR", help="Folder of the dataset to write. An existing dataset is replaced."
    )
    workers: int = option(1, min=1, max=1024, help="Worker processes. The result does not depend on their number.")
    shard_size: str | None = option(
        None,
        metavar="SIZE",
        help="Split the data into files of at most SIZE bytes, such as 500M or 4G (powers of 1024). An interrupted "
        "command then resumes after the last complete file.",
    )
    report: Path | None = option(
        None, metavar="FILE", help="Write an HTML report on the training text: dropped pairs, lengths, vocabulary."
    )
    source_tag: str = option(
        "",
        metavar="TAG",
        help="Prepend this tag, such as '<2de>' for the target language, to every source line. It must be one token, "
        "see --user-symbol.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, language in (("--source-lang", self.source_lang), ("--target-lang", self.target_lang)):
            if not language:
                raise UserError(f"{name} is missing")
            if not is_language(language):
                raise UserError(f"{name} {language!r}: a language must be usable as the suffix of a file name")
        if not is_direction(*self.languages):
            raise UserError(f"--source-lang and --target-lang are both {self.source_lang}: only mul can be used twice")
        _ = self.shard_bytes  # raises UserError if invalid
        if not (self.trainpref or self.validpref or self.testpref):
            raise UserError("no text: give --trainpref, --validpref or --testpref")

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_lang, self.target_lang

    @property
    def shard_bytes(self) -> int | None:
        """The value of --shard-size in bytes; None without the option. Raises UserError if it is malformed."""
        if self.shard_size is None:
            return None
        size = _SIZE.fullmatch(self.shard_size)
        if size is None or not int(size[1]):
            raise UserError(f"--shard-size {self.shard_size!r} is not a size: give one in bytes, such as 500M or 4G")
        return int(size[1]) << 10 * (" KMGT".index(size[2].upper() or " "))

    @property
    def splits(self) -> dict[str, tuple[str, ...]]:
        """Return the file prefixes of each split: train, valid, valid1, …, test, test1, …"""
        splits = {"train": self.trainpref} if self.trainpref else {}
        for name, prefixes in (("valid", self.validpref), ("test", self.testpref)):
            for number, prefix in enumerate(prefixes):
                splits[f"{name}{number or ''}"] = (prefix,)
        return splits


@dataclass(frozen=True)
class VocabularyConfig(Config):
    heading: ClassVar[str] = "Vocabulary"

    tokenizer: str = option(
        SENTENCEPIECE,
        choices=LEARNED_KINDS,
        help="sentencepiece: split raw text into subwords. space: the text is already segmented.",
    )
    vocab_size: int | None = option(
        None,
        above=4,
        max=10**7,
        unset="by the number of pairs, or every word with --tokenizer space",
        help=f"Size of the vocabulary, including four special tokens. By default 1000 to {_LARGE_VOCAB_SIZE} subwords.",
    )
    joined_vocab: bool = option(
        True, off="separate_vocab", help="Learn a separate vocabulary for each language. Default: one for both."
    )
    model_type: str = option("bpe", choices=("bpe", "unigram"), help="Subword algorithm of SentencePiece.")
    character_coverage: float = option(
        0.9995, min=0.98, max=1, help="Share of the text's characters that the subwords must cover."
    )
    byte_fallback: bool | None = option(
        None,
        unset=f"on for --vocab-size {BYTE_FALLBACK_SIZE} or more",
        help="Spell unknown characters as bytes, so that no token is unknown.",
    )
    normalization: str = option(
        "identity", choices=NORMALIZATIONS, help="Unicode normalization of the text; identity: none."
    )
    keep_invisible: bool = option(False, help="Keep invisible characters such as soft hyphens, which split words.")
    split_digits: bool = option(False, help="Make each digit a separate piece.")
    spm_sample: int = option(1_000_000, min=1, help="Sentences sampled to train SentencePiece: more need more memory.")
    vocab_capitals: float = option(
        0.0,
        min=0,
        max=1,
        help="Also learn subwords from copies of this share of the sentences in capitals, and of the same share with "
        "capitalized words. Use with nmt-train --augment.",
    )
    seed: int = option(1, help="Seed of --spm-sample, --vocab-capitals and --placeholders.")
    min_count: int = option(1, min=1, help="With --tokenizer space: drop words that occur less often.")
    spm_model: Path | None = option(None, metavar="FILE", help="Use this SentencePiece model for both languages.")
    vocab_from: Path | None = option(
        None,
        metavar="PATH",
        help="Use the vocabulary and tokenizer of this dataset or checkpoint. With a model such as NLLB, each line "
        "begins with the code of its language.",
    )
    user_symbol: tuple[str, ...] = option(
        (),
        metavar="SYMBOL",
        help="Token that is never split, such as '<2de>'. Appended to the vocabulary of --vocab-from or --spm-model. "
        "Repeatable.",
    )
    placeholders: bool = option(
        False,
        help="Train the model to copy placeholder symbols. During translation, they replace protected text such as "
        "URLs and {name}. 7.5 % of the training pairs get some.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_symbols(self.symbols)
        if self.spm_model and self.vocab_from:
            raise UserError("--spm-model and --vocab-from are mutually exclusive: use one of them")
        if self.spm_model and self.tokenizer == SPACE:
            raise UserError("--spm-model cannot be used with --tokenizer space")
        symbols = len(SPECIALS) + len(self.symbols)
        if self.vocab_size is not None and self.vocab_size < symbols:
            raise UserError(f"--vocab-size {self.vocab_size} is too small for {symbols} special and user symbols")
        if self.spm_model and not self.joined_vocab:
            raise UserError("--spm-model is for both languages: it cannot be used with --separate-vocab")

    @property
    def is_learned(self) -> bool:
        """Whether the vocabulary is learned from the training text."""
        return self.spm_model is None and self.vocab_from is None

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that the vocabulary needs."""
        return self.user_symbol + (PLACEHOLDERS if self.placeholders else ())

    @property
    def has_byte_pieces(self) -> bool:
        """Whether a learned SentencePiece model spells unknown characters as bytes."""
        if self.byte_fallback is None:
            return self.vocab_size is None or self.vocab_size >= BYTE_FALLBACK_SIZE
        return self.byte_fallback


@dataclass(frozen=True)
class CleaningConfig(Config):
    heading: ClassVar[str] = "Cleaning (training text only)"

    drop_identical: bool = option(False, help="Drop pairs whose source and target are equal.")
    source_script: tuple[str, ...] = option(
        (),
        metavar="SCRIPT",
        help="Drop pairs whose source letters are mostly not in this script, such as Latin or Han. Repeatable.",
    )
    target_script: tuple[str, ...] = option(
        (), metavar="SCRIPT", help="Drop pairs whose target letters are mostly not in this script. Repeatable."
    )
    langid_model: Path | None = option(
        None,
        metavar="FILE",
        help="Drop pairs in other languages, identified by this fastText model, such as lid.176.ftz.",
    )
    langid_labels: tuple[str, ...] = option(
        (),
        metavar="SOURCE TARGET",
        count=2,
        help="Labels of the two languages in --langid-model. Default: --source-lang and --target-lang.",
    )
    min_langid: float = option(
        0.5, min=0, max=1, help="Minimum probability that --langid-model assigns to the language of a side."
    )
    exclude_overlap: tuple[Path, ...] = option(
        (),
        metavar="FILE",
        help="Drop pairs with a side that equals a line of this file, such as test.en. Ignores case, punctuation, "
        "spaces and the values of digits. Repeatable.",
    )
    dedup: str = option(
        "none",
        bare="pair",
        choices=("none", "pair", "source", "target"),
        help="Drop pairs that repeat an earlier pair, source or target. Without a value: pair.",
    )
    dedup_normalized: bool = option(False, help="Ignore case, punctuation, spaces and the values of digits in --dedup.")
    max_length: int = option(250, min=1, help="Drop pairs in which a side has more than this many tokens.")
    max_ratio: float | None = option(
        None, min=1, max=1e6, help="Drop pairs in which one side has more than this many times the other's tokens."
    )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the filters read."""
        return (*self.exclude_overlap, *([self.langid_model] if self.langid_model else []))

    @property
    def removes_duplicates(self) -> bool:
        return self.dedup != "none"


def default_vocab_size(pairs: int) -> int:
    """Return the size of a subword vocabulary for a corpus of this many pairs."""
    return next((size for most, size in _VOCAB_SIZES.items() if pairs <= most), _LARGE_VOCAB_SIZE)

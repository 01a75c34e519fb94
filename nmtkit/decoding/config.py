"""The options of generation: input and output, search, batches, device."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, TypedDict

from nmtkit.config import Config, OptionGroups, option
from nmtkit.data.config import DatasetConfig
from nmtkit.errors import UserError
from nmtkit.model.config import DeviceConfig, WeightsConfig
from nmtkit.text.document_formats import DOCUMENTS, chosen_format
from nmtkit.text.input_stream import STANDARD_STREAM
from nmtkit.text.languages import check_single
from nmtkit.wording import quoted

MAX_BEAM = 10**6
PAGE_LINES = 20  #: maximum number of sentences on a page of attention
ALIGNMENT_FORMATS = ("pharaoh", "pharaoh-pieces")
FORMATS = ("text", "tsv", "jsonl", *ALIGNMENT_FORMATS)  #: of the output


@dataclass(frozen=True)
class SearchConfig(Config):
    """Options of beam search, with the paper's defaults (§6.1), and of sampling."""

    heading: ClassVar[str] = "Search"

    beam: int = option(4, min=1, max=MAX_BEAM, help="Beam size. 1: greedy search.")
    length_penalty: float = option(
        0.6,
        min=0.0,
        metavar="ALPHA",
        help="Exponent α of the length penalty. Higher values favor longer output. 0: none.",
    )
    length_penalty_form: str = option(
        "gnmt",
        choices=("gnmt", "power"),
        help="Divisor of log P(Y|X), with |Y| including the end of sentence. gnmt: ((5 + |Y|) / 6)^α. power: |Y|^α.",
    )
    max_len_a: float = option(
        1.0,
        min=0.0,
        max=1e3,
        metavar="A",
        help="Maximum output length for S source tokens: A·S + B tokens. Prefixes and required terms can raise it.",
    )
    max_len_b: int = option(50, min=0, max=10**6, metavar="B", help="See --max-len-a.")
    min_len: int = option(
        0,
        min=0,
        help="Minimum output length in tokens, as far as --max-len-a, --max-len-b and the model's positions allow.",
    )
    nbest: int = option(
        1,
        min=1,
        max=10**6,
        help="Hypotheses per line, best first and with different texts. At most --beam. With --sampling: number of "
        "samples, which may repeat.",
    )
    no_repeat_ngram: int | None = option(None, min=1, help="Never repeat a sequence of N tokens in an output.")
    repetition_guard: bool | None = option(
        None,
        unset="only for documents and in nmt-serve",
        help="Search again with --no-repeat-ngram if an output repeats a phrase that its source does not repeat.",
    )
    ban: tuple[str, ...] = option(
        (),
        metavar="WORDS",
        help="Ban this exact spelling of a word or phrase, and words that start with the same subwords. Repeatable.",
    )
    ignore_case: bool = option(
        False,
        help="Ignore the case of source terms with --glossary. With --constraints, lower-case, capitalized and "
        "upper-case forms also count; with --ban, they are also banned.",
    )
    diverse_groups: int = option(
        1,
        min=1,
        metavar="G",
        help="Groups of diverse beam search. Each group avoids the tokens that earlier groups chose at the same step.",
    )
    diversity: float = option(
        0.5,
        min=0.0,
        max=1e6,
        help="Penalty of --diverse-groups on the log-probability of a token, for each hypothesis of an earlier group "
        "that chose it. Scores do not include it.",
    )
    sampling: bool = option(False, help="Draw independent samples from the model instead of searching.")
    top_k: int | None = option(None, min=1, unset="all", help="Sample from the N most probable tokens.")
    top_p: float | None = option(
        None, min=1e-6, max=1.0, unset="all", help="Sample from the smallest set of tokens with this total probability."
    )
    temperature: float = option(
        1.0,
        min=0.01,
        max=1e6,
        help="Softmax temperature of --sampling, applied before --top-p. Below 1: less random.",
    )
    seed: int = option(
        1,
        min=0,
        max=2**64 - 1,
        help="Seed of --sampling. Samples depend only on the seed, the source line and --nbest.",
    )
    alignment: bool = option(False, help="Add word alignments to the output: --format jsonl or tsv.")
    alignment_layer: int | None = option(
        None,
        min=1,
        unset="the second to last, or the second of two",
        help="Decoder layer whose attention, averaged over heads, is the alignment. 1 is the lowest.",
    )
    allow_unknown: bool | None = option(
        None,
        unset="only with --copy-unknown, and imported models as their toolkit allows it",
        help="Allow the unknown token in outputs, written as ⁇.",
    )
    copy_unknown: bool = option(
        False,
        help="Replace each unknown token by the source token with the highest attention. For models of segmented text "
        "(nmt-preprocess --tokenizer space).",
    )
    explicit: tuple[str, ...] | None = None  #: the fields that the command line or a file sets; None: all

    def over(self, model: "SearchConfig") -> "SearchConfig":
        """Return the `explicit` fields, which a user has set, with all other fields from `model`."""
        if self.explicit is None:
            return self
        return replace(model, **{name: getattr(self, name) for name in self.explicit})

    def length_limit(self, source_tokens: int, required: int = 0, positions: int | None = None) -> int:
        """Return the maximum length of an output: at least `required`, at most `positions`; all numbers without EOS."""
        limit = max(int(self.max_len_a * source_tokens + self.max_len_b), required)
        return limit if positions is None else min(limit, positions)

    @property
    def attends(self) -> bool:
        """Whether the search must compute the attention of its results."""
        return self.alignment or self.copy_unknown

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.explicit is not None and "beam" not in self.explicit:
            return  # checked with the beam of the model, see `over`
        if self.nbest > self.beam and not self.sampling:
            raise UserError(f"--nbest {self.nbest} is more than --beam {self.beam}: raise --beam or lower --nbest")
        if self.beam % self.diverse_groups:
            raise UserError(f"--beam {self.beam} is not a multiple of --diverse-groups {self.diverse_groups}")
        if self.sampling and self.diverse_groups > 1:
            raise UserError("--sampling and --diverse-groups are mutually exclusive: use one of them")


@dataclass(frozen=True)
class RequestConfig(Config):
    """The tag of all input lines, and files that constrain or give the translation of each line."""

    heading: ClassVar[str] = "Additional input"

    prefix: Path | None = option(
        None,
        metavar="FILE",
        help="File with the beginning of each translation, in whole words, one per line. An empty line sets none.",
    )
    constraints: Path | None = option(
        None,
        metavar="FILE",
        help="File with the terms that each translation must contain, separated by tabs, one line per input line. The "
        "beam grows with the number of terms.",
    )
    glossary: Path | None = option(
        None,
        metavar="FILE",
        help="File of terms, one per line: a source term, a tab and a target term. If an input line contains a source "
        "term, its translation must contain the target term.",
    )
    score: Path | None = option(
        None,
        metavar="FILE",
        help="Do not search. Print log P(Y|X) of the translations in this file, one per input line. With --format tsv "
        "or jsonl, also print the score of the search.",
    )
    source_lang: str | None = option(
        None,
        short="s",
        metavar="LANG",
        unset="the model's",
        help="Source language of a model with language codes, such as NLLB: a code of the model, or an ISO code.",
    )
    target_lang: str | None = option(
        None,
        short="t",
        metavar="LANG",
        unset="the model's",
        help="Target language, for models with several. It also selects BLEU's tokenizer.",
    )
    source_tag: str = option(
        "",
        metavar="TAG",
        help="Prepend this tag, such as '<2de>' for the target language, to every input line. It must be one token of "
        "the vocabulary.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_single("--target-lang", self.target_lang or "")
        if self.score is not None and (self.prefix or self.constraints or self.glossary):
            raise UserError("--score does not search: --prefix, --constraints and --glossary have no effect")


@dataclass(frozen=True)
class MarkupConfig(Config):
    """Options for documents, lines with tags, and text that is not translated."""

    heading: ClassVar[str] = "Documents and markup"

    document: str | None = option(
        None,
        choices=DOCUMENTS,
        unset="by the file extension of --input: docx, html, odt, po, srt, tmx, vtt, xliff",
        help="Translate a document of this format instead of lines. Everything except its text is kept.",
    )
    columns: str = option("", metavar="NAMES", help="Columns of a csv or tsv document, such as 2,title. Default: all.")
    keys: str = option("", metavar="NAMES", help="Keys of a json document, such as title,*.text. Default: all.")
    markup: str | None = option(
        None,
        choices=("html", "xml"),
        help="Treat each line as a fragment of HTML or XML, whose tags move with their words.",
    )
    ignore_tags: str = option(
        "", metavar="TAGS", help="Elements of HTML or XML whose content is not translated, such as code,kbd."
    )
    protect: tuple[str, ...] = option(
        (),
        metavar="REGEX",
        help="Never change text that matches this regular expression. Repeatable. Documents also keep URLs, e-mail "
        "addresses and placeholders such as {name}.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern in self.protect:
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(f"--protect {quoted(pattern)} is not a regular expression: {error}") from None

    @property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """The compiled regular expressions of --protect."""
        return tuple(map(re.compile, self.protect))

    @property
    def kept(self) -> frozenset[str]:
        """The element names in --ignore-tags."""
        return frozenset(split_names(self.ignore_tags))


def split_names(names: str) -> list[str]:
    """Split a comma-separated list of names."""
    return [name.strip() for name in names.split(",") if name.strip()]


_ON_CPU, _ON_GPU = 4096, 32_768  # source tokens of a batch, and lines of a buffer; a GPU needs large batches
_BY_DEVICE = f"{_ON_GPU} on a GPU, {_ON_CPU} on a CPU"


@dataclass(frozen=True)
class StreamConfig(Config):
    """Options for dividing a stream of lines into batches."""

    heading: ClassVar[str] = "Batches"

    max_tokens: int | None = option(
        None,
        min=1,
        aliases=("batch_tokens",),
        unset=_BY_DEVICE,
        help="Batch size in source tokens, including padding. A longer line forms its own batch.",
    )
    buffer: int | None = option(
        None,
        min=1,
        max=10**9,
        metavar="LINES",
        unset=_BY_DEVICE,
        help="Lines to read ahead and sort by length. Limits memory.",
    )
    max_source_tokens: int = option(
        1024, min=1, help="Truncate or split longer lines, see --overlong. A warning counts them."
    )
    overlong: str = option(
        "cut",
        choices=("cut", "split"),
        help="cut: truncate lines longer than --max-source-tokens. split: translate them in parts, split at a "
        "sentence end if possible, else at a clause or a word.",
    )

    split_sentences: bool | None = option(
        None,
        unset="for documents and in nmt-serve",
        help="Translate each sentence of a line separately and join the translations. Most models omit text if a line "
        "contains several sentences.",
    )
    recase: str | None = option(
        None,
        choices=("none", "upper", "title"),
        unset="upper for documents and in nmt-serve, otherwise none",
        help="upper: translate lines in capitals as running text, and restore the capitals. title: also lines with "
        "capitalized words, such as headlines.",
    )

    def for_documents(self) -> "StreamConfig":
        """Return the options with the defaults for documents and nmt-serve."""
        return replace(self, split_sentences=self.split_sentences is not False, recase=self.recase or "upper")

    def sizes_on(self, device: str) -> "BatchSizes":
        """Return the size of a batch and of the buffer on a device, such as "cuda:1"."""
        default = _ON_CPU if device == "cpu" else _ON_GPU
        return BatchSizes(self.max_tokens or default, self.buffer or default)


class BatchSizes(NamedTuple):
    """The sizes of a batch and of the buffer on a device, see `StreamConfig`."""

    max_tokens: int  # source tokens of a batch
    buffer: int  # lines


@dataclass(frozen=True)
class EngineConfig(DeviceConfig):
    """Options for the device, number format and workers of inference."""

    precision: str = option(
        "auto",
        choices=("auto", "fp32", "bf16", "fp16", "int8"),
        help="Number format. auto: bf16 on a GPU that supports it, fp32 on a CPU. int8 is for CPUs: it is faster "
        "and changes some translations, but not BLEU on average. fp16 is for GPUs.",
    )
    shortlist: Path | None = option(
        None,
        metavar="FILE",
        help="Search only among the likely tokens in this file from nmt-export --to shortlist. Faster on a CPU, but "
        "changes some translations.",
    )
    workers: int = option(
        1,
        min=1,
        max=1024,
        help="Worker processes, each with its own copy of the model and its own GPU or share of the cores. On a CPU "
        "with the compiled search, --threads is as fast.",
    )


@dataclass(frozen=True)
class InputConfig(Config):
    heading: ClassVar[str] = "Input (default: stdin)"

    input: Path | None = option(None, metavar="FILE", help="File to translate, plain or .gz, .xz, .bz2. -: stdin.")
    input_format: str = option(
        "text",
        choices=("text", "tsv"),
        help="tsv: each line is a source language, a target language and a text, separated by tabs, for a model with "
        "language codes.",
    )
    split: str = option("test", help="Split of DATASET to translate.")
    shard: str | None = option(
        None,
        metavar="I/N",
        help="Translate only part I of N of the input. The concatenated outputs of all parts equal the output of "
        "the whole input.",
    )
    interactive: bool = option(
        False, help="Translate each line immediately, as its own batch. Default if stdin is a terminal."
    )

    @property
    def path(self) -> Path | None:
        """The file to read; None for stdin, also if the option is `-`."""
        return None if self.input == STANDARD_STREAM else self.input


@dataclass(frozen=True)
class OutputConfig(Config):
    heading: ClassVar[str] = "Output"

    output: Path | None = option(
        None,
        metavar="FILE",
        help="Write to this file instead of stdout. Until it is complete, its name is FILE.partial.",
    )
    resume: bool = option(
        False,
        help="Resume an interrupted --output from FILE.partial. The input and all other options must be unchanged.",
    )
    format: str = option(
        "text",
        choices=FORMATS,
        help="text: one line per hypothesis. tsv: line number, rank, score, text. jsonl: all details of a line. "
        "pharaoh: word alignments. pharaoh-pieces: alignments of pieces, for nmt-train --guided-alignment.",
    )
    attention_html: Path | None = option(
        None,
        metavar="FILE",
        help=f"Also write an HTML page with the attention weights of at most {PAGE_LINES} lines.",
    )

    @property
    def path(self) -> Path | None:
        """The file to write; None for stdout, also if the option is `-`."""
        return None if self.output == STANDARD_STREAM else self.output


@dataclass(frozen=True)
class EvaluationConfig(Config):
    heading: ClassVar[str] = "Evaluation (on stderr)"

    sacrebleu: bool = option(False, help="Print BLEU and chrF with sacreBLEU's signatures.")
    tokenized_bleu: bool = option(
        False, help="Print BLEU on space-separated words after joining subwords, as fairseq does. For segmented text."
    )
    reference: Path | None = option(
        None,
        metavar="FILE",
        help="Reference, one line per input line. Default with DATASET: its target side, which SentencePiece has "
        "normalized. For scores that you intend to publish, use the raw file.",
    )

    @property
    def is_wanted(self) -> bool:
        """Whether any score is requested."""
        return self.sacrebleu or self.tokenized_bleu


@dataclass(frozen=True)
class GenerationOptions(OptionGroups):
    """All options of nmt-generate except those for messages."""

    weights: WeightsConfig = field(default_factory=WeightsConfig)
    input: InputConfig = field(default_factory=InputConfig)
    reading: DatasetConfig = field(default_factory=DatasetConfig)
    requests: RequestConfig = field(default_factory=RequestConfig)
    markup: MarkupConfig = field(default_factory=MarkupConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    search: SearchConfig = field(default_factory=lambda: SearchConfig(explicit=()))
    batches: StreamConfig = field(default_factory=StreamConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    @property
    def document(self) -> str | None:
        """The format of the document to translate; None for lines."""
        return chosen_format(self.markup.document, self.markup.markup, self.input.path)


# The keyword arguments of `Translator`, for editors and mypy. The fields of the same names hold the defaults, and
# check the values.


class PenaltyKeywords(TypedDict, total=False):
    """The fields of `SearchConfig` that affect the score of a given translation."""

    length_penalty: float
    length_penalty_form: str


class SearchKeywords(PenaltyKeywords, total=False):
    """The fields of `SearchConfig` without `nbest`, as keyword arguments."""

    beam: int
    max_len_a: float
    max_len_b: int
    min_len: int
    no_repeat_ngram: int | None
    repetition_guard: bool | None
    ban: tuple[str, ...]
    ignore_case: bool
    diverse_groups: int
    diversity: float
    sampling: bool
    top_k: int | None
    top_p: float | None
    temperature: float
    seed: int
    alignment: bool
    alignment_layer: int | None
    allow_unknown: bool | None
    copy_unknown: bool


class EngineKeywords(TypedDict, total=False):
    """The fields of `EngineConfig`, as keyword arguments."""

    device: str
    precision: str
    threads: int | None
    shortlist: Path | None
    workers: int

"""The options of generation: input and output, search, batches, device."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, TypedDict

from nmtkit.config import Config, OptionGroups, option
from nmtkit.data.config import DatasetConfig
from nmtkit.errors import UserError
from nmtkit.model.config import DeviceConfig, WeightsConfig
from nmtkit.text.input_stream import STANDARD_STREAM
from nmtkit.text.languages import check_single

MAX_BEAM = 10**6
PAGE_LINES = 20  #: the most sentences on a page of attention
FORMATS = ("text", "tsv", "jsonl", "pharaoh")  #: of the output


@dataclass(frozen=True)
class SearchConfig(Config):
    """Beam search, with the paper's defaults (§6.1), or sampling."""

    heading: ClassVar[str] = "Search"

    beam: int = option(4, min=1, max=MAX_BEAM, help="Hypotheses kept for each sentence; 1 is greedy search.")
    length_penalty: float = option(
        0.6,
        min=0.0,
        metavar="ALPHA",
        help="α of the score log P(Y|X) / ((5 + |Y|) / 6)^α, where |Y| counts the end of sentence. "
        "Higher values favour longer output; 0 compares log-probabilities.",
    )
    length_penalty_form: str = option(
        "gnmt",
        choices=("gnmt", "power"),
        removed={"none": "--length-penalty 0"},
        help="The divisor of log P(Y|X); gnmt: ((5 + |Y|) / 6)^α, power: |Y|^α.",
    )
    max_len_a: float = option(
        1.0,
        min=0.0,
        max=1e3,
        metavar="A",
        help="An output has at most A·S + B tokens for S source tokens, or as many as a prefix and terms need.",
    )
    max_len_b: int = option(50, min=0, max=10**6, metavar="B", help="See --max-len-a.")
    min_len: int = option(
        0,
        min=0,
        metavar="N",
        help="An output has at least N tokens, or as many as --max-len-a, --max-len-b and the model's positions allow.",
    )
    nbest: int = option(
        1,
        min=1,
        max=10**6,
        help="Hypotheses shown for each sentence, best first and with different texts; at most --beam. "
        "With --sampling: outputs to draw, which may repeat.",
    )
    no_repeat_ngram: int | None = option(
        None, min=1, metavar="N", help="No sequence of N tokens occurs twice in an output."
    )
    ban: tuple[str, ...] = option(
        (),
        metavar="WORDS",
        help="A word or phrase that must not occur, in exactly this spelling. Words that begin with the same pieces "
        "are banned too. May be given several times.",
    )
    diverse_groups: int = option(
        1, min=1, metavar="G", help="Groups of the beam; each avoids the tokens that earlier groups choose at a step."
    )
    diversity: float = option(
        0.5,
        min=0.0,
        max=1e6,
        help="With --diverse-groups: the log-probability that a candidate loses for each hypothesis of an earlier "
        "group that chose its token. Scores do not include it.",
    )
    sampling: bool = option(False, help="Draw independent outputs from the model instead of searching.")
    top_k: int | None = option(None, min=1, unset="all", help="Draw only from the K most probable tokens.")
    top_p: float | None = option(
        None, min=1e-6, max=1.0, unset="all", help="Draw only from the fewest tokens with this total probability."
    )
    temperature: float = option(
        1.0,
        min=0.01,
        max=1e6,
        help="Divides the logits before --top-p is applied and a token is drawn; below 1 is less random.",
    )
    seed: int = option(
        1,
        min=0,
        max=2**64 - 1,
        help="Samples depend on the seed, the source sentence and --nbest only.",
    )
    alignment: bool = option(
        False, help="Show, in --format jsonl, tsv or pharaoh, which source words each target word was translated from."
    )
    alignment_layer: int | None = option(
        None,
        min=1,
        metavar="N",
        unset="the last but one",
        help="The decoder layer whose attention, averaged over its heads, is the alignment; 1 is the lowest.",
    )
    copy_unknown: bool = option(
        False,
        help="Replace each unknown piece by the source piece that it attended to most. For models of nmt-preprocess "
        "--tokenizer space, where pieces, which are words or parts of words, can be unknown.",
    )

    @property
    def attends(self) -> bool:
        """Whether the attention of the results is computed."""
        return self.alignment or self.copy_unknown

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nbest > self.beam and not self.sampling:
            raise UserError(f"--nbest {self.nbest} is more than --beam {self.beam}: raise --beam or lower --nbest")
        if self.beam % self.diverse_groups:
            raise UserError(f"--beam {self.beam} is not a multiple of --diverse-groups {self.diverse_groups}")
        if self.sampling and self.diverse_groups > 1:
            raise UserError("--sampling and --diverse-groups are mutually exclusive: use one of them")


@dataclass(frozen=True)
class RequestConfig(Config):
    """A tag of all input lines, and files that constrain the translation of each, or give it."""

    heading: ClassVar[str] = "Additional input"

    prefix: Path | None = option(
        None,
        metavar="FILE",
        help="Beginnings of the translations, in whole words, one for each input line; empty for none.",
    )
    constraints: Path | None = option(
        None,
        metavar="FILE",
        help="Terms that the translations must contain, separated by tabs, a line for each input line. The search then "
        "keeps --beam hypotheses for each number of pieces of the terms.",
    )
    glossary: Path | None = option(
        None,
        metavar="FILE",
        help="Lines of a source term, a tab and a target term. Translations of lines with the source term must contain "
        "the target term.",
    )
    score: Path | None = option(
        None,
        metavar="FILE",
        help="Do not search: print the log-probability log P(Y|X) of given translations, one for each input line; "
        "with --format tsv or jsonl also the score that the search would give.",
    )
    source_tag: str = option(
        "",
        metavar="TAG",
        help="Put this tag and a space before every input line, such as '<2de>' to name the target language. It must "
        "be one piece of the vocabulary. Alignments do not count it as a word.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score is not None and (self.prefix or self.constraints or self.glossary):
            raise UserError("--score does not search: --prefix, --constraints and --glossary have no effect")


_ON_CPU, _ON_GPU = 4096, 32_768  # source tokens of a batch, and lines of a buffer; a GPU needs large batches
_BY_DEVICE = f"{_ON_GPU} on a GPU, {_ON_CPU} on a CPU"


@dataclass(frozen=True)
class StreamConfig(Config):
    """How a stream of lines becomes batches."""

    heading: ClassVar[str] = "Batches"

    max_tokens: int | None = option(
        None,
        min=1,
        aliases=("batch_tokens",),
        unset=_BY_DEVICE,
        help="Size of a batch in source tokens, including padding; a longer sentence is a batch of its own.",
    )
    buffer: int | None = option(
        None,
        min=1,
        max=10**9,
        metavar="LINES",
        unset=_BY_DEVICE,
        help="Lines to read ahead and sort by length; limits memory.",
    )
    max_source_tokens: int = option(
        1024, min=1, help="Longer lines are truncated or split, see --overlong; a warning counts them."
    )
    overlong: str = option(
        "cut",
        choices=("cut", "split"),
        help="cut: lines longer than --max-source-tokens are truncated. split: they are translated in parts, which end "
        "at the end of a sentence, else of a clause, a word or a piece; the translations are joined.",
    )

    def sizes_on(self, device: str) -> "BatchSizes":
        """The size of a batch and of the buffer on a device, such as "cuda:1"."""
        default = _ON_CPU if device == "cpu" else _ON_GPU
        return BatchSizes(self.max_tokens or default, self.buffer or default)


class BatchSizes(NamedTuple):
    """The sizes of `StreamConfig` on a device."""

    max_tokens: int  # source tokens of a batch
    buffer: int  # lines


@dataclass(frozen=True)
class EngineConfig(DeviceConfig):
    """Where and how to compute when nothing is trained."""

    precision: str = option(
        "auto",
        choices=("auto", "fp32", "bf16", "fp16", "int8"),
        help="Number format; auto: fp32 on a CPU, bf16 on a GPU that has it. int8 is for CPUs: faster, and it changes "
        "about one line in nine (with AVX-512 VNNI, in fourteen) with no loss of BLEU on average. fp16 is for GPUs.",
    )
    shortlist: Path | None = option(
        None,
        metavar="FILE",
        help="Search only among the tokens that are likely in the translation of a sentence, listed in a file of "
        "nmt-export --to shortlist. Faster on a CPU; changes some translations.",
    )
    workers: int = option(
        1,
        min=1,
        max=1024,
        metavar="N",
        help="Processes that share the work, each with its own copy of the model and its share of the cores, or its "
        "own GPU. On a CPU, threads are as fast if the search is compiled.",
    )


@dataclass(frozen=True)
class InputConfig(Config):
    heading: ClassVar[str] = "Input (default: stdin)"

    input: Path | None = option(None, metavar="FILE", help="Text to translate, plain or .gz, .xz, .bz2; - is stdin.")
    split: str = option("test", help="The split of DATASET to translate.")
    shard: str | None = option(
        None,
        metavar="I/N",
        help="Translate only the I-th of N parts of the input, I from 1 to N, with about as many lines each. "
        "The concatenated outputs of all parts are the output of the whole input.",
    )
    interactive: bool = option(
        False, help="Translate each line immediately, as a batch of its own; the default when stdin is a terminal."
    )

    @property
    def path(self) -> Path | None:
        """The file to read; None for stdin, which `-` stands for as well."""
        return None if self.input == STANDARD_STREAM else self.input


@dataclass(frozen=True)
class OutputConfig(Config):
    heading: ClassVar[str] = "Output"

    output: Path | None = option(
        None,
        metavar="FILE",
        help="Write to a file instead of stdout. It appears when it is complete; until then it is FILE.partial, which "
        "stays if the command fails or is interrupted.",
    )
    resume: bool = option(
        False, help="Resume at the end of FILE.partial of --output. The input and all other options must be the same."
    )
    format: str = option(
        "text",
        choices=FORMATS,
        help="text: one line for each input line, or --nbest lines, best first, padded with empty ones. "
        "tsv: a row for each hypothesis: input line number from 1, rank from 1, score, text, and with --alignment the "
        "alignment in Pharaoh form. "
        "jsonl: an object for each input line: line, source, hypotheses, each with text, score, tokens "
        "(</s> is the last) and token_log_probs; with --alignment also source_tokens, and for each hypothesis "
        "attention, a row for each token, and alignment. "
        "pharaoh: only alignments, as pairs of words 0-0 1-2, source first; lines as with text.",
    )
    attention_html: Path | None = option(
        None,
        metavar="FILE",
        help="Also write an HTML page with the attention of every layer and head, for at most "
        f"{PAGE_LINES} lines; with --score, of the given translations.",
    )

    @property
    def path(self) -> Path | None:
        """The file to write; None for stdout, which `-` stands for as well."""
        return None if self.output == STANDARD_STREAM else self.output


@dataclass(frozen=True)
class EvaluationConfig(Config):
    heading: ClassVar[str] = "Evaluation (on stderr)"

    sacrebleu: bool = option(False, help="BLEU and chrF against the reference, with sacreBLEU's signatures.")
    tokenized_bleu: bool = option(
        False, help="BLEU on space-separated words after joining subwords, as fairseq prints it; for segmented text."
    )
    reference: Path | None = option(
        None,
        metavar="FILE",
        help="The reference, a line for each input line. Default with DATASET: its target side, decoded from the "
        "stored pieces, which SentencePiece has normalized (Unicode forms, runs of spaces); give the raw file "
        "for a score to publish.",
    )
    target_lang: str | None = option(
        None,
        metavar="LANG",
        unset="the model's",
        help="Language of the reference, by which BLEU is tokenized: for models of several target languages.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_single("--target-lang", self.target_lang or "")

    @property
    def is_wanted(self) -> bool:
        """Whether any score is computed."""
        return self.sacrebleu or self.tokenized_bleu


@dataclass(frozen=True)
class GenerationOptions(OptionGroups):
    """All options of nmt-generate that are not about its messages."""

    weights: WeightsConfig = field(default_factory=WeightsConfig)
    input: InputConfig = field(default_factory=InputConfig)
    reading: DatasetConfig = field(default_factory=DatasetConfig)
    requests: RequestConfig = field(default_factory=RequestConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    batches: StreamConfig = field(default_factory=StreamConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)


# The keyword arguments of `Translator`, for editors and mypy. The fields of the same names hold the defaults, and
# check the values.


class PenaltyKeywords(TypedDict, total=False):
    """The fields of `SearchConfig` that the score of a given translation depends on."""

    length_penalty: float
    length_penalty_form: str


class SearchKeywords(PenaltyKeywords, total=False):
    """The fields of `SearchConfig`, without `nbest`."""

    beam: int
    max_len_a: float
    max_len_b: int
    min_len: int
    no_repeat_ngram: int | None
    ban: tuple[str, ...]
    diverse_groups: int
    diversity: float
    sampling: bool
    top_k: int | None
    top_p: float | None
    temperature: float
    seed: int
    alignment: bool
    alignment_layer: int | None
    copy_unknown: bool


class EngineKeywords(TypedDict, total=False):
    """The fields of `EngineConfig`."""

    device: str
    precision: str
    threads: int | None
    shortlist: Path | None
    workers: int

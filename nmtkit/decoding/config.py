"""The options of generation: what to read and write, how to search, how to batch the stream, where to compute."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nmtkit.config import Config, option
from nmtkit.errors import UserError
from nmtkit.model.config import DeviceConfig

PAGE_LINES = 20  # that a page of attention has room for
FORMATS = ("text", "tsv", "jsonl", "pharaoh")  # of the output


@dataclass(frozen=True)
class SearchConfig(Config):
    """Beam search, whose defaults are the paper's (§6.1), or sampling."""

    heading: ClassVar[str] = "Search"

    beam: int = option(4, min=1, max=10**6, help="Hypotheses kept for each sentence; 1 is greedy search.")
    length_penalty: float = option(
        0.6,
        min=0.0,
        metavar="ALPHA",
        help="α of the score log P(Y|X) / ((5 + |Y|) / 6)^α, where |Y| counts the end of sentence. "
        "Higher values favour longer output, 0 compares plain log-probabilities.",
    )
    length_penalty_form: str = option(
        "gnmt",
        choices=("gnmt", "power", "none"),
        help="What log P(Y|X) is divided by; gnmt: ((5 + |Y|) / 6)^α, power: |Y|^α, none: nothing.",
    )
    max_len_a: float = option(
        1.0, min=0.0, max=1e3, metavar="A", help="Output has at most A·S + B tokens for S source tokens."
    )
    max_len_b: int = option(50, min=0, max=10**6, metavar="B", help="See --max-len-a.")
    min_len: int = option(
        0, min=0, metavar="N", help="Output has at least N tokens, unless --max-len-a and --max-len-b end it before."
    )
    nbest: int = option(
        1,
        min=1,
        max=10**6,
        help="Hypotheses shown for each sentence, best first and with different texts; at most --beam. "
        "With --sampling: outputs to draw, which may repeat.",
    )
    no_repeat_ngram: int | None = option(None, min=1, metavar="N", help="No N tokens come twice in one output.")
    ban: tuple[str, ...] = option(
        (),
        metavar="WORDS",
        help="A word, or several in a row, that must not be produced, as written here; nor what begins with the same "
        "pieces. May be given several times.",
    )
    diverse_groups: int = option(
        1, min=1, metavar="G", help="Parts of the beam, each of which shuns what those before it do at the same step."
    )
    diversity: float = option(
        0.5,
        min=0.0,
        max=1e6,
        help="With --diverse-groups: what a candidate loses, in log-probability, for each earlier part's choice of "
        "its token. Scores do not show it.",
    )
    sampling: bool = option(
        False, help="Draw --nbest outputs from the model, token by token and each for itself, instead of the best."
    )
    top_k: int | None = option(None, min=1, unset="all", help="Draw from the K likeliest tokens only.")
    top_p: float | None = option(
        None, min=1e-6, max=1.0, unset="all", help="Draw from the fewest tokens that have this probability together."
    )
    temperature: float = option(
        1.0,
        min=0.01,
        max=1e6,
        help="Divides the logits before --top-p looks and a token is drawn; below 1 is less random.",
    )
    seed: int = option(
        1,
        min=0,
        max=2**64 - 1,
        help="What is drawn follows from the seed and the source sentence, whatever stands around it.",
    )
    alignment: bool = option(
        False, help="Tell, in --format jsonl, tsv or pharaoh, which source words the translation's words come from."
    )
    alignment_layer: int | None = option(
        None,
        min=1,
        metavar="N",
        unset="the last but one",
        help="The decoder's layer whose attention, averaged over its heads, is the alignment; 1 is the lowest.",
    )
    copy_unknown: bool = option(
        False,
        help="Put, for each unknown word, the source word that it attended to most. Of use with --tokenizer space of "
        "nmt-preprocess, where words can be unknown.",
    )

    @property
    def attends(self) -> bool:
        """Whether the attention of what is found is asked for."""
        return self.alignment or self.copy_unknown

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nbest > self.beam and not self.sampling:
            raise UserError(f"--nbest {self.nbest} is more than --beam {self.beam}: widen the beam or ask for fewer")
        if self.beam % self.diverse_groups:
            raise UserError(f"--beam {self.beam} cannot be shared out among --diverse-groups {self.diverse_groups}")
        if self.sampling and self.diverse_groups > 1:
            raise UserError("--sampling and --diverse-groups are two ways to get various outputs: choose one")


@dataclass(frozen=True)
class RequestConfig(Config):
    """Files that ask for something beside the input, line by line."""

    heading: ClassVar[str] = "Beside the input (each FILE has a line for each line of it)"

    prefix: Path | None = option(
        None, metavar="FILE", help="What each translation begins with, in whole words; empty lines ask for nothing."
    )
    constraints: Path | None = option(
        None,
        metavar="FILE",
        help="Terms that must come in each translation, separated by tabs. The search then keeps --beam hypotheses "
        "for each number of their pieces that are there.",
    )
    glossary: Path | None = option(
        None,
        metavar="FILE",
        help="Lines of a source term, a tab and a target term, which must come where the source term does.",
    )
    score: Path | None = option(
        None,
        metavar="FILE",
        help="Do not search: give the log-probability log P(Y|X) of each of these translations; "
        "with --format tsv or jsonl also the score that the search would give.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score is not None and (self.prefix or self.constraints or self.glossary):
            raise UserError("--score is for given translations: --prefix, --constraints and --glossary have no effect")


@dataclass(frozen=True)
class StreamConfig(Config):
    """How a stream of lines becomes batches."""

    heading: ClassVar[str] = "Batches"

    batch_tokens: int = option(
        4096, min=1, help="Size of a batch in source tokens, padding counted; a longer sentence is a batch by itself."
    )
    buffer: int = option(
        4096,
        min=1,
        max=10**9,
        metavar="LINES",
        help="Lines read ahead and sorted by length; memory is bounded by this.",
    )
    max_source_tokens: int = option(
        1024, min=1, help="What is longer, --overlong decides on; a warning tells how many lines there were."
    )
    overlong: str = option(
        "cut",
        choices=("cut", "split"),
        help="cut: what exceeds --max-source-tokens is left out. split: the line is translated in parts, which end "
        "with a sentence, else a clause, a word, a piece, and the translations are joined.",
    )


@dataclass(frozen=True)
class EngineConfig(DeviceConfig):
    """Where and how to compute when nothing is trained."""

    precision: str = option(
        "auto",
        choices=("auto", "fp32", "bf16", "fp16", "int8"),
        help="Number format; auto: fp32 on a CPU, bf16 on a GPU that has it. int8, on a CPU, is faster and rewords one "
        "line in nine (with AVX-512, in fourteen), on the whole no worse. fp16 is for GPUs.",
    )
    workers: int = option(
        1,
        min=1,
        max=1024,
        metavar="N",
        help="Processes that share the stream, each with a model of its own and its share of the cores, or a GPU of "
        "its own. On a CPU threads do as well, unless the search is not compiled.",
    )


@dataclass(frozen=True)
class InputConfig(Config):
    heading: ClassVar[str] = "Input (without any: stdin)"

    input: Path | None = option(None, metavar="FILE", help="Text to translate, plain or .gz, .xz, .bz2; - is stdin.")
    split: str = option("test", help="Which split of DATASET.")
    shard: str | None = option(
        None,
        metavar="I/N",
        help="Translate only the I-th of N parts of the input, I from 1 to N, of about the same number of lines each. "
        "The outputs of all, one after the other, are that of the whole.",
    )
    interactive: bool = option(
        False, help="Answer each line at once, one line a batch; so it is when stdin is a terminal."
    )


@dataclass(frozen=True)
class OutputConfig(Config):
    heading: ClassVar[str] = "Output"

    output: Path | None = option(
        None,
        metavar="FILE",
        help="Where to write, instead of stdout; the file appears when it is complete. Until then it is FILE.partial, "
        "which stays if the command ends early.",
    )
    resume: bool = option(
        False, help="Go on where FILE.partial of --output ends. The input and all other options must be as they were."
    )
    format: str = option(
        "text",
        choices=FORMATS,
        help="text: one line for each input line, or --nbest lines, best first, filled up with empty ones. "
        "tsv: input line number from 1, rank from 1, score, text; a row a hypothesis, with --alignment "
        "that in Pharaoh form at its end. "
        "jsonl: an object for each input line: line, source, hypotheses, each with text, score, tokens "
        "(</s> the last) and token_log_probs, with --alignment also attention, a row a token, and alignment; then "
        "there are source_tokens beside the source. "
        "pharaoh: alignments only, as pairs of words 0-0 1-2, source first; lines as with text.",
    )
    attention_html: Path | None = option(
        None,
        metavar="FILE",
        help="Also write a page for the browser, with the attention of every layer and head; for at most "
        f"{PAGE_LINES} lines. With --score it is that of the given translations.",
    )


@dataclass(frozen=True)
class EvaluationConfig(Config):
    heading: ClassVar[str] = "Evaluation (on stderr)"

    sacrebleu: bool = option(False, help="BLEU and chrF against the reference, with sacreBLEU's signatures.")
    tokenized_bleu: bool = option(
        False, help="BLEU on the words between spaces, subwords joined, as fairseq prints it; for segmented text."
    )
    reference: Path | None = option(
        None,
        metavar="FILE",
        help="The reference, a line for each input line. Default with DATASET: its target side, decoded from the "
        "stored pieces, where SentencePiece has normalized it (Unicode forms, runs of spaces); give the raw file "
        "for a score to publish.",
    )

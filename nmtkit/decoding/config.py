"""The options of generation: how to search, how to batch the stream, and where to compute."""

from dataclasses import dataclass
from typing import ClassVar

from nmtkit.config import Config, option
from nmtkit.errors import UserError
from nmtkit.model.config import DeviceConfig


@dataclass(frozen=True)
class SearchConfig(Config):
    """Beam search; the defaults are the paper's (§6.1)."""

    heading: ClassVar[str] = "Search"

    beam: int = option(4, min=1, help="Hypotheses kept for each sentence; 1 is greedy search.")
    length_penalty: float = option(
        0.6,
        min=0.0,
        metavar="ALPHA",
        help="α of the score log P(Y|X) / ((5 + |Y|) / 6)^α, where |Y| counts the end of sentence. "
        "Higher values favour longer output, 0 compares plain log-probabilities.",
    )
    max_len_a: float = option(1.0, min=0.0, metavar="A", help="Output has at most A·S + B tokens for S source tokens.")
    max_len_b: int = option(50, min=0, metavar="B", help="See --max-len-a.")
    nbest: int = option(1, min=1, help="Hypotheses shown for each sentence, best first; at most --beam.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nbest > self.beam:
            raise UserError(f"--nbest {self.nbest} is more than --beam {self.beam}: widen the beam or ask for fewer")


@dataclass(frozen=True)
class StreamConfig(Config):
    """How a stream of lines becomes batches."""

    heading: ClassVar[str] = "Batches"

    batch_tokens: int = option(
        4096, min=1, help="Size of a batch in source tokens, padding counted; a longer sentence is a batch by itself."
    )
    buffer: int = option(
        4096, min=1, metavar="LINES", help="Lines read ahead and sorted by length; memory is bounded by this."
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
        help="Number format; auto: int8 on x86-64 CPUs, else bf16 where the hardware multiplies it fast, else fp32. "
        "int8 rounds what linear layers multiply, which costs no BLEU, but one line in ten comes out in other words.",
    )
    workers: int = option(
        1,
        min=1,
        metavar="N",
        help="Processes that share the stream, each with a model of its own and its share of the cores, or a GPU of "
        "its own. On CPUs, a worker for each core is the fastest way through a large file.",
    )

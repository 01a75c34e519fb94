"""nmt-generate: text to translations."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, TypeVar

import click

from nmtkit.cli.options import ConfigOption, command, given, options, refuse_idle
from nmtkit.config import Config, option
from nmtkit.data.config import DatasetConfig
from nmtkit.decoding.config import EngineConfig, SearchConfig, StreamConfig
from nmtkit.errors import RunError, UserError
from nmtkit.log import LogConfig, Progress, configure, logger, report
from nmtkit.model.config import WeightsConfig
from nmtkit.staging import staged_file
from nmtkit.text import decode_leniently, read_lines, read_raw_lines

if TYPE_CHECKING:
    from nmtkit.data.binary import TokenFile
    from nmtkit.data.corpus import Split
    from nmtkit.decoding.translator import Translation, Translator

T = TypeVar("T")


@dataclass(frozen=True)
class InputConfig(Config):
    heading: ClassVar[str] = "Input (without any: stdin)"

    input: Path | None = option(None, metavar="FILE", help="Text to translate, plain or .gz, .xz, .bz2.")
    split: str = option("test", help="Which split of DATASET.")
    interactive: bool = option(
        False, help="Answer each line at once, one line a batch; so it is when stdin is a terminal."
    )


@dataclass(frozen=True)
class OutputConfig(Config):
    heading: ClassVar[str] = "Output"

    output: Path | None = option(
        None, metavar="FILE", help="Where to write, instead of stdout; the file appears when it is complete."
    )
    format: str = option(
        "text",
        choices=("text", "tsv", "jsonl"),
        help="text: one line for each input line, or --nbest lines, best first, filled up with empty ones. "
        "tsv: input line number from 1, rank from 1, score, text; a row a hypothesis. "
        "jsonl: an object for each input line: line, source, hypotheses, each with text, score, tokens "
        "(</s> the last) and token_log_probs.",
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


@command("nmt-generate")
@click.argument("dataset", required=False, type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    cls=ConfigOption,
    heading="Model",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A checkpoint of nmt-train or nmt-average; it holds the vocabulary and the tokenizer too. "
    "Given several times: an ensemble, whose probabilities are averaged.",
)
@options(
    choice=WeightsConfig,
    source=InputConfig,
    reading=DatasetConfig,
    result=OutputConfig,
    search=SearchConfig,
    batches=StreamConfig,
    evaluation=EvaluationConfig,
    engine=EngineConfig,
    log=LogConfig,
)
def main(
    dataset: Path | None,
    checkpoint: tuple[Path, ...],
    choice: WeightsConfig,
    source: InputConfig,
    reading: DatasetConfig,
    result: OutputConfig,
    search: SearchConfig,
    batches: StreamConfig,
    evaluation: EvaluationConfig,
    engine: EngineConfig,
    log: LogConfig,
) -> None:
    """Translate raw text: stdin, a file, or a split of DATASET.

    \b
    nmt-generate --checkpoint averaged.pt < input.en > output.de
    nmt-generate --checkpoint averaged.pt --input input.en.gz --output output.de
    nmt-generate --checkpoint averaged.pt data-bin/en-de --split test --sacrebleu

    There is one line of output for each line of input, in order. A line ends at a line feed and nowhere else; a
    carriage return before it is white space to the tokenizer and does not come back. Blank lines stay blank. Bytes
    that are not UTF-8 are replaced and counted.
    """
    configure(log)
    _check_usage(dataset, source, evaluation)
    _check_search(search)

    from nmtkit.checkpoint import load_checkpoint
    from nmtkit.decoding.translator import Translator

    loaded = [load_checkpoint(path) for path in checkpoint]
    translator = Translator.of(loaded, engine, choice, checkpoint)
    split = None if dataset is None else _open_split(dataset, source.split, reading, checkpoint[0], translator)
    references = _references(evaluation, split, source.input, translator)
    if source.interactive or (split is None and source.input is None and sys.stdin.isatty()):
        batches = replace(batches, buffer=1)

    tally = _Tally()
    start = time.monotonic()
    with _progress(result, None if split is None else len(split)) as advance:
        if split is not None:
            translations = translator.stream_encoded(tally.count(_without_eos(split.source)), search, batches, advance)
        else:
            raw_lines = sys.stdin.buffer if source.input is None else read_raw_lines(source.input)
            translations = translator.stream(tally.decode(tally.count(raw_lines)), search, batches, advance)
        best = _write(translations, result, search.nbest, tally, keep=bool(references))
    tally.report(time.monotonic() - start)
    if references:
        _evaluate(best, references, evaluation, loaded[0].target_language)


def _check_usage(dataset: Path | None, source: InputConfig, evaluation: EvaluationConfig) -> None:
    """Refuse options that contradict each other, before the model is loaded."""
    scores = evaluation.sacrebleu or evaluation.tokenized_bleu
    if dataset is not None and source.input is not None:
        raise UserError(f"both {dataset} and --input {source.input} are given: there can be one input only")
    if dataset is None and given("split"):
        raise UserError("--split names a part of a dataset, but no DATASET is given")
    if evaluation.reference is not None and not scores:
        raise UserError("--reference serves --sacrebleu and --tokenized-bleu: give one of them")
    if scores and dataset is None and evaluation.reference is None:
        raise UserError("--sacrebleu and --tokenized-bleu need --reference FILE, or a DATASET as input")


def _check_search(search: SearchConfig) -> None:
    """Refuse options of a search that is not the one asked for."""
    if search.sampling:
        refuse_idle(("beam", "diversity"), "with --sampling, which draws --nbest outputs")
    else:
        refuse_idle(("top_k", "top_p", "temperature", "seed"), "without --sampling")
    if search.diverse_groups == 1:
        refuse_idle(("diversity",), "without --diverse-groups")
    if search.length_penalty_form == "none":
        refuse_idle(("length_penalty",), "with --length-penalty-form none")


def _open_split(folder: Path, name: str, reading: DatasetConfig, checkpoint: Path, translator: "Translator") -> "Split":
    """A split of a dataset whose vocabularies are those of the checkpoint."""
    from nmtkit.data.corpus import Dataset

    dataset = Dataset.open(folder, reading.verify)
    if dataset.source.vocab != translator.source.vocab or dataset.target.vocab != translator.target.vocab:
        raise UserError(
            f"{folder} and {checkpoint} have different vocabularies: take the dataset that the model was trained on, "
            "or give raw text with --input"
        )
    return dataset.split(name)


def _without_eos(sentences: "TokenFile") -> Iterator[list[int]]:
    for number in range(len(sentences)):
        yield sentences[number][:-1].tolist()


def _references(
    evaluation: EvaluationConfig, split: "Split | None", source: Path | None, translator: "Translator"
) -> list[str]:
    """The text to compare with, from the file or from the split; nothing where no score is asked for.

    Its lines are compared with those of the input now, where these can be counted, and not after the translation.
    """
    if evaluation.reference is not None:
        references = list(read_lines(evaluation.reference))
        if split is not None:
            _check_reference(evaluation, len(references), len(split))
        elif source is not None and source.is_file():  # a pipe can be read once only
            _check_reference(evaluation, len(references), sum(1 for _ in read_raw_lines(source)))
        return references
    if split is not None and (evaluation.sacrebleu or evaluation.tokenized_bleu):
        return [translator.target.decode(ids) for ids in _without_eos(split.target)]
    return []


def _check_reference(evaluation: EvaluationConfig, references: int, lines: int) -> None:
    if references != lines:
        raise UserError(f"--reference {evaluation.reference} has {references} lines, the input has {lines}")


@dataclass
class _Tally:
    """What went in and what came out."""

    lines_in: int = 0
    lines_out: int = 0
    not_utf8: int = 0
    tokens: int = 0  # of the best translations, without </s>

    def count(self, items: Iterable[T]) -> Iterator[T]:
        """Pass items on and count them."""
        for item in items:
            self.lines_in += 1
            yield item

    def decode(self, lines: Iterable[bytes]) -> Iterator[str]:
        """Lines as text; those with bytes that are not UTF-8 are counted."""
        for line, replaced in decode_leniently(lines):
            self.not_utf8 += replaced
            yield line

    def check(self) -> None:
        """The promise of the command: as many lines out as in."""
        if self.lines_out != self.lines_in:
            raise RunError(f"{self.lines_in} lines were read, but {self.lines_out} translated: this is a bug of nmtkit")

    def report(self, seconds: float) -> None:
        """Say what was done, on stderr."""
        if self.not_utf8:
            logger.warning("%d lines had bytes that are not UTF-8; each such byte became U+FFFD", self.not_utf8)
        values = {"sentences": self.lines_out, "tokens": self.tokens, "seconds": round(seconds, 2)}
        rates = {"sentences/s": self.lines_out / seconds, "tokens/s": self.tokens / seconds}
        report("translated", values | rates)


@contextmanager
def _progress(result: OutputConfig, total: int | None) -> Iterator[Callable[[int], None]]:
    """What to call with the number of lines that were translated; shows nothing between translations on a terminal."""
    if result.output is None and sys.stdout.isatty():
        yield lambda count: None
    else:
        with Progress("translating", total=total) as progress:
            yield progress.advance


def _write(
    translations: Iterable["Translation"], result: OutputConfig, nbest: int, tally: _Tally, keep: bool
) -> list[str]:
    """Write each translation as soon as it is there; returns the best texts if they are to be kept for scoring."""
    layout = _LAYOUTS[result.format]
    best = []
    with _destination(result.output) as file:
        for translation in translations:
            tally.lines_out += 1
            tally.tokens += max(0, len(translation.candidates[0].tokens) - 1)
            file.write("".join(f"{row}\n" for row in layout(tally.lines_out, translation, nbest)).encode())
            file.flush()
            if keep:
                best.append(translation.text)
        tally.check()
    return best


def _destination(path: Path | None) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdout.buffer) if path is None else staged_file(path)


def _as_text(line: int, translation: "Translation", nbest: int) -> list[str]:
    texts = [candidate.text for candidate in translation.candidates]
    return texts + [""] * (nbest - len(texts))


def _as_tsv(line: int, translation: "Translation", nbest: int) -> list[str]:
    return [
        f"{line}\t{rank}\t{candidate.score:.6f}\t{candidate.text.replace(chr(9), ' ')}"
        for rank, candidate in enumerate(translation.candidates, 1)
    ]


def _as_jsonl(line: int, translation: "Translation", nbest: int) -> list[str]:
    hypotheses = [asdict(candidate) for candidate in translation.candidates]
    row = {"line": line, "source": translation.source, "hypotheses": hypotheses}
    return [json.dumps(row, ensure_ascii=False)]


_LAYOUTS: dict[str, Callable[[int, "Translation", int], list[str]]] = {
    "text": _as_text,
    "tsv": _as_tsv,
    "jsonl": _as_jsonl,
}


def _evaluate(best: list[str], references: list[str], evaluation: EvaluationConfig, language: str) -> None:
    """Print the scores that were asked for, on stderr."""
    from nmtkit.decoding.scoring import bleu, chrf, tokenized_bleu

    _check_reference(evaluation, len(references), len(best))
    scores = []
    if evaluation.sacrebleu:
        scores += [bleu(best, references, language), chrf(best, references)]
    if evaluation.tokenized_bleu:
        scores.append(tokenized_bleu(best, references))
    for score in scores:
        click.echo(score.text, err=True)  # asked for, so --quiet does not apply

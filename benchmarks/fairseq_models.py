"""Check: imported checkpoints of fairseq vs. fairseq itself, on segmented text.

    python benchmarks/fairseq_models.py checkpoints/checkpoint_last.pt --data data-bin text/test.en -s en -t de

Needs fairseq 0.12 in the Python environment of nmtkit. A checkpoint written by fairseq-train is imported by nmt-import
and loaded by fairseq, and both translate the text. It prints the measures of `adopt.py`, and the number of equal
outputs of beam search.

nmtkit gives `<pad>` and `<s>` no probability, so those of fairseq are normalized without them; the largest probability
that fairseq gives them is printed.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch
from adopt import BEAM, MAX_LENGTH, Lines, Output, chunks, command, compare_greedy, compare_scores
from small_models import padded
from torch import Tensor

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.text.reading import read_lines
from nmtkit.text.vocabulary import BOS, EOS, NEVER_OUTPUT, PAD

SPECIAL_IDS = (1, 3, 2, 2)  # fairseq's ids for PAD, UNK, BOS and EOS: its decoder begins with </s>
_NEVER = [0, 1]  # <s> and <pad> in fairseq


class FairseqModel:
    """A checkpoint in fairseq, with the interface of `adopt.Original`."""

    def __init__(self, path: Path, data: Path) -> None:
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # the default of torch since 2.6 refuses its objects
        utilities: Any = import_module("fairseq.checkpoint_utils")
        overrides = {"data": str(data)}
        (self.model,), _, self._task = utilities.load_model_ensemble_and_task([str(path)], arg_overrides=overrides)
        for layer in self.model.eval().encoder.layers:
            layer.load_to_BT = False  # a fused kernel that current releases of torch call differently
        self.greatest_forbidden = 0.0
        self._normalize = self.model.get_normalized_probs
        self.model.get_normalized_probs = self._renormalized

    def _renormalized(self, output: tuple[Tensor, Any], log_probs: bool, sample: Any = None) -> Tensor:
        """The method of the model, without `<pad>` and `<s>`."""
        logits, rest = output
        self.greatest_forbidden = max(self.greatest_forbidden, float(logits.softmax(-1)[..., _NEVER].max()))
        logits = logits.index_fill(-1, torch.tensor(_NEVER), -torch.inf)
        normalized: Tensor = self._normalize((logits, rest), log_probs, sample)
        return normalized

    def _sources(self, lines: Lines) -> dict[str, Tensor]:
        dictionary = self._task.source_dictionary
        rows = [dictionary.encode_line(line, add_if_not_exist=False).long().tolist() for line in lines]
        width = max(map(len, rows))  # fairseq pads at the start
        source = torch.tensor([[dictionary.pad()] * (width - len(row)) + row for row in rows])
        return {"src_tokens": source, "src_lengths": torch.tensor(list(map(len, rows)))}

    def search(self, lines: Lines, beam: int, length_penalty: float = 0.0) -> list[Output]:
        settings = argparse.Namespace(
            beam=beam, max_len_a=0, max_len_b=MAX_LENGTH, min_len=0, lenpen=length_penalty, unnormalized=False
        )
        generator = self._task.build_generator([self.model], settings)
        found = generator.generate([self.model], {"net_input": self._sources(lines)})
        return [self._output(hypotheses[0]) for hypotheses in found]

    def _output(self, hypothesis: dict[str, Tensor]) -> Output:
        ids = hypothesis["tokens"].tolist()
        pieces = [self._task.target_dictionary[number] for number in ids[:-1]]
        text = self._task.target_dictionary.string(ids[:-1], bpe_symbol="@@ ")
        return Output(pieces, text, float(hypothesis["positional_scores"].sum()), True)

    @torch.inference_mode()
    def log_prob_error(self, ours: Checkpoint, lines: Lines, outputs: Sequence[Output]) -> float:
        """The largest difference over all pieces, given the translations of the lines."""
        rows = [ours.target.vocab.to_ids(output.pieces) for output in outputs]
        own_inputs = padded([[BOS, *ids] for ids in rows], EOS)
        order = torch.tensor([*SPECIAL_IDS, *range(len(SPECIAL_IDS), len(ours.target.vocab))])
        output = self.model(**self._sources(lines), prev_output_tokens=order[own_inputs])
        theirs = self.model.get_normalized_probs(output, True)
        sources = [[*ids, EOS] for ids in ours.source.encode(lines)]
        lengths = torch.tensor(list(map(len, sources)))
        own = ours.build_model()(padded(sources, PAD), lengths, own_inputs).log_softmax(-1)
        kept = [number for number in range(len(order)) if number not in NEVER_OUTPUT]
        places = torch.arange(own_inputs.size(1)) <= torch.tensor([[len(ids)] for ids in rows])
        return float((theirs[..., order[kept]] - own[..., kept]).abs()[places].max())


def equal_beams(original: FairseqModel, imported: Path, lines: Lines) -> int:
    """Count the lines with equal output of beam search, with fairseq's length penalty and limit of length."""
    translator = Translator.from_checkpoint(imported, device="cpu", precision="fp32")
    ours = translator.translate(
        lines, beam=BEAM, length_penalty_form="power", length_penalty=1.0, max_len_a=0, max_len_b=MAX_LENGTH
    )
    theirs = [output.text for chunk in chunks(lines) for output in original.search(chunk, BEAM, 1.0)]
    return sum(own == text for own, text in zip(ours, theirs, strict=True))


@click.command()
@click.argument("checkpoints", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder of fairseq-preprocess.")
@click.option("-s", "--source-lang", required=True)
@click.option("-t", "--target-lang", required=True)
@click.option("--lines", default=300, help="Lines of TEXT for greedy search.")
@click.option("--beam-lines", default=100, help="Lines of TEXT for beam search.")
def main(
    checkpoints: tuple[Path, ...],
    text: Path,
    data: Path,
    source_lang: str,
    target_lang: str,
    lines: int,
    beam_lines: int,
) -> None:
    """Compare fairseq's CHECKPOINTS with their imports on the lines of TEXT."""
    source = list(islice(read_lines(text), lines))
    dictionaries = [data / f"dict.{language}.txt" for language in (source_lang, target_lang)]
    for path in checkpoints:
        with tempfile.TemporaryDirectory() as folder:
            imported = Path(folder, "imported.pt")
            command("nmt-import", path, "--output", imported, "--dict", *dictionaries)
            original = FairseqModel(path, data)
            pieces, _ = compare_greedy(original, imported, source)
            log_probs, scores = compare_scores(original, load_checkpoint(imported), source[:beam_lines])
            same = equal_beams(original, imported, source[:beam_lines])
        print(f"{path}: greedy translations: {pieces} of {len(source)} have equal pieces")
        print(f"  beam search with a length penalty of 1: {same} of {beam_lines} are equal")
        print(f"  largest difference of log-probabilities {log_probs:.1e}, of scores of beam search {scores:.1e}")
        print(f"  largest probability of <s> and <pad> in fairseq: {original.greatest_forbidden:.1e}", flush=True)


if __name__ == "__main__":
    main()

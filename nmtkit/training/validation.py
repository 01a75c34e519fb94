"""Validation: loss, perplexity and, if requested, BLEU on the validation split."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from nmtkit.checkpoint import HIGHEST_IS_BEST
from nmtkit.console.log import Progress
from nmtkit.data.batch import collate
from nmtkit.data.batching import batch_by_tokens
from nmtkit.data.corpus import Dataset
from nmtkit.decoding.config import SearchConfig, StreamConfig
from nmtkit.decoding.engine import check_memory
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.inference.backends import torch_backend
from nmtkit.model.translation_model import TranslationModel
from nmtkit.scoring.bleu import bleu, tokenized_bleu
from nmtkit.text.tokenizer import SPACE, decode_reference
from nmtkit.training.config import TrainingOptions
from nmtkit.training.loss import MicroBatchLoss, perplexity
from nmtkit.training.ranks import Ranks

VALIDATION = "valid"
SAMPLES = 5


@dataclass(frozen=True)
class Sample:
    """A validation sentence for display. `line` is its line number, from 1, in the preprocessed text."""

    line: int
    source: str
    reference: str
    translation: str


class Results(NamedTuple):
    """The results of a validation by name, in nats per target token or BLEU, and some translations if requested."""

    values: dict[str, float]
    samples: list[Sample]


def validate(
    first: "Validator",
    others: "Mapping[str, Validator]",
    loss: MicroBatchLoss,
    ranks: Ranks,
    should_stop: Callable[[], bool],
) -> Results | None:
    """Validate on all datasets like `Validator.run`. Results of `others` are named `valid_<name>_loss` and so on."""
    results = first.run(loss, ranks, should_stop)
    if results is None:
        return None
    for name, other in others.items():
        of_other = other.run(loss, ranks, should_stop)
        if of_other is None:
            return None
        results.values.update(
            (f"{VALIDATION}_{name}_{key.removeprefix('valid_')}", value) for key, value in of_other.values.items()
        )
    return results


class Validator:
    """Measures a model on the split `valid`, if `possible`. `metric` names the result that decides which checkpoint is
    best. Raises UserError if an option needs a missing split."""

    def __init__(self, dataset: Dataset, options: TrainingOptions) -> None:
        self.config = options.validation
        self._search = SearchConfig(beam=self.config.valid_beam)
        self.metric = "valid_bleu" if self.config.valid_bleu else "valid_loss"
        self.possible = VALIDATION in dataset.split_names and len(dataset.split(VALIDATION)) > 0
        needs = {
            "--valid-bleu": self.config.valid_bleu,
            "--validate-epochs": self.config.validate_epochs,
            "--patience": options.stop.patience,
        }
        for flag, asked in needs.items():
            if asked and not self.possible:
                raise UserError(f"{flag}: {dataset.folder} has no split '{VALIDATION}': preprocess with --validpref")
        if self.possible:
            self.dataset, self.split = dataset, dataset.split(VALIDATION)
            source, target = self.split.source.lengths[:], self.split.target.lengths[:]
            self.max_tokens = options.batches.max_tokens
            order = np.lexsort((source, target))
            self.batches = batch_by_tokens(order, source, target, self.max_tokens, self.max_tokens)

    def better(self, value: float, than: float) -> bool:
        """Whether `value` of the metric is better than `than`."""
        return value > than if self.metric in HIGHEST_IS_BEST else value < than

    def check_memory(self, model: TranslationModel) -> None:
        """Raise UserError if there is too little memory to translate the longest sentence with --valid-beam."""
        if self.config.valid_bleu:
            check_memory(torch_backend(model), self._search, int(self.split.source.lengths[:].max()))

    @torch.inference_mode()
    def run(
        self, loss: MicroBatchLoss, ranks: Ranks, should_stop: Callable[[], bool] = lambda: False
    ) -> Results | None:
        """Measure the model of `loss` with its current weights. Collective: ranks share the work, with bit-identical
        results for any number of ranks. Returns None if `should_stop`, called between batches, was true on any rank."""
        loss.eval()
        mine = range(ranks.rank, len(self.batches), ranks.size)
        sums = ranks.run_on_all(lambda: self._sums(loss, mine, ranks.device, should_stop))
        *sums, given_up = ranks.sum([*sums, should_stop()])
        if given_up:
            return None
        tokens = self.split.target.tokens
        loss_per_token, nll_per_token = sum(sums[::2]) / tokens, sum(sums[1::2]) / tokens
        values = {"valid_loss": loss_per_token, "valid_nll": nll_per_token, "valid_ppl": perplexity(nll_per_token)}
        if not self.config.valid_bleu:
            return Results(values, [])
        translations = ranks.gather(ranks.run_on_all(lambda: self._translations(loss.model, mine, should_stop)))
        hypotheses = {i: text for theirs in translations for i, text in theirs.items()}
        if len(hypotheses) < len(self.split):
            return None
        value, samples = self._score([hypotheses[i] for i in range(len(self.split))])
        return Results(values | {"valid_bleu": value}, samples)

    def _sums(
        self, loss: MicroBatchLoss, mine: range, device: torch.device, should_stop: Callable[[], bool]
    ) -> list[float]:
        """Return loss and nll of each batch in order, 0 if it is not in `mine`, so that all ranks sum in one order."""
        sums = [0.0] * (2 * len(self.batches))
        with Progress("validating", len(mine), "batches", within=True) as progress:
            for number in mine:
                if should_stop():
                    break
                batch = collate(self.split, self.batches[number])
                sums[2 * number : 2 * number + 2] = torch.stack(loss(batch.to(device))).tolist()
                progress.advance()
        return sums

    def _translations(self, model: TranslationModel, mine: range, should_stop: Callable[[], bool]) -> dict[int, str]:
        """Translate the sentences in the batches that are `mine`; return the translations by sentence number."""
        data = self.dataset
        translator = Translator(torch_backend(model), data.source, data.target, languages=data.languages)
        tokens = max(1, self.max_tokens // self.config.valid_beam)  # source tokens, for `beam` rows each
        found: dict[int, str] = {}
        with Progress("translating", len(mine), "batches", within=True) as progress:
            for number in mine:
                if should_stop():
                    break
                indices = self.batches[number].tolist()
                lines = [translator.request(self.split.source[i][:-1].tolist(), data.source_tag) for i in indices]
                stream = StreamConfig(max_tokens=tokens)
                translations = translator.stream_chunks([lines], self._search, stream, warns_of_outputs=False)
                found |= {i: translation.text for i, translation in zip(indices, translations, strict=True)}
                progress.advance()
        return found

    def _score(self, hypotheses: list[str]) -> tuple[float, list[Sample]]:
        """Score translations by BLEU against the detokenized targets of the split, and return score and samples."""
        pairs, target = len(self.split), self.dataset.target
        references = [decode_reference(target, self.split.target[i][:-1].tolist()) for i in range(pairs)]
        samples = [
            Sample(
                i + 1,
                self.dataset.source.decode(self.split.source[i][:-1].tolist()),
                target.decode(self.split.target[i][:-1].tolist()),
                hypotheses[i],
            )
            for i in range(0, pairs, -(-pairs // SAMPLES))
        ]
        if target.kind == SPACE:
            return tokenized_bleu(hypotheses, references).value, samples
        return bleu(hypotheses, references, self.dataset.target_language).value, samples

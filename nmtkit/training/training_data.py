"""The datasets of a run, their names in reports, and the share of each in an update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from nmtkit.data.corpus import Dataset, Split
from nmtkit.data.mixture import Mixture
from nmtkit.errors import UserError
from nmtkit.model.config import ModelConfig
from nmtkit.storage.atomic import resolve
from nmtkit.text.languages import SEVERAL
from nmtkit.text.tokenizer import tokenizer_differences
from nmtkit.training.config import BatchConfig
from nmtkit.training.validation import VALIDATION

TRAINING = "train"


@dataclass(frozen=True)
class TrainingData:
    """The datasets that a run mixes, with their training splits and shares of the target tokens.

    The first dataset counts epochs and decides which checkpoint is best. `names` are distinct last parts of the paths.
    """

    datasets: list[Dataset]
    names: list[str]
    splits: list[Split]
    shares: list[float]

    @classmethod
    def open(cls, folders: Sequence[Path], verify: bool, batches: BatchConfig) -> "TrainingData":
        """Open datasets, with all checksums verified if `verify`. Raises UserError if they cannot be mixed."""
        resolved = [resolve(folder) for folder in folders]
        for number, folder in enumerate(resolved):
            if folder in resolved[:number]:
                raise UserError(f"{folders[number]} is given twice: raise its weight in --mix instead")
        datasets = [Dataset.open(folder, verify) for folder in folders]
        first, *others = datasets
        for other in others:
            for difference in tokenizer_differences((first.source, first.target), (other.source, other.target)):
                raise UserError(
                    f"{other.folder} cannot be mixed with {first.folder}: {difference}: "
                    f"preprocess it with --vocab-from {first.folder}"
                )
        _check_tags(datasets)
        _check_validation(datasets)
        splits = [dataset.split(TRAINING) for dataset in datasets]
        shares = shares_of([split.target.tokens for split in splits], batches)
        data = cls(datasets, distinct_names(folders), splits, shares)
        if data.is_mixed:
            data._check_first_share(batches.batch_tokens)
        return data

    @property
    def first(self) -> Dataset:
        """The dataset that counts epochs and decides which checkpoint is best."""
        return self.datasets[0]

    @property
    def languages(self) -> tuple[str, str]:
        """The source and target language of the model: `mul` for a side on which the datasets have several."""
        sides = (set(side) for side in zip(*(dataset.languages for dataset in self.datasets), strict=True))
        source, target = (side.pop() if len(side) == 1 else SEVERAL for side in sides)
        return source, target

    @property
    def is_mixed(self) -> bool:
        """Whether there is more than one dataset."""
        return len(self.datasets) > 1

    @property
    def tokens_per_epoch(self) -> float:
        """The number of target tokens of all datasets in an epoch of the first one."""
        return self.splits[0].target.tokens / self.shares[0]

    def _check_first_share(self, batch_tokens: int) -> None:
        """Raise UserError if one sentence pair of the first dataset would make an update too large."""
        tokens, share = self.splits[0].target.tokens / len(self.splits[0]), self.shares[0]
        if share * batch_tokens < tokens:
            raise UserError(
                f"{self.first.folder} has a share of only {share:.2g}, less than a sentence pair of --batch-tokens "
                f"{batch_tokens}: raise one of them, or give a dataset with a larger share first"
            )

    def mixture(self, batches: BatchConfig) -> Mixture:
        """Create the plan of the run's updates."""
        lengths = [(split.source.lengths, split.target.lengths) for split in self.splits]
        return Mixture(lengths, self.shares, batches.batch_tokens, batches.planned_tokens, batches.seed)

    def longest(self) -> int:
        """Return the number of tokens of the longest training sentence on either side."""
        return max(split.longest() for split in self.splits)

    def check_lengths(self, batches: BatchConfig, model: ModelConfig) -> None:
        """Raise UserError if a training or validation sentence is longer than --max-tokens or the model's limit."""
        if limit := model.length_limit:
            validation = [data.split(VALIDATION) for data in self.datasets if VALIDATION in data.split_names]
            for split in (*self.splits, *validation):
                split.check_lengths(limit.flag, limit.tokens, limit.remedy)
        for split in self.splits:
            split.check_lengths("--max-tokens", batches.max_tokens, "preprocess with a smaller --max-length")

    def checksums(self) -> dict[str, str]:
        """Return the checksums of all files by name, with the dataset's name as prefix except for the first dataset."""
        others = zip(self.names[1:], self.datasets[1:], strict=True)
        of_others = {f"{name}/{file}": sum for name, other in others for file, sum in other.checksums().items()}
        return self.first.checksums() | of_others

    def training_checksums(self) -> list[dict[str, str]]:
        """Return, for each dataset, the SHA-256 of each file of its training split, by file name."""
        return [dataset.checksums(TRAINING) for dataset in self.datasets]


def shares_of(target_tokens: Sequence[int], batches: BatchConfig) -> list[float]:
    """Compute each dataset's share from --mix, or from the sizes and --mix-temperature. Raises UserError."""
    given = batches.weights or target_tokens
    if len(given) != len(target_tokens):
        raise UserError(f"--mix {batches.mix}: {len(given)} weights for {len(target_tokens)} datasets: give one each")
    exponent = 1 / (batches.mix_temperature or 1.0)
    weights = [(weight / max(given)) ** exponent for weight in given]  # so that powers and sums cannot overflow
    return [weight / math.fsum(weights) for weight in weights]


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Name each folder by the last parts of its path, as many as are needed to make the names distinct."""
    paths = [resolve(folder).parts[1:] for folder in folders]
    candidates = (["/".join(parts[-length:]) for parts in paths] for length in count(1))
    return next(names for names in candidates if len(set(names)) == len(names))


def _check_tags(datasets: Sequence[Dataset]) -> None:
    """Raise UserError if datasets with different target languages have no distinct tags, so a model confuses them.

    In a dataset with several languages, the text contains the tags. With language codes, targets begin with their code.
    """
    by_tag: dict[str, Dataset] = {}
    for dataset in datasets:
        if dataset.target_language != SEVERAL and not dataset.target.language_codes:
            other = by_tag.setdefault(dataset.source_tag, dataset)
            if other.target_language != dataset.target_language:
                tag = f"the same --source-tag {dataset.source_tag}" if dataset.source_tag else "no --source-tag"
                raise UserError(
                    f"{dataset.folder} cannot be mixed with {other.folder}: their target languages are "
                    f"{dataset.target_language} and {other.target_language}, but they have {tag}: preprocess each "
                    "with its own tag"
                )


def _check_validation(datasets: Sequence[Dataset]) -> None:
    """Raise UserError if a later dataset can validate but not the first, which selects the best checkpoint."""
    can_validate = [dataset for dataset in datasets if VALIDATION in dataset.split_names]
    if can_validate and can_validate[0] is not datasets[0]:
        raise UserError(
            f"{datasets[0].folder} has no split '{VALIDATION}', which decides what is best: give "
            f"{can_validate[0].folder} first, or preprocess with --validpref"
        )

"""Compares models that were trained with the same seeds: a Markdown table of their BLEU, with 95 % intervals.

    python -m compare "genuine pairs=seed-1/genuine seed-2/genuine" "tagged=seed-1/tagged seed-2/tagged" > report.md

Each argument is a model and the folders of its runs, one for each seed. Differences are from the first model.
"""

import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from report import read_bleu, table

# Student's t: 95 % of the distribution with 1, 2, … degrees of freedom is within ±t.
T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Estimate(NamedTuple):
    """A mean, and half the width of its 95 % interval; None if it cannot be estimated."""

    mean: float
    half_width: float | None

    def excludes(self, value: float) -> bool:
        """Whether the interval is known and does not contain a value."""
        return self.half_width is not None and abs(self.mean - value) > self.half_width

    def shown(self, digits: int, sign: str = "") -> str:
        half = "" if self.half_width is None else f" ± {self.half_width:.{digits}f}"
        return f"{self.mean:{sign}.{digits}f}{half}"


class Spread(NamedTuple):
    """The standard deviation between seeds, pooled over several models, and its degrees of freedom."""

    deviation: float
    freedom: int

    @classmethod
    def of(cls, models: Iterable[Sequence[float]]) -> "Spread":
        """The spread of the values of each model around their own mean, assumed to be the same for all models."""
        several = [values for values in models if len(values) > 1]
        freedom = sum(len(values) - 1 for values in several)
        squares = sum((len(values) - 1) * statistics.variance(values) for values in several)
        return cls(math.sqrt(squares / freedom) if freedom else 0.0, freedom)

    def mean(self, values: Sequence[float]) -> Estimate:
        """The mean over the seeds of a model."""
        return Estimate(statistics.mean(values), self._half_width(len(values)))

    def difference(self, values: Sequence[float], base: Sequence[float]) -> Estimate:
        """How much the mean of `values` is above the mean of `base`."""
        above = statistics.mean(values) - statistics.mean(base)
        return Estimate(above, self._half_width(len(values), len(base)))

    def _half_width(self, *counts: int) -> float | None:
        if not self.freedom:
            return None
        t = T[self.freedom - 1] if self.freedom <= len(T) else 1.96 + 2.5 / self.freedom
        return t * self.deviation * math.sqrt(sum(1 / count for count in counts))


def compare(models: dict[str, list[float]]) -> str:
    """The table of the BLEU of models, one value for each seed; the first model is the base."""
    spread, (first, *_) = Spread.of(models.values()), models
    rows = [
        [
            *(name, str(len(values)), spread.mean(values).shown(2)),
            "" if name == first else spread.difference(values, models[first]).shown(2, "+"),
        ]
        for name, values in models.items()
    ]
    return table(["model", "seeds", "BLEU", f"− {first}"], rows)


if __name__ == "__main__":
    named = (argument.partition("=") for argument in sys.argv[1:])
    print(compare({name: [read_bleu(Path(folder)) for folder in folders.split()] for name, _, folders in named}) + "\n")

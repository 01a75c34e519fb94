"""Statistics over runs that differ in their seed: intervals of means and of differences."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean, and half the width of its 95 % confidence interval; None where it cannot be estimated."""

    mean: float
    half_width: float | None

    def excludes(self, value: float) -> bool:
        """Whether the interval is known and does not contain a value."""
        return self.half_width is not None and abs(self.mean - value) > self.half_width

    def shown(self, digits: int, sign: str = "") -> str:
        """The mean, and half the width of the interval where it is known."""
        half = "" if self.half_width is None else f" ± {self.half_width:.{digits}f}"
        return f"{self.mean:{sign}.{digits}f}{half}"


class Spread(NamedTuple):
    """The standard deviation between seeds, pooled over several settings, and its degrees of freedom."""

    deviation: float
    freedom: int

    def half_width(self, *counts: int) -> float | None:
        """Of the interval of a mean over `counts[0]` seeds, or of the difference of two such means (Student's t)."""
        if not self.freedom:
            return None
        return student_t(self.freedom) * self.deviation * math.sqrt(sum(1 / count for count in counts))


def pooled(settings: Iterable[Sequence[float]]) -> Spread:
    """The spread of the values of each setting around their own mean, assumed to be the same for all settings."""
    several = [values for values in settings if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum((len(values) - 1) * statistics.variance(values) for values in several)
    return Spread(math.sqrt(squares / freedom) if freedom else 0.0, freedom)


def mean(values: Sequence[float], spread: Spread) -> Estimate:
    """The mean over the seeds of a setting."""
    return Estimate(statistics.mean(values), spread.half_width(len(values)))


def difference(values: Sequence[float], base: Sequence[float], spread: Spread) -> Estimate:
    """How much the mean of `values` is above that of `base`."""
    return Estimate(statistics.mean(values) - statistics.mean(base), spread.half_width(len(values), len(base)))


def student_t(freedom: int) -> float:
    """The t for which 95 % of Student's distribution with that many degrees of freedom is within ±t."""
    low, high = 0.0, 1e3
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability of the interval ±t, as a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = total = math.cos(angle) if odd else 1.0
    for k in range(2 + odd, freedom, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    if odd:
        return 2 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))
    return math.sin(angle) * total

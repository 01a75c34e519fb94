"""The report as JSON and as Markdown."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu.measuring import Measurement, Profile


@dataclass(frozen=True)
class Result:
    """The outcome of a case: a measurement, or the reason why there is none."""

    part: str
    name: str
    baseline: str  # the case of the same part to compare with, or empty
    seconds: float  # that the case took
    measurement: Measurement | None = None
    failure: str = ""


@dataclass
class Report:
    """The results so far."""

    environment: Mapping[str, Any]
    results: list[Result] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The inverse of `to_json`."""
        fields = json.loads(text)
        return cls(fields["environment"], [_result(**each) for each in fields["results"]])

    def add(self, result: Result) -> None:
        """Add a result, in place of an earlier one of the same case."""
        self.results = [each for each in self.results if (each.part, each.name) != (result.part, result.name)]
        self.results.append(result)

    def has(self, part: str, name: str) -> bool:
        """Whether a case has been measured."""
        return any((each.part, each.name) == (part, name) and each.measurement for each in self.results)

    def to_json(self) -> str:
        """All numbers; rates are tokens a second, of target or output tokens."""
        return json.dumps({"environment": dict(self.environment), "results": list(map(asdict, self.results))}, indent=2)

    def to_markdown(self) -> str:
        """A table for each part, then the kernels that took most of the time."""
        sections = [
            "# GPU report",
            _LEGEND,
            _table(("", ""), [(name, str(fact)) for name, fact in self.environment.items()]),
        ]
        for part in dict.fromkeys(result.part for result in self.results):
            rows = [self._row(result) for result in self.results if result.part == part]
            sections += [f"## {part.capitalize()}", _table(_COLUMNS, rows)]
        if kernels := [*filter(None, map(_kernels, self.results))]:
            sections += ["## Kernels", *kernels]
        return "\n\n".join(sections) + "\n"

    def _row(self, result: Result) -> tuple[str, ...]:
        if result.measurement is None:
            return (result.name, f"failed: {result.failure.replace('|', '/')}", *[""] * (len(_COLUMNS) - 2))
        found, profile = result.measurement, result.measurement.profile
        return (
            result.name,
            f"{found.rate:,.0f}",
            f"{min(found.rates):,.0f}–{max(found.rates):,.0f}",
            self._ratio(result),
            result.baseline,
            "" if found.utilization is None else f"{found.utilization:.1%}",
            "" if profile.idle is None else f"{profile.idle:.1%}",
            "" if found.peak_memory is None else f"{found.peak_memory / 2**30:.1f}",
            profile.failure.replace("|", "/") or ", ".join(profile.attention) or "not torch's",
        )

    def _ratio(self, result: Result) -> str:
        """The rate relative to the baseline's."""
        baseline = next(
            (other for other in self.results if (other.part, other.name) == (result.part, result.baseline)), None
        )
        if result.measurement is None or baseline is None or baseline.measurement is None:
            return ""
        return f"{result.measurement.rate / baseline.measurement.rate:.2f}"


def _result(measurement: Mapping[str, Any] | None, **fields: Any) -> Result:
    """The result with these fields, the measurement's as `asdict` gives them."""
    if measurement is None:
        return Result(**fields)
    profile = Profile(**measurement["profile"])
    return Result(**fields, measurement=Measurement(**{**measurement, "profile": profile}))


_LEGEND = """Rates are of target or output tokens. "× baseline" is the rate relative to that of the case in the next
column. Each case differs from its baseline as its name says. A value below 1 means that it is slower."""
_COLUMNS = ("", "tokens/s", "range", "× baseline", "baseline", "utilization", "idle", "GiB", "attention")


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _kernels(result: Result) -> str:
    if result.measurement is None or not result.measurement.profile.kernels:
        return ""
    shares = (f"`{name}` {share:.0%}" for name, share in result.measurement.profile.kernels.items())
    return f"{result.part}, {result.name}: {', '.join(shares)}"

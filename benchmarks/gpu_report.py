"""Benchmark: what one GPU does in training and decoding, and what to change.

    PYTHONPATH=. python benchmarks/gpu_report.py | tee report.txt
    PYTHONPATH=. python benchmarks/gpu_report.py --part check --part update
    PYTHONPATH=. python benchmarks/gpu_report.py --device cpu --quick    # runs all code, measures nothing of value

Needs torch 2.11 or newer with Triton, click and NumPy, but no dataset, no network and no compiled nmtkit. CTranslate2
is measured where it is installed.

Parts stand alone, and take ten minutes together; the seconds of each are in `gpu.cases.PARTS`. Each case runs in its
own process, so a failure or a hang costs that case. Kernels that are not in use are compared with torch and timed
(`check` to `gemm`). Training and decoding run once to warm up, then three times with the same work. Weights and
sentences are random, with the lengths of news.

Each decision follows from its rule: a kernel needs at most a given fraction of today's time; a change to training or
decoding is at least 3 % faster or slower, with ranges that do not overlap. A path without a gain goes.
"""

import os
import time

import click
from gpu.cases import FULL, PARTS, QUICK, Case, Sizes
from gpu.isolation import CaseError, run_isolated
from gpu.measuring import Measurement

_GAIN = 1.03


def measure_part(name: str, sizes: Sizes, device: str) -> int:
    """Measure and print the cases of a part that begin within its time. Returns the number of failures."""
    part, failures = PARTS[name], 0
    end = time.monotonic() + part.seconds * sizes.patience
    found: dict[str, Measurement] = {}
    click.echo(f"== {name}")
    for case in part.cases(sizes, device):
        seconds = end - time.monotonic()
        try:
            if seconds <= 0:
                raise CaseError(f"not begun: the part has used its {part.seconds:.0f} s")
            measurement = run_isolated(case.measure, case.variables, seconds)
        except CaseError as error:
            click.echo(f"{case.name}: failed: {error}")
            failures += 1
            continue
        if measurement is not None:
            found[case.name] = measurement
            click.echo(f"{case.name}: {measurement}")
            for line in decisions(case, found):
                click.echo(f"decision: {line}")
    return failures


def decisions(case: Case, found: dict[str, Measurement]) -> list[str]:
    """What follows from the measurement of a case, given all measurements of its part."""
    measured, baseline = found[case.name], found.get(case.baseline)
    lines = []
    if case.goal:
        lines.append(f"goal of {case.goal:,.0f}: {'reached' if measured.rate >= case.goal else 'missed'}")
    if baseline is not None:
        ratio = measured.rate / baseline.rate
        verdict = f"no difference from {case.baseline}"
        if ratio >= _GAIN and min(measured.rates) > max(baseline.rates):
            verdict = f"faster than {case.baseline}"
        elif ratio <= 1 / _GAIN and max(measured.rates) < min(baseline.rates):
            verdict = f"slower than {case.baseline}"
        lines.append(f"{case.name}: {verdict}, {ratio:.2f} of its rate")
    return lines


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only this part; repeatable.")
@click.option("--device", default="cuda", show_default=True, help="cuda or cpu.")
@click.option("--quick", is_flag=True, help="Tiny sizes, to try the benchmark itself.")
def main(parts: tuple[str, ...], device: str, quick: bool) -> None:
    """Print the measurements and decisions of all parts, or of those given."""
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    sizes = QUICK if quick else FULL
    failures = sum(measure_part(part, sizes, device) for part in parts or PARTS)
    click.echo(f"{failures} cases failed")


if __name__ == "__main__":
    main()

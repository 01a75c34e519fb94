"""Benchmark: training and decoding on one GPU, what each technique brings, and other toolkits on the same card.

    PYTHONPATH=. python benchmarks/gpu_report.py --output gpu-report
    PYTHONPATH=. python benchmarks/gpu_report.py --output gpu-report --part training --part techniques
    PYTHONPATH=. python benchmarks/gpu_report.py --device cpu --quick    # runs all code, measures nothing of value

Needs torch 2.11 or newer, click and NumPy, but no dataset, no network and no compiled nmtkit. transformers and
ctranslate2 are measured where they are installed.

Each case runs in its own process: once to warm up, then three times with the same work. The report has the median, or
the reason why the case failed. Weights and sentences are random, with the lengths of news. Utilization counts the
operations of the model on real tokens; idle is the fraction of the time without a kernel. Both are measured on a GPU
only.

A part takes at most eight minutes. The report is written after each case, as OUTPUT.json and OUTPUT.md. The same
command again, or one for other parts, completes it: only cases that failed or are missing are measured.
"""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from gpu.cases import FULL, PARTS, QUICK, Case, Sizes
from gpu.environment import IDENTITY, describe
from gpu.isolation import CaseError, run_isolated
from gpu.results import Report, Result

PART_SECONDS = 480.0


def measure_part(report: Report, part: str, sizes: Sizes, device: str, output: Path) -> None:
    """Measure the cases of a part that begin within its time."""
    end = time.monotonic() + PART_SECONDS
    for case in PARTS[part](sizes, device):
        if report.has(part, case.name):
            continue
        result = measure_case(part, case, min(sizes.seconds, end - time.monotonic()))
        report.add(result)
        found = result.measurement
        click.echo(f"{part}: {case.name}: {f'{found.rate:,.0f} tokens/s' if found else f'failed: {result.failure}'}")
        write(report, output)


def begin(environment: Mapping[str, Any], output: Path) -> Report:
    """The report of earlier commands in the same environment if there is one, else an empty one."""
    earlier = output.with_name(f"{output.name}.json")
    if not earlier.exists():
        return Report(environment)
    report = Report.from_json(earlier.read_text(encoding="utf-8"))
    if any(report.environment.get(name) != environment.get(name) for name in IDENTITY):
        differs = "another device, other packages, another commit or other sizes"
        raise click.ClickException(f"{earlier} was measured with {differs}: use a different --output")
    click.echo(f"completing {earlier}: cases that it has are not measured again")
    return report


def measure_case(part: str, case: Case, seconds: float) -> Result:
    """The result of a case that may take so many seconds."""
    start = time.monotonic()
    measurement, failure = None, f"not begun: the part has used its {PART_SECONDS:.0f} s"
    if seconds > 0:
        try:
            measurement, failure = run_isolated(case.measure, case.variables, seconds), ""
        except CaseError as error:
            failure = str(error)
    return Result(part, case.name, case.baseline, time.monotonic() - start, measurement, failure)


def write(report: Report, output: Path) -> None:
    """Write the report so far as JSON and as Markdown."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_name(f"{output.name}.json").write_text(report.to_json(), encoding="utf-8")
    output.with_name(f"{output.name}.md").write_text(report.to_markdown(), encoding="utf-8")


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only this part; repeatable.")
@click.option("--output", default="gpu-report", type=click.Path(path_type=Path), show_default=True)
@click.option("--device", default="cuda", show_default=True, help="cuda or cpu.")
@click.option("--quick", is_flag=True, help="Tiny sizes, to try the benchmark itself.")
def main(parts: tuple[str, ...], output: Path, device: str, quick: bool) -> None:
    """Write OUTPUT.json and OUTPUT.md with the measurements of all parts, or of those given."""
    sizes = QUICK if quick else FULL
    try:
        environment = run_isolated(partial(describe, device, sizes.product), {}, sizes.seconds)
    except CaseError as error:
        raise click.ClickException(str(error)) from error
    report = begin({"sizes": "quick" if quick else "full", **environment}, output)
    for part in parts or PARTS:
        measure_part(report, part, sizes, device, output)
    failed = sum(result.measurement is None for result in report.results)
    click.echo(f"wrote {output}.json and {output}.md: {len(report.results)} cases, {failed} failed")


if __name__ == "__main__":
    main()

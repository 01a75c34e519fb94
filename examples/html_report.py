"""Self-contained HTML pages for the reports of recipes: tables, their cells, pictures, and the machine."""

import datetime
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import click
import curves
import torch
from matplotlib.figure import Figure

import nmtkit
from nmtkit.cli.options import PathName
from nmtkit.storage.atomic import staged_file
from nmtkit.wording import counted, escaped

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem; color: #222 }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #ccc; text-align: left; vertical-align: top }
.numbers td { white-space: nowrap }
pre { background: #f4f4f4; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere }
svg { max-width: 100%; height: auto } .figures { display: flex; flex-wrap: wrap; gap: 1rem }
small { color: #555; overflow-wrap: anywhere }
@media (max-width: 40rem) {
  .texts tr { display: block; border-bottom: 1px solid #ccc } .texts th { display: none }
  .texts td { display: block; border: 0; padding: .1rem 0 }
  .texts td::before { content: attr(data-label) ": "; color: #555 }
}
"""


output_option = click.option(
    "--output", default="report.html", show_default=True, type=PathName(), metavar="FILE", help="The page to write."
)


def write(path: Path, content: str) -> None:
    """Write a page; it appears when it is complete."""
    with staged_file(path) as file:
        file.write(content.encode())


def page(title: str, summary: str, sections: Mapping[str, str]) -> str:
    """A page: its title, the lines of a summary as text, and HTML by heading; sections without content are left out."""
    body = "".join(f"<h2>{escape(name)}</h2>\n{content}\n" for name, content in sections.items() if content)
    lines = escape(summary).replace("\n", "<br>")
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f"<h1>{escape(title)}</h1>\n<p>{lines}</p>\n{body}</html>\n"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "numbers") -> str:
    """A table. In one of the kind "texts", a cell has the direction of its text, and is a line of a narrow screen."""
    direction = ' dir="auto"' if kind == "texts" else ""
    lines = [f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in header)}</tr>\n"]
    for row in rows:
        cells = (
            f'<td data-label="{escape(name)}"{direction}>{escape(escaped(text))}</td>'
            for name, text in zip(header, row, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    return f'<div class="wide"><table class="{kind}">\n{"".join(lines)}</table></div>'


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean, with the sample's standard deviation if there are several values."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def picture(figure: Figure) -> str:
    """A figure as an SVG element."""
    text = curves.to_svg(figure).decode()
    return text[text.index("<svg") :]


def machine() -> str:
    """The machine and the versions that write this report, which also trained if the recipe ran as a whole."""
    return table(("this report", ""), [*machine_facts().items()], "facts")


def machine_facts() -> dict[str, str]:
    """The date, this machine and the versions, by name."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%d %B %Y, %H:%M UTC"),
        "processor": f"{_processor()}, {counted(os.cpu_count() or 1, 'core')}",
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": f"{platform.system()} {platform.machine()}",
        "versions": f"nmtkit {nmtkit.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }


def _processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()

"""Styled output on a terminal: colors, aligned numbers and tables, rendered by rich.

Callers check `is_styled` first. The functions return text whose only escape sequences are styles: input text is never
parsed as markup, and its control characters are escaped.
"""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO

from nmtkit.wording import escaped, format_value

if TYPE_CHECKING:
    from rich.console import RenderableType

# rich is slow to import and not needed in a pipe, so it is imported only in functions that use it.

NARROWEST = 60  # columns; on narrower terminals, text is plain
_DEFAULT_WIDTH = 80  # columns if the width is unknown
_VALUE_WIDTH = 9  # columns of a number in a log line
_INDENT = 9  # of continuation lines in the log, below the event


@dataclass(frozen=True)
class Table:
    """A table with at least one row, and the command to run `next` below it. Without `columns`, the first cell of a row
    is its label."""

    title: str
    rows: Sequence[Sequence[object]]
    columns: Sequence[str] = ()
    next: str = ""


def is_styled(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal for styled text: `moves_cursor` is true and NO_COLOR is not set."""
    return not os.environ.get("NO_COLOR") and moves_cursor(stream)


def moves_cursor(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that can show several bars: it is wide enough and TERM is not dumb."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return False
    return stream is not None and stream.isatty() and width(stream) >= NARROWEST


def width(stream: TextIO) -> int:
    """Return the width in columns of the terminal that a stream writes to."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):  # not an actual terminal
        return _DEFAULT_WIDTH


def styled_line(*parts: tuple[str, str]) -> str:
    """Format a line of texts, each with its style."""
    from rich.text import Text

    return _render(Text.assemble(*((escaped(text), style) for text, style in parts)), None)


def styled_event(clock: str, event: str, values: Mapping[str, object], columns: int) -> str:
    """Format a log line of numbers, aligned with earlier lines, and wrapped if it is long."""
    from rich.text import Text

    line = Text.assemble((f"{clock} ", "dim"), (f"{escaped(event)} ", "bold cyan"))
    for name, value in values.items():
        shown = escaped(format_value(value))
        cell = Text.assemble((escaped(name), "dim"), f" {shown:>{_VALUE_WIDTH}}  ")
        if len(line.plain.rpartition("\n")[2]) + len(cell) > columns:
            line.append("\n" + " " * _INDENT)
        line.append_text(cell)
    return _render(line, None)


def styled_table(table: Table, columns: int) -> str:
    """Format a table, with the command to run next below it, for a terminal of `columns` columns."""
    from rich.box import ROUNDED
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    title = Text(escaped(table.title), style="bold cyan")
    grid = Grid(title=title, title_justify="left", box=ROUNDED, border_style="dim", min_width=title.cell_len)
    for number, cell in enumerate(table.rows[0]):
        is_number = isinstance(cell, int | float) and bool(table.columns)
        header = Text(escaped(table.columns[number])) if table.columns else ""
        justify: Literal["right", "left"] = "right" if is_number else "left"
        grid.add_column(header, justify=justify, style="" if number else "bold", overflow="fold")
    grid.show_header = bool(table.columns)
    for row in table.rows:
        grid.add_row(*(Text(escaped(format_value(cell))) for cell in row))
    command = Text.assemble(("Next: ", "bold"), (escaped(table.next), "green"))
    return _render(Group(grid, command) if table.next else grid, columns)


def _render(content: "RenderableType", columns: int | None) -> str:
    """Render content with escape sequences. Without `columns` it is not wrapped, so a copied line stays one line."""
    from rich.console import Console

    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=columns or 10_000, highlight=False, legacy_windows=False)
    console.print(content, soft_wrap=columns is None)
    return output.getvalue().removesuffix("\n")

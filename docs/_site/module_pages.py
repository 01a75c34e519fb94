"""The modules of the package as Markdown, from the rooms of docs/architecture.md and the docstrings of the modules."""

import ast
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PLACEHOLDER = "<!-- modules -->"


def rooms() -> dict[str, int]:
    """The level of each room, in the order of the table in docs/architecture.md."""
    page = (_ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return {room: int(level) for level, room in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)}


def modules_of(markdown: str) -> str:
    """Replace the line `<!-- modules -->` by a table for each room that is a folder."""
    folders = [_ROOT / "nmtkit" / room for room in rooms() if (_ROOT / "nmtkit" / room).is_dir()]
    return markdown.replace(_PLACEHOLDER, "\n\n".join(map(_table, folders)))


def _table(folder: Path) -> str:
    rows = [
        f"| `{path.stem}` | {job.splitlines()[0]} |"
        for path in sorted(folder.glob("*.py"))
        if (job := ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
    ]
    return "\n".join([f"## {folder.name}\n", "| module | job |", "|---|---|", *rows])

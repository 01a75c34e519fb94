"""The errors and warnings of the package as Markdown, collected from its source."""

import ast
import html
import re
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[2] / "nmtkit"
_PLACEHOLDER = "<!-- messages -->"
_TABLE_HEAD = ("| message | kind |", "|---|---|")
_TITLES = {"cli": "Command line", "other": "Files, checkpoints, options"}  # otherwise the name of the part
_VALUE = re.compile(r"%(?:s|d|r|\.3g)")  # where the logger inserts a value
_WORD = re.compile("[A-Za-z]{2,}")
# constructor or method -> the kind of its messages
_KINDS = {
    "UserError": "error, exit code 2",
    "RunError": "error, exit code 1",
    "Interrupted": "error, exit code 128 + signal",
    "ValueError": "error, part of a longer message",
    "HTTPException": "error of the server",
    "warning": "warning",
    "info": "information",
}


def messages(markdown: str) -> str:
    """Replace the line `<!-- messages -->` by a table for each part of the package."""
    if _PLACEHOLDER not in markdown:
        return markdown
    parts: dict[str, set[str]] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        folder = path.relative_to(_PACKAGE).parts[0].removesuffix(".py")
        part = folder if (_PACKAGE / folder).is_dir() else "other"
        parts.setdefault(part, set()).update(_rows(path))
    tables = [
        "\n".join([f"## {_TITLES.get(part, part.capitalize())}\n", *_TABLE_HEAD, *sorted(rows, key=str.casefold)])
        for part, rows in sorted(parts.items(), key=lambda item: (item[0] == "other", item[0]))
        if rows
    ]
    return markdown.replace(_PLACEHOLDER, "\n\n".join(tables))


def _rows(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        kind = _KINDS.get(node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", ""))
        text = next((found for argument in node.args if (found := _text(argument))), None)
        if kind and text and len(_WORD.findall(text)) > 1:
            yield f"| {_cell(text)} | {kind} |"


def _text(node: ast.expr) -> str | None:
    """The text of a message, with `…` for its values; None for an expression that is not a text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join((_text(part) or "") if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.IfExp):
        return _text(node.body)
    return None


def _cell(text: str) -> str:
    return (
        html.escape(_VALUE.sub("…", text), quote=False).replace("|", "&#124;").replace("*", r"\*").replace("_", r"\_")
    )

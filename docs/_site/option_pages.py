"""The options of a command as Markdown, from the command itself."""

import html
import re
from inspect import cleandoc

import click

from nmtkit.cli.start import load_command

_PLACEHOLDER = re.compile(r"^<!-- options of nmt-([a-z]+) -->$", re.MULTILINE)
_COMMON = "General"


def options_of(markdown: str) -> str:
    """Replace each line `<!-- options of nmt-NAME -->` by the usage, description and options of that command."""
    return _PLACEHOLDER.sub(lambda match: _described(match[1]), markdown)


def _described(name: str) -> str:
    command = load_command(name)
    context = click.Context(command, info_name=f"nmt-{name}")
    usage = f"```text\nnmt-{name} {' '.join(command.collect_usage_pieces(context))}\n```"
    groups: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            groups.setdefault(getattr(parameter, "heading", _COMMON), []).append(_row(parameter, context))
    groups[_COMMON] = groups.pop(_COMMON)
    sections = [
        f"## {heading}\n\n| option | default | |\n|---|---|---|\n" + "\n".join(rows) for heading, rows in groups.items()
    ]
    return "\n\n".join([usage, *map(_paragraph, cleandoc(command.help or "").split("\n\n")), *sections])


def _paragraph(text: str) -> str:
    """A paragraph of a command's help. A backspace, click's mark for text with fixed lines, makes it a code block."""
    if "\b" in text:
        return f"```bash\n{text.replace(chr(8), '').strip()}\n```"
    return _escaped(text)


def _row(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None
    default = str(option.get_help_extra(context).get("default", ""))
    anchor = max(option.opts, key=len).strip("-")
    shown = f"`{default}`" if default and not default.startswith("(") else default.strip("()")
    return f'| <a id="{anchor}"></a>`{record[0]}` | {shown} | {_escaped(option.help or "")} |'


def _escaped(text: str) -> str:
    """Text without Markdown: its special characters are shown as they are."""
    text = re.sub(r"([\\*_`\[\]])", r"\\\1", " ".join(text.split()))
    return html.escape(text, quote=False).replace("|", "&#124;")

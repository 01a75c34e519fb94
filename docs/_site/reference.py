"""The generated parts of reference pages, such as the options of commands. `make reference` writes them."""

import ast
import json
import re
import textwrap
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.start import load_command
from nmtkit.config import Config
from nmtkit.model.config import ModelConfig
from nmtkit.training.config import TrainingOptions

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("docs/reference/*.md"))
SPECIFICATION = ROOT / "nmtkit/serving/openapi.json"
# <!-- make reference: GENERATOR ARGUMENT... -->
_PART = re.compile(r"(?P<begin><!-- make reference: (?P<what>.+?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
# `code`, 'value', --option, command, <tag>, d_ff
_CODE = re.compile(r"`[^`]*`|(?<!\w)'[^'\s]+'|(?<![\w-])--[a-z][a-z0-9-]*|\bnmt-[a-z]+|<\S+?>|\w*_[\w…]*")
_MARKS = "`'"
_OTHER_OPTIONS = "Every command"


def current(markdown: str) -> str:
    """A page with its generated parts as they should be now."""

    def part(match: re.Match[str]) -> str:
        generator, *arguments = match["what"].split()
        return f"{match['begin']}\n{_GENERATORS[generator](*arguments)}\n\n{match['end']}"

    return _PART.sub(part, markdown)


# --- options of a command


def _options(name: str) -> str:
    command = load_command(name.removeprefix("nmt-"))
    context = command.make_context(name, [], resilient_parsing=True)
    usage = f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```"
    groups: dict[str, list[str]] = {}
    for parameter in command.params:  # without --help, whose names depend on earlier calls of click
        if isinstance(parameter, click.Option) and not parameter.hidden:
            groups.setdefault(getattr(parameter, "heading", _OTHER_OPTIONS), []).append(_option(parameter, context))
    groups[_OTHER_OPTIONS] = groups.pop(_OTHER_OPTIONS)
    sections = [f"## {heading}\n\n" + "\n".join(options) for heading, options in groups.items()]
    return "\n\n".join([usage, *map(_paragraph, cleandoc(command.help or "").split("\n\n")), *sections])


def _paragraph(text: str) -> str:
    """A paragraph of a command's help. A backspace, click's mark for text with fixed lines, makes it a code block."""
    if "\b" in text:
        return f"<!-- not run: examples with names of files -->\n```bash\n{text.replace(chr(8), '').strip()}\n```"
    return _markdown(text)


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None
    extra = option.get_help_extra(context)
    default = str(extra.get("default", ""))
    shown = _markdown(default.strip("()")) if default.startswith("(") else f"`{default}`"
    notes = [" Required."] * ("required" in extra) + [f" Default: {shown}."] * bool(default)
    return f"* `{record[0]}`: {_markdown(option.help or '')}{''.join(notes)}"


def _markdown(text: str) -> str:
    """A help text as Markdown, with options, commands and names in code font."""
    return _CODE.sub(lambda match: f"`{match[0].strip(_MARKS)}`", " ".join(text.split()))


# --- Python


def _training_options() -> str:
    """The groups of `TrainingOptions`, and the heading under which nmt-train lists the options of each."""
    groups: dict[str, type[Config]] = {"model": ModelConfig, **TrainingOptions.groups()}
    rows = [f"| `{name}` | `{group.__name__}` | {group.heading} |" for name, group in groups.items()]
    return "\n".join(["| field | class | options |\n|---|---|---|", *rows])


def _python(module: str, *names: str) -> str:
    """Signatures and docstrings of functions, classes and methods (`Class.method`) of a module."""
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    return "\n\n".join(_definition(module, name, source) for name in names)


def _definition(module: str, name: str, source: str) -> str:
    parent, _, own = name.rpartition(".")
    nodes = [each for each in ast.walk(ast.parse(source)) if getattr(each, "name", None) == (parent or name)]
    found = nodes[0].body if parent and isinstance(nodes[0], ast.ClassDef) else nodes
    node = next(each for each in found if _docstring(each) and getattr(each, "name", None) == own)
    if isinstance(node, ast.ClassDef):
        code = "\n".join(ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign))
    else:
        assert isinstance(node, ast.FunctionDef)
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        code = textwrap.dedent("\n".join(source.splitlines()[first - 1 : node.body[0].lineno - 1])).rstrip(":")
    heading = f"#### {name}" if parent else f"### {name}\n\n`from {module} import {name}`"
    return "\n\n".join([heading, *[f"```py\n{code}\n```"] * bool(code), _docstring(node)])


def _docstring(node: ast.AST) -> str:
    """The docstring of a definition, with its example as a code block; empty without one."""
    text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
    return re.sub(r"(^>>> (?:.+\n)+)", r"```pycon\n\1```\n", text or "", flags=re.MULTILINE)


# --- HTTP API


def _http_api() -> str:
    api = json.loads(SPECIFICATION.read_text(encoding="utf-8"))
    endpoints = [
        _endpoint(f"{method.upper()} {path}", operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    ]
    objects = [_object(name, schema) for name, schema in api["components"]["schemas"].items()]
    return "\n\n".join([*endpoints, "## Objects", *objects])


def _endpoint(title: str, operation: dict[str, Any]) -> str:
    rows = [
        f"| {status} | {response['description']} | {_body(response)} |"
        for status, response in operation["responses"].items()
    ]
    request = f" Request body: {_body(operation['requestBody'])}." if "requestBody" in operation else ""
    return "\n".join(
        [f"## {title}\n\n{operation['summary']}.{request}\n\n| status | meaning | body |\n|---|---|---|", *rows]
    )


def _body(message: dict[str, Any]) -> str:
    """The type of the body of a request or response."""
    if "$ref" in message:
        return _type(message)
    return ", ".join(
        _type(media["schema"]) if name == "application/json" else f"`{name}`"
        for name, media in message["content"].items()
    )


def _object(name: str, schema: dict[str, Any]) -> str:
    inherited = "".join(f"All fields of {_type(base)}, and:\n\n" for base in schema.get("allOf", ()))
    rows = [
        f"| `{field}` | {_type(value)} | {value['description']}{'; required' * (field in schema.get('required', ()))} |"
        for field, value in schema["properties"].items()
    ]
    return "\n".join([f"### {name}\n\n{inherited}| field | type | meaning |\n|---|---|---|", *rows])


def _type(schema: dict[str, Any]) -> str:
    """The type of a value, as a link if it is one of the objects."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else kind


# --- modules


def rooms() -> dict[str, int]:
    """The level of each room, in the order of the table in docs/architecture.md."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return {room: int(level) for level, room in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)}


def _modules() -> str:
    """A table for each room that is a folder, from the docstrings of its modules."""
    return "\n\n".join(_room(ROOT / "nmtkit" / room) for room in rooms() if (ROOT / "nmtkit" / room).is_dir())


def _room(folder: Path) -> str:
    rows = [
        f"| `{path.stem}` | {job.splitlines()[0]} |"
        for path in sorted(folder.glob("*.py"))
        if (job := ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
    ]
    return "\n".join([f"## {folder.name}\n\n| module | job |\n|---|---|", *rows])


_GENERATORS: dict[str, Callable[..., str]] = {
    "options": _options,
    "training-options": _training_options,
    "python": _python,
    "http-api": _http_api,
    "modules": _modules,
}

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(current(page.read_text(encoding="utf-8")), encoding="utf-8")

"""The HTTP API as Markdown, from its OpenAPI description."""

import json
from pathlib import Path
from typing import Any

SPECIFICATION = Path(__file__).parents[2] / "nmtkit/serving/openapi.json"
_PLACEHOLDER = "<!-- endpoints -->"


def endpoints(markdown: str) -> str:
    """Replace the line `<!-- endpoints -->` by all endpoints and the objects that they read and write."""
    if _PLACEHOLDER not in markdown:
        return markdown
    api = json.loads(SPECIFICATION.read_text(encoding="utf-8"))
    paths = [
        _endpoint(f"{method.upper()} {path}", operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [_schema(name, schema) for name, schema in api["components"]["schemas"].items()]
    return markdown.replace(_PLACEHOLDER, "\n\n".join([*paths, "## Objects", *schemas]))


def _endpoint(title: str, operation: dict[str, Any]) -> str:
    rows = [
        f"| {status} | {response['description']} | {_content(response)} |"
        for status, response in operation["responses"].items()
    ]
    asked = f" Reads {_content(operation['requestBody'])}." if "requestBody" in operation else ""
    return "\n".join(
        [f"## {title}\n\n{operation['summary']}.{asked}\n\n| status | reason | body |\n|---|---|---|", *rows]
    )


def _content(message: dict[str, Any]) -> str:
    """The content type and object of a request or an answer."""
    if "$ref" in message:
        return _kind(message)
    return ", ".join(
        f"{_kind(media['schema'])} (`{name}`)" if "$ref" in json.dumps(media["schema"]) else f"`{name}`"
        for name, media in message["content"].items()
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    inherited = "".join(f"All fields of {_kind(base)}, and:\n\n" for base in schema.get("allOf", ()))
    required = schema.get("required", ())
    rows = [
        f"| `{field}` | {_kind(value)} | {'required' if field in required else ''} | {value['description']} |"
        for field, value in schema["properties"].items()
    ]
    return "\n".join([f"### {name}\n\n{inherited}| field | type | | |\n|---|---|---|---|", *rows])


def _kind(schema: dict[str, Any]) -> str:
    """The type of a value, as a link if it is one of the objects."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_kind(schema['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else kind

"""The documentation site: it builds without warnings, loads nothing from elsewhere, and its reference is current."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from collect import ROOT, rewrite_links, site_files
from patience import PATIENCE
from reference import PAGES, SPECIFICATION, current

from nmtkit.text.tokenizer import Tokenizer

DOCS = ROOT / "docs"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("zensical") is None, reason="needs the packages of the extra docs")
def test_the_site_builds_without_warnings_and_loads_no_external_resources() -> None:
    for command in (["docs/_site/collect.py"], ["-m", "zensical", "build", "--strict"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    loaded = r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\s\">]+)"
    pages = sorted((ROOT / "build/site").rglob("*.html"))
    foreign = {address for page in pages for address in re.findall(loaded, page.read_text(encoding="utf-8"))}
    assert len(pages) > 1
    assert foreign == set()


def test_the_navigation_lists_each_page_of_docs_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", navigation, re.MULTILINE)
    assert len(named) == len(set(named))
    addresses = {file: address for file, address in site_files().items() if file.endswith(".md")}
    assert set(named) <= set(addresses.values())
    assert {address for file, address in addresses.items() if file.startswith("docs/")} <= set(named)


def test_generated_parts_of_pages_are_current() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    outdated = [name for name, text in texts.items() if text != current(text)]
    assert outdated == [], "run: make reference"


def test_links_between_files_become_links_between_pages() -> None:
    text = "[a](../../examples/demo) [b](../results.md#speed) [c](../../nmtkit/errors.py) [d](https://a.org) [e](#here)"
    assert rewrite_links(text, "docs/how-to/train.md", site_files()) == (
        "[a](../examples/demo/README.md) [b](../results.md#speed) c [d](https://a.org) [e](#here)"
    )
    picture = "![p](attention.png) [q](../../docs/results.md)"
    assert rewrite_links(picture, "examples/tanaka/README.md", site_files()) == (
        "![p](attention.png) [q](../../results.md)"
    )


def test_the_messages_that_a_page_explains_exist() -> None:
    page = (DOCS / "reference/messages.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\* `([^`]+)`", page, re.MULTILINE)
    assert explained
    texts = {text for path in (ROOT / "nmtkit").rglob("*.py") for text in texts_of(path)}
    assert set(explained) - set(texts) == set()


def texts_of(path: Path) -> Iterator[str]:
    """The texts in a module, with `…` for the values that they contain."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%(?:\.\d)?[sdg]", "…", node.value).replace("%%", "%")


# --- HTTP API


def schema(name: str) -> dict[str, Any]:
    """An object of the OpenAPI description, with the fields that it inherits."""
    found: dict[str, Any] = specification()["components"]["schemas"][name]
    inherited = [schema(base["$ref"].rpartition("/")[2])["properties"] for base in found.get("allOf", ())]
    return found | {
        "properties": {key: value for part in (*inherited, found["properties"]) for key, value in part.items()}
    }


def specification() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SPECIFICATION.read_text(encoding="utf-8"))
    return found


def test_the_http_api_specification_lists_the_endpoints_and_request_fields_of_the_server(tokenizer: Tokenizer) -> None:
    pytest.importorskip("starlette")
    from echo_service import echo_service

    from nmtkit.serving import libretranslate, messages
    from nmtkit.serving.config import ServeConfig

    with echo_service(tokenizer, ServeConfig()) as (service, _):
        assert set(specification()["paths"]) == {route.path for route in service.app().routes}  # type: ignore[attr-defined]
    assert set(schema("Request")["properties"]) == set(messages.FIELDS)
    assert set(schema("LibreTranslateRequest")["properties"]) == set(libretranslate.FIELDS)


def test_server_responses_have_the_fields_of_the_http_api_specification(tiny_checkpoint: Path) -> None:
    pytest.importorskip("starlette")
    from nmtkit import Translator
    from nmtkit.serving.config import ServeConfig
    from nmtkit.serving.messages import read_request
    from nmtkit.serving.models import Model, languages_answer

    translator = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")
    model = Model(lambda lines, search, _: translator.stream(lines, search), translator.source, ("en", "de"))
    wanted = {"text": "the dog runs", "nbest": 2, "scores": True, "alignment": True}
    request = read_request(wanted, ServeConfig(), model)
    translations = list(translator.stream(request.lines, request.search(model.search)))
    found = request.answer(translations)
    assert set(found) == set(schema("Translations")["properties"])
    (line,) = found["translations"]
    assert set(line) == set(schema("Translation")["properties"])
    assert set(line["nbest"][0]) == set(schema("Hypothesis")["properties"])
    other = read_request({"q": "the dog runs", "alternatives": 1, "source": "auto"}, ServeConfig(), model)
    found = other.answer(translations)
    assert set(found) == set(schema("LibreTranslateTranslation")["properties"])
    assert set(found["detectedLanguage"]) == set(schema("DetectedLanguage")["properties"])
    assert set(languages_answer([model])[0]) == set(schema("Language")["properties"])

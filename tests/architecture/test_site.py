"""The documentation site: it builds without warnings, loads nothing from elsewhere, and its reference is complete."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from message_pages import messages
from navigation import expand
from openapi_page import SPECIFICATION, endpoints
from option_pages import options_of
from patience import PATIENCE
from repository import ROOT
from repository_links import other_pages, rewrite_links

DOCS = ROOT / "docs"
COMMANDS = sorted(path.stem for path in (ROOT / "bin").glob("nmt-*"))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the packages of the extra docs")
def test_the_site_builds_without_warnings_and_loads_no_external_resources(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    loaded = r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\s\">]+)"
    foreign = {address for page in pages for address in re.findall(loaded, page.read_text(encoding="utf-8"))}
    assert foreign == set()
    assert {path.stem for path in pages if path.parent.name == "reference"} >= set(COMMANDS)


def test_every_page_in_the_navigation_exists() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = [page for page in re.findall(r"^ +- (?:.*: )?(\S+\.md)$", navigation, re.M) if "*" not in page]
    assert named
    assert len(named) == len(set(named))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert set(named) - other_pages(ROOT).keys() - pages == set()


def test_navigation_patterns_expand_to_pages_that_are_listed_once() -> None:
    navigation = [{"Home": "index.md"}, {"Guides": ["how-to/*.md", "how-to/server*.md"]}, {"None": ["x/*.md"]}]
    pages = ["index.md", "how-to/b.md", "how-to/server-2.md", "how-to/a.md", "how-to/deep/c.md"]
    assert expand(navigation, pages) == [
        {"Home": "index.md"},
        {"Guides": ["how-to/a.md", "how-to/b.md", "how-to/server-2.md"]},
    ]


def test_the_page_of_messages_lists_errors_and_warnings_with_their_exit_codes() -> None:
    page = messages((DOCS / "reference/messages.md").read_text(encoding="utf-8"))
    assert "| --last and --best are mutually exclusive: use one of them | error, exit code 2 |" in page
    assert re.search(r"^\| no GPU memory is left .* \| error, exit code 1 \|$", page, re.M)
    assert re.search(r"^\| update … skipped: .* \| warning \|$", page, re.M)
    assert "%s" not in page


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_page_of_a_command_lists_all_options_in_its_help(command: str) -> None:
    page = (DOCS / f"reference/{command}.md").read_text(encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, str(ROOT / "bin" / command), "--help-all"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    of_help = re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", shown.stdout, re.M)
    assert of_help
    assert set(of_help) <= set(re.findall(r"(?<!\S)`?(?:-\w, )?(--[a-z0-9-]+)", options_of(page).replace("</a>", " ")))


def test_links_between_files_become_links_between_pages() -> None:
    text = "[a](../../examples/demo) [b](../results.md#speed) [c](../../nmtkit/errors.py) [d](https://a.org) [e](#here)"
    assert rewrite_links(text, "docs/how-to/x.md", "how-to/x.md") == (
        "[a](../examples/demo.md) [b](../results.md#speed) c [d](https://a.org) [e](#here)"
    )
    picture = "![p](attention.png) [q](../../README.md)"
    assert rewrite_links(picture, "examples/tanaka/README.md", "examples/tanaka.md") == (
        "![p](tanaka/attention.png) [q](../index.md)"
    )


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


def test_the_http_api_page_lists_every_endpoint_status_and_field() -> None:
    page = endpoints((DOCS / "reference/http-api.md").read_text(encoding="utf-8"))
    for path, methods in specification()["paths"].items():
        for method, operation in methods.items():
            (section,) = re.findall(rf"^## {method.upper()} {path}$(.*?)^## ", page, re.M | re.S)
            assert re.findall(r"^\| (\d+) ", section, re.M) == list(operation["responses"])
    for name, value in specification()["components"]["schemas"].items():
        section = page.partition(f"\n### {name}\n")[2].partition("\n\n#")[0]
        assert re.findall(r"^\| `(\w+)`", section, re.M) == list(value["properties"])


def test_the_http_api_specification_lists_the_endpoints_and_request_fields_of_the_server() -> None:
    pytest.importorskip("starlette")
    from nmtkit.serving import app, libretranslate, messages

    assert set(specification()["paths"]) == set(app.PATHS)
    assert set(schema("Request")["properties"]) == set(messages.FIELDS)
    assert set(schema("LibreTranslateRequest")["properties"]) == set(libretranslate.FIELDS)


def test_server_responses_have_the_fields_of_the_http_api_specification(tiny_checkpoint: Path) -> None:
    pytest.importorskip("starlette")
    from nmtkit import Translator
    from nmtkit.decoding.config import SearchConfig
    from nmtkit.serving.libretranslate import LibreTranslateRequest, languages_answer
    from nmtkit.serving.messages import TranslationRequest

    translator = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")
    request = TranslationRequest(("the dog runs",), nbest=2, scores=True, alignment=True)
    translations = list(translator.stream(request.lines, request.search(SearchConfig())))
    found = request.answer(translations, translator.source)
    assert set(found) == set(schema("Translations")["properties"])
    (line,) = found["translations"]
    assert set(line) == set(schema("Translation")["properties"])
    assert set(line["nbest"][0]) == set(schema("Hypothesis")["properties"])
    other = LibreTranslateRequest((request.lines,), is_list=False, alternatives=1, detected="en")
    found = other.answer(translations, translator.source)
    assert set(found) == set(schema("LibreTranslateTranslation")["properties"])
    assert set(found["detectedLanguage"]) == set(schema("DetectedLanguage")["properties"])
    assert set(languages_answer(("en", "de"))[0]) == set(schema("Language")["properties"])

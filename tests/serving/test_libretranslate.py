"""Requests in the form of LibreTranslate's API."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")

from asgi_client import Answer, part, send_request, whole
from echo_service import echo_service

from nmtkit.serving.config import ServeConfig
from nmtkit.text.tokenizer import Tokenizer

Ask = Callable[..., Answer]


@pytest.fixture
def ask(tokenizer: Tokenizer) -> Iterator[Ask]:
    """Send a request to /translate."""
    with echo_service(tokenizer, ServeConfig(max_queue=4, max_request_chars=100)) as (service, _):
        app = service.app()
        yield lambda **values: asyncio.run(send_request(app, [whole(**values)]))


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"q": "the dog", "source": "en", "target": "de"}, {"translatedText": "the dog"}),
        ({"q": "the dog", "format": "text", "api_key": "x"}, {"translatedText": "the dog"}),
        ({"q": "a\n\nb\n"}, {"translatedText": "a\n\nb\n"}),
        ({"q": ["a", "", "b\nc"]}, {"translatedText": ["a", "", "b\nc"]}),
        ({"q": []}, {"translatedText": []}),
        ({"q": "a", "alternatives": 2}, {"translatedText": "a", "alternatives": ["2 a", "3 a"]}),
        ({"q": "a", "alternatives": 99}, {"translatedText": "a", "alternatives": ["2 a", "3 a", "4 a"]}),
        ({"q": "a\n\nb", "alternatives": 1}, {"translatedText": "a\n\nb", "alternatives": ["2 a\n\n2 b"]}),
        ({"q": ["a", ""], "alternatives": 1}, {"translatedText": ["a", ""], "alternatives": [["2 a"], []]}),
        (
            {"q": "a", "source": "auto"},
            {"translatedText": "a", "detectedLanguage": {"language": "en", "confidence": 100}},
        ),
        (
            {"q": ["a", "b"], "source": "auto"},
            {"translatedText": ["a", "b"], "detectedLanguage": [{"language": "en", "confidence": 100}] * 2},
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_request_with_q_is_answered_in_the_form_of_libretranslate(
    ask: Ask, asked: dict[str, Any], answer: dict[str, Any]
) -> None:
    found = ask(**asked)
    assert (found.status, found.values) == (200, answer)


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        ({"source": "fr"}, 400, 'no model for source "fr": the language pairs are en-de'),
        (
            {"source": "auto", "target": "en"},
            400,
            'no model for source "auto" and target "en": the language pairs are en-de',
        ),
        ({"target": ["de"]}, 400, "target: a string is expected"),
        ({"format": "xml"}, 400, 'format: "text" or "html" is expected'),
        ({"alternatives": -1}, 400, "alternatives: a whole number is expected"),
        ({"q": 7}, 400, "q: a string, or a list of strings, is expected"),
        ({"nbest": 2}, 400, 'the field "nbest" is unknown (known: q, source, target, format, alternatives, api_key)'),
        ({"q": ["a\nb", "c\nd\ne"]}, 413, "5 lines are too many: the limit is 4"),
        ({"q": "x" * 40, "alternatives": 2}, 413, "40 characters times nbest 3 are too many: the limit is 100"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_unsupported_request_is_refused_with_the_reason(
    ask: Ask, asked: dict[str, Any], status: int, message: str
) -> None:
    found = ask(**{"q": "a", **asked})
    assert (found.status, found.values) == (status, {"error": message})


def test_the_languages_are_those_of_the_model(tokenizer: Tokenizer) -> None:
    with echo_service(tokenizer, ServeConfig()) as (service, _):
        found = asyncio.run(send_request(service.app(), [], "GET", "/languages"))
    assert found.values == [
        {"code": "en", "name": "en", "targets": ["de"]},
        {"code": "de", "name": "de", "targets": []},
    ]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (
            {"q": "<p>the <b>dog</b></p>\n<p>a cat. <br>the dog.</p>", "format": "html", "source": "auto"},
            {
                "translatedText": "<p>the <b>dog</b></p>\n<p>a cat. <br>the dog.</p>",
                "detectedLanguage": {"language": "en", "confidence": 100},
            },
        ),
        ({"q": ["<i>a</i>", ""], "format": "html", "alternatives": 1}, {"translatedText": ["<i>a</i>", ""]}),
        ({"text": "<x>a</x>\n<y/>", "tag_handling": "xml"}, {"translations": [{"text": "<x>a</x>\n<y/>"}]}),
        (
            {"text": ["<kbd>a  b</kbd>"], "tag_handling": "html", "ignore_tags": ["kbd"]},
            {"translations": [{"text": "<kbd>a  b</kbd>"}]},
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_tags_of_a_text_are_kept(ask: Ask, asked: dict[str, Any], answer: dict[str, Any]) -> None:
    found = ask(**asked)
    assert (found.status, found.values) == (200, answer)


def form(name: str, content: bytes, field: str = "file") -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """The body and the headers of a form with a file."""
    head = f'--x\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
    body = head.encode() + content + b'\r\n--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n--x--\r\n'
    return body, ((b"content-type", b"multipart/form-data; boundary=x"), (b"host", b"example.org"))


def test_a_file_is_translated_and_downloaded(tokenizer: Tokenizer) -> None:
    with echo_service(tokenizer, ServeConfig()) as (service, _):
        app = service.app()
        body, headers = form("mein text.html", b"<p>the  <b>dog</b>\n</p>")
        answer = asyncio.run(send_request(app, [part(body)], path="/translate_file", headers=headers))
        address = answer.values["translatedFileUrl"]
        path = address.removeprefix("http://example.org")
        assert path.endswith("/mein%20text.html")
        found = asyncio.run(send_request(app, [part(b"")], "GET", path.replace("%20", " ")))
        assert found.body == b"<p>the  <b>dog</b>\n</p>"
        assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''mein%20text.html"
        lost = asyncio.run(send_request(app, [part(b"")], "GET", "/download_file/x/mein text.html"))
        assert (lost.status, lost.values) == (404, {"error": "no such file: translated files are kept for ten minutes"})


@pytest.mark.parametrize(
    ("request_form", "status", "message"),
    [
        (form("a.exe", b"MZ"), 400, "files ending in .exe are not supported: send csv, docx, html"),
        (form("a.docx", b"MZ"), 400, "the document is a damaged zip file"),
        (form("a.txt", b"a", "other"), 400, 'the form has no file with the name "file"'),
        (form("a.txt", b"the dog " * 20), 413, "159 characters are too many: the limit is 100"),
        ((b"{}", ((b"content-type", b"application/json"),)), 415, "send a form (multipart/form-data) with a file"),
    ],
)
def test_a_file_that_cannot_be_translated_is_refused(
    request_form: tuple[bytes, Any], status: int, message: str, tokenizer: Tokenizer
) -> None:
    with echo_service(tokenizer, ServeConfig(max_request_chars=100)) as (service, _):
        body, headers = request_form
        sent = send_request(service.app(), [part(body)], path="/translate_file", headers=headers)
        found = asyncio.run(sent)
        assert found.status == status
        assert found.values["error"].startswith(message)

"""Requests to translate files, or texts with tags."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nmtkit.decoding.requests import Request
from nmtkit.decoding.translation import Translation
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.json_fields import TranslationRequest, bad_request, check_size, strings
from nmtkit.text.segment import PLACEHOLDERS

if TYPE_CHECKING:
    from nmtkit.documents.document import Document


def documents_request(
    documents: "Sequence[Document]", limits: ServeConfig, form: Callable[[list[bytes]], Any]
) -> TranslationRequest:
    """Create the request to translate documents. `form` creates the response from the bytes of the translated ones.
    Raises HTTPException 413 for too much text."""
    from nmtkit.documents import Prepared  # imported late, with all formats of documents

    prepared = [Prepared(document, (PLACEHOLDERS,)) for document in documents]
    lines = [Request.of(segment) for one in prepared for segment in one.segments]
    check_size([line.text for line in lines], 1, limits)

    def answer(translations: Sequence[Translation]) -> Any:
        results = iter(translations)
        finished = [one.finished([next(results).segment for _ in one.segments]) for one in prepared]
        return form([document.write(segments) for document, segments in zip(documents, finished, strict=True)])

    return TranslationRequest(lines, answer)


def read_markup(
    values: dict[str, Any], name: str, kind: str, limits: ServeConfig, form: Callable[[list[str]], dict[str, Any]]
) -> TranslationRequest:
    """Read the HTML or XML texts (`kind`) from the field `name` of the request's JSON `values`. `form` creates the
    response from the translated texts. Raises HTTPException: 400 if the request is malformed, 413 if it is too
    large."""
    from nmtkit.documents.document import Options
    from nmtkit.documents.lines import read_line

    texts = strings(values, name)
    ignored = values.get("ignore_tags") or []
    if not isinstance(ignored, list) or not all(isinstance(tag, str) for tag in ignored):
        raise bad_request("ignore_tags: a list of names is expected")
    check_size(texts, 1, limits)
    options = Options(kept=frozenset(ignored))
    documents = [read_line(text, kind, options) for text in texts]
    return documents_request(documents, limits, lambda contents: form([content.decode() for content in contents]))

"""Requests to translate files, or texts with tags."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.requests import Request
from nmtkit.decoding.translation import Translation
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.json_fields import bad_request, check_size, strings
from nmtkit.text.segment import PLACEHOLDERS, Segment
from nmtkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nmtkit.documents.document import Document


class Documents:
    """The documents of one request. `lines` are their segments."""

    def __init__(self, documents: "Sequence[Document]") -> None:
        from nmtkit.documents import Prepared  # imported late, with all formats of documents

        self._documents = [(document, Prepared(document, (PLACEHOLDERS,))) for document in documents]
        self.lines = tuple(Request.of(segment) for _, prepared in self._documents for segment in prepared.segments)

    def search(self, config: SearchConfig) -> SearchConfig:
        """Return the server's `config`, adapted to this request."""
        return replace(config, nbest=1)

    def write(self, translations: Sequence[Translation]) -> list[bytes]:
        """Return the bytes of the documents with the translations of `lines`."""
        results = iter([each.candidates[0].segment or Segment((each.text,)) for each in translations])
        return [
            document.write(prepared.finished([next(results) for _ in prepared.segments]))
            for document, prepared in self._documents
        ]


class MarkupRequest(Documents):
    """Texts with tags. `form` creates the response from the translated texts."""

    def __init__(self, documents: "Sequence[Document]", form: Callable[[list[str]], dict[str, Any]]) -> None:
        super().__init__(documents)
        self.form = form

    def answer(self, translations: Sequence[Translation], _: Tokenizer) -> dict[str, Any]:
        """Create the response as JSON values from the translations of `lines`."""
        return self.form([content.decode() for content in self.write(translations)])


def read_markup(
    values: dict[str, Any], name: str, kind: str, limits: ServeConfig, form: Callable[[list[str]], dict[str, Any]]
) -> MarkupRequest:
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
    request = MarkupRequest([read_line(text, kind, options) for text in texts], form)
    check_size([line.text for line in request.lines], 1, limits)
    return request

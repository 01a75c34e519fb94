"""Requests whose texts have tags: HTML or XML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.segments import Sentences, Sides
from nmtkit.decoding.translation import Translation
from nmtkit.documents.document import Options, SlicedDocument, Slot, Source
from nmtkit.documents.formats import READERS, ProtectedDocument
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.json_fields import bad_request, check_size, strings
from nmtkit.text.markup import KEPT, parse, render
from nmtkit.text.segment import Segment
from nmtkit.text.tokenizer import Tokenizer

KINDS = ("html", "xml")


@dataclass(frozen=True)
class MarkupRequest:
    """Texts with tags. `lines` are their sentences, and `form` makes the answer of the translated texts."""

    documents: Sequence[ProtectedDocument]
    sentences: Sentences
    form: Callable[[list[str]], dict[str, Any]]
    keeps_attention = True

    @property
    def lines(self) -> tuple[str, ...]:
        """The sentences to translate."""
        return tuple(sentence.text for sentence in self.sentences.to_translate())

    def search(self, config: SearchConfig) -> SearchConfig:
        """Adapt the server's `config` to this request."""
        return replace(config, nbest=1, alignment=True)

    def answer(self, translations: Sequence[Translation], _: Tokenizer) -> dict[str, Any]:
        """Create the answer as JSON values from the translations of `lines`."""
        for sentence, translation in zip(self.sentences.to_translate(), translations, strict=True):
            sentence.translation = translation
        results = iter(self.sentences.results())
        texts = [document.write([next(results) for _ in document.segments]).decode() for document in self.documents]
        return self.form(texts)


def read_markup(
    values: dict[str, Any],
    name: str,
    kind: str,
    limits: ServeConfig,
    sides: Sides,
    form: Callable[[list[str]], dict[str, Any]],
) -> MarkupRequest:
    """Read the texts with tags in the field `name`.

    Raises HTTPException: 400 if the request is malformed, 413 if it is too large.
    """
    texts = strings(values, name)
    ignored = values.get("ignore_tags") or []
    if not isinstance(ignored, list) or not all(isinstance(tag, str) for tag in ignored):
        raise bad_request("ignore_tags: a list of names is expected")
    check_size(texts, 1, limits)
    kept = KEPT.union(ignored)
    documents = [ProtectedDocument(_document(text, kind, kept)) for text in texts]
    segments: list[Segment] = [segment for document in documents for segment in document.segments]
    request = MarkupRequest(documents, Sentences(sides, segments), form)
    check_size(request.lines, 1, limits)
    return request


def _document(text: str, kind: str, kept: frozenset[str]) -> Any:
    """A fragment of HTML with its blocks, or a segment of XML."""
    if kind == "html":
        return READERS["html"](text.encode(), Options(kept=kept))
    segment = parse(text, False, kept)
    slots = [Slot(0, len(text), segment, lambda result, raws: render(result, False, raws))] if text else []
    return SlicedDocument(Source(text), slots)

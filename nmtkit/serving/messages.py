"""The JSON of requests and responses."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.json_fields import bad_request, check_names, check_size, flag, strings
from nmtkit.serving.libretranslate import LibreTranslateRequest, read_libretranslate
from nmtkit.serving.markup import MarkupRequest, read_markup
from nmtkit.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TranslationRequest:
    """Lines to translate, and the requested details. The JSON field `text` becomes `lines`."""

    lines: tuple[str, ...]
    nbest: int | None = None
    scores: bool = False
    alignment: bool = False

    def search(self, config: SearchConfig) -> SearchConfig:
        """Return the server's `config`, adapted to this request."""
        return replace(config, nbest=self.nbest or 1, alignment=self.alignment)

    def answer(self, translations: Sequence[Translation], source: Tokenizer) -> dict[str, Any]:
        """Create the response as JSON values. Alignments count words of the tokenizer `source`."""
        return {"translations": [_translation(self, translation, source) for translation in translations]}


FIELDS = (
    *("text", "source", "target", "source_lang", "target_lang"),
    *(field.name for field in fields(TranslationRequest)[1:]),
    *("tag_handling", "ignore_tags"),
)
AnyRequest = TranslationRequest | LibreTranslateRequest | MarkupRequest


def check_media_type(headers: Headers) -> None:
    """Raise HTTPException 415 unless the headers declare JSON, which pages from other origins cannot send."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the header Content-Type: application/json")


def read_request(values: dict[str, Any], limits: ServeConfig, beam: int, source: str) -> AnyRequest:
    """Check a request to a model with the language `source`. Raises HTTPException: 400 if malformed, 413 if large."""
    if "q" in values and "text" not in values:
        return read_libretranslate(values, limits, beam, source)
    check_names(values, "text", FIELDS)
    texts = strings(values, "text")
    lines = texts[0].split("\n") if isinstance(values["text"], str) else texts
    nbest = values.get("nbest")
    if nbest is not None and (type(nbest) is not int or not 1 <= nbest <= beam):
        raise bad_request(f"nbest: a number from 1 to {beam} is expected")
    if (kind := values.get("tag_handling")) is not None:
        if kind not in ("html", "xml") or nbest is not None or values.get("scores") or values.get("alignment"):
            raise bad_request('tag_handling: "html" or "xml" is expected, without nbest, scores and alignment')
        return read_markup(
            values, "text", kind, limits, lambda texts: {"translations": [{"text": text} for text in texts]}
        )
    scores, alignment = (flag(values, name) for name in ("scores", "alignment"))
    check_size(lines, nbest or 1, limits)
    return TranslationRequest(tuple(lines), nbest, scores, alignment)


def json_object(body: bytes) -> dict[str, Any]:
    """Parse the body of a request. Raises HTTPException 400 if it is not a JSON object."""
    try:
        values = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise bad_request('the body is not a JSON object: send one such as {"text": "A dog runs."}')
    return values


def _translation(request: TranslationRequest, translation: Translation, source: Tokenizer) -> dict[str, Any]:
    best, *_ = hypotheses = [_hypothesis(request, candidate) for candidate in translation.candidates]
    values = dict(best)
    if translation.source_tokens is not None:
        pieces = translation.source_tokens[translation.tag_tokens : -1]
        values["source_words"] = source_words(translation.source, pieces, source)
    if request.nbest is not None:
        values["nbest"] = hypotheses
    return values


def source_words(line: str, pieces: Sequence[str], source: Tokenizer) -> list[str]:
    """Return the words of a line that alignments count: as written, or as normalized if that changes their number."""
    normalized = "".join(source.surfaces(source.vocab.to_ids(pieces), line)).split()
    written = line.split()
    return written if len(written) == len(normalized) else normalized


def _hypothesis(request: TranslationRequest, candidate: Candidate) -> dict[str, Any]:
    values: dict[str, Any] = {"text": candidate.text}
    values |= {name: True for name in ("cut", "repetitive") if getattr(candidate, name)}
    if request.scores:
        values |= {name: getattr(candidate, name) for name in ("score", "tokens", "token_log_probs")}
    if request.alignment:
        values["alignment"] = candidate.alignment
    return values

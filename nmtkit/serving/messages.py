"""The JSON of requests and responses."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.json_fields import TranslationRequest, bad_request, check_names, check_size, flag, strings
from nmtkit.serving.libretranslate import read_libretranslate
from nmtkit.serving.markup import read_markup
from nmtkit.serving.models import Model
from nmtkit.text.tokenizer import Tokenizer

FIELDS = (
    *("text", "source", "target", "source_lang", "target_lang"),
    *("nbest", "scores", "alignment", "tag_handling", "ignore_tags"),
)


def check_media_type(headers: Headers) -> None:
    """Raise HTTPException 415 unless the headers declare JSON, which pages from other origins cannot send."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the header Content-Type: application/json")


def read_request(values: dict[str, Any], limits: ServeConfig, model: Model) -> TranslationRequest:
    """Check a request to `model`. Raises HTTPException: 400 if it is malformed, 413 if it is too large."""
    if "q" in values and "text" not in values:
        return read_libretranslate(values, limits, model)
    check_names(values, "text", FIELDS)
    texts = strings(values, "text")
    lines = texts[0].split("\n") if isinstance(values["text"], str) else texts
    nbest = values.get("nbest")
    if nbest is not None and (type(nbest) is not int or not 1 <= nbest <= model.search.beam):
        raise bad_request(f"nbest: a number from 1 to {model.search.beam} is expected")
    if (kind := values.get("tag_handling")) is not None:
        if kind not in ("html", "xml") or nbest is not None or values.get("scores") or values.get("alignment"):
            raise bad_request('tag_handling: "html" or "xml" is expected, without nbest, scores and alignment')
        return read_markup(
            values, "text", kind, limits, lambda texts: {"translations": [{"text": text} for text in texts]}
        )
    scores, alignment = (flag(values, name) for name in ("scores", "alignment"))
    check_size(lines, nbest or 1, limits)

    def translated(translation: Translation) -> dict[str, Any]:
        hypotheses = [_hypothesis(candidate, scores, alignment) for candidate in translation.candidates]
        found = dict(hypotheses[0])
        if translation.source_tokens is not None:
            pieces = translation.source_tokens[translation.tag_tokens : -1]
            found["source_words"] = source_words(translation.source, pieces, model.source)
        return found if nbest is None else found | {"nbest": hypotheses}

    return TranslationRequest(
        lines, lambda translations: {"translations": list(map(translated, translations))}, nbest or 1, alignment
    )


def json_object(body: bytes) -> dict[str, Any]:
    """Parse the body of a request. Raises HTTPException 400 if it is not a JSON object."""
    try:
        values = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise bad_request('the body is not a JSON object: send one such as {"text": "A dog runs."}')
    return values


def source_words(line: str, pieces: Sequence[str], source: Tokenizer) -> list[str]:
    """Return the words of a line that alignments count: as written, or as normalized if that changes their number."""
    normalized = "".join(source.surfaces(source.vocab.to_ids(pieces), line)).split()
    written = line.split()
    return written if len(written) == len(normalized) else normalized


def _hypothesis(candidate: Candidate, scores: bool, alignment: bool) -> dict[str, Any]:
    values: dict[str, Any] = {"text": candidate.text}
    values |= {name: True for name in ("cut", "repetitive") if getattr(candidate, name)}
    if scores:
        values |= {name: getattr(candidate, name) for name in ("score", "tokens", "token_log_probs")}
    if alignment:
        values["alignment"] = candidate.alignment
    return values

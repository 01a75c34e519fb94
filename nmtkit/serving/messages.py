"""The JSON of requests and answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.serving.characters import count_characters
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.source_words import source_words
from nmtkit.text import parse_json
from nmtkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class TranslationRequest:
    """Lines to translate, and the details wanted for each. The field `text` of the JSON becomes `lines`."""

    lines: tuple[str, ...]
    nbest: int | None = None
    scores: bool = False
    alignment: bool = False

    def search(self, config: SearchConfig) -> SearchConfig:
        """The search for this request; `config` is the server's."""
        return replace(config, nbest=self.nbest or 1, alignment=self.alignment)


_FIELDS = ("text", *(field.name for field in fields(TranslationRequest)[1:]))


def check_media_type(headers: Headers) -> None:
    """Raise HTTPException 415 unless the headers declare JSON in UTF-8, without compression."""
    kind, *parameters = [part.strip(" \t") for part in headers.get("content-type", "").split(";")]
    if kind.lower() != "application/json":
        raise _unsupported("send the header Content-Type: application/json")
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        charset = value.strip(' \t"')
        if name.rstrip().lower() == "charset" and charset.lower() not in ("utf-8", "utf8"):
            raise _unsupported(f"charset {charset[:40]} is not supported: send UTF-8")
    coding = headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        raise _unsupported(f"Content-Encoding {coding[:40]} is not supported: send the body without compression")


def read_request(body: bytes, limits: ServeConfig, beam: int) -> TranslationRequest:
    """Parse the body of a request. Raises HTTPException: 400 if it is malformed, 413 if it is too large."""
    try:
        values = parse_json(body.decode("utf-8-sig"))
    except ValueError as error:
        raise _bad(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise _bad('the body is not a JSON object: send one such as {"text": "A dog runs."}')
    _check_fields(values)
    lines = _lines(values["text"])
    nbest = values.get("nbest")
    if nbest is not None and (type(nbest) is not int or not 1 <= nbest <= beam):
        raise _bad(f"nbest: a number from 1 to {beam} is expected")
    scores, alignment = (_flag(values, name) for name in ("scores", "alignment"))
    _check_size(lines, nbest or 1, limits)
    return TranslationRequest(lines, nbest, scores, alignment)


def _check_fields(values: dict[str, Any]) -> None:
    """Raise HTTPException that names a missing field and an unknown one, in one message if there are both."""
    problems = [] if "text" in values else ['the field "text" is missing']
    unknown = next((name for name in values if name not in _FIELDS), None)
    if unknown is not None:
        problems.append(f"the field {json.dumps(unknown[:40])} is unknown (known: {', '.join(_FIELDS)})")
    if problems:
        raise _bad("; ".join(problems))


def _flag(values: dict[str, Any], name: str) -> bool:
    value = values.get(name)
    if value is not None and type(value) is not bool:
        raise _bad(f"{name}: true or false is expected")
    return bool(value)


def _lines(text: Any) -> tuple[str, ...]:
    """The lines of a text, or of a list of lines. Lone surrogates become U+FFFD."""
    lines = text.split("\n") if isinstance(text, str) else text
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise _bad("text: a string, or a list of strings, is expected")
    return tuple(line.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for line in lines)


def _check_size(lines: Sequence[str], nbest: int, limits: ServeConfig) -> None:
    if len(lines) > limits.max_request_lines:
        raise _too_large(f"{len(lines)} lines are too many: the limit is {limits.max_request_lines}")
    characters = sum(map(count_characters, lines))
    if characters * nbest > limits.max_request_chars:
        normalized = " (after NFKC normalization)" if characters > sum(map(len, lines)) else ""
        times = f" times nbest {nbest}" if nbest > 1 else ""
        raise _too_large(
            f"{characters} characters{normalized}{times} are too many: the limit is {limits.max_request_chars}"
        )


def _bad(reason: str) -> HTTPException:
    return HTTPException(HTTPStatus.BAD_REQUEST, reason)


def _too_large(reason: str) -> HTTPException:
    return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)


def _unsupported(reason: str) -> HTTPException:
    return HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason)


def answer(request: TranslationRequest, translations: Sequence[Translation], source: Tokenizer) -> dict[str, Any]:
    """The answer as JSON values. `source` is the tokenizer whose words the alignments count."""
    return {"translations": [_translation(request, translation, source) for translation in translations]}


def _translation(request: TranslationRequest, translation: Translation, source: Tokenizer) -> dict[str, Any]:
    best, *_ = hypotheses = [_hypothesis(request, candidate) for candidate in translation.candidates]
    values = dict(best)
    if translation.source_tokens is not None:
        values["source_words"] = source_words(translation.source, translation.source_tokens[:-1], source)
    if request.nbest is not None:
        values["nbest"] = hypotheses
    return values


def _hypothesis(request: TranslationRequest, candidate: Candidate) -> dict[str, Any]:
    values: dict[str, Any] = {"text": candidate.text}
    if request.scores:
        values |= {name: getattr(candidate, name) for name in ("score", "tokens", "token_log_probs")}
    if request.alignment:
        values["alignment"] = candidate.alignment
    return values

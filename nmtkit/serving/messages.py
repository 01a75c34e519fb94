"""The JSON of requests and answers."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from http import HTTPStatus
from json import JSONDecodeError
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.json_fields import bad_request, check_names, check_size, flag, strings
from nmtkit.serving.libretranslate import Languages, LibreTranslateRequest, read_libretranslate
from nmtkit.serving.source_words import source_words
from nmtkit.storage.files import parse_json
from nmtkit.text.tokenizer import Tokenizer


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

    def answer(self, translations: Sequence[Translation], source: Tokenizer) -> dict[str, Any]:
        """The answer as JSON values. `source` is the tokenizer whose words the alignments count."""
        return {"translations": [_translation(self, translation, source) for translation in translations]}


FIELDS = ("text", *(field.name for field in fields(TranslationRequest)[1:]))


def check_media_type(headers: Headers) -> None:
    """Raise HTTPException 415 unless the headers declare JSON in UTF-8, without compression."""
    kind, *parameters = [part.strip(" \t") for part in headers.get("content-type", "").split(";")]
    if kind.lower() != "application/json":
        raise _unsupported("send the header Content-Type: application/json")
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        charset = value.strip(' \t"')
        if name.rstrip().lower() == "charset" and charset.lower() not in ("utf-8", "utf8"):
            named = f"charset {charset[:40]} is not supported" if charset else "charset has no value"
            raise _unsupported(f"{named}: send UTF-8")
    coding = headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        raise _unsupported(f"Content-Encoding {coding[:40]} is not supported: send the body without compression")


def _unsupported(reason: str) -> HTTPException:
    return HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason)


def read_request(
    body: bytes, limits: ServeConfig, beam: int, languages: Languages
) -> TranslationRequest | LibreTranslateRequest:
    """Parse the body of a request; `languages` are those of the model.

    Raises HTTPException: 400 if it is malformed, 413 if it is too large.
    """
    values = _json_object(body)
    if "q" in values and "text" not in values:
        return read_libretranslate(values, limits, beam, languages)
    check_names(values, "text", FIELDS)
    texts = strings(values, "text")
    lines = texts[0].split("\n") if isinstance(values["text"], str) else texts
    nbest = values.get("nbest")
    if nbest is not None and (type(nbest) is not int or not 1 <= nbest <= beam):
        raise bad_request(f"nbest: a number from 1 to {beam} is expected")
    scores, alignment = (flag(values, name) for name in ("scores", "alignment"))
    check_size(lines, nbest or 1, limits)
    return TranslationRequest(tuple(lines), nbest, scores, alignment)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        values = parse_json(body.decode("utf-8-sig"))
    except (JSONDecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    except ValueError as error:
        raise bad_request(f"the JSON cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise bad_request('the body is not a JSON object: send one such as {"text": "A dog runs."}')
    return values


def _translation(request: TranslationRequest, translation: Translation, source: Tokenizer) -> dict[str, Any]:
    best, *_ = hypotheses = [_hypothesis(request, candidate) for candidate in translation.candidates]
    values = dict(best)
    if translation.source_tokens is not None:
        values["source_words"] = source_words(
            translation.source, translation.source_tokens[translation.tag_tokens : -1], source
        )
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

"""Requests and responses of POST /translate in the form of LibreTranslate's API.

Its other endpoints and its form-encoded requests are not supported. Source: https://docs.libretranslate.com/api/
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Translation
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.json_fields import bad_request, check_names, check_size, quoted, strings
from nmtkit.serving.markup import MarkupRequest, read_markup
from nmtkit.text.tokenizer import Tokenizer

FIELDS = ("q", "source", "target", "format", "alternatives", "api_key")
Languages = tuple[str, str]  # of the model: source and target


@dataclass(frozen=True)
class LibreTranslateRequest:
    """Texts of one or more lines, and the number of alternatives for each.

    `is_list` is whether `q` was a list. `detected` is the source language if the request asks to detect it.
    """

    texts: tuple[tuple[str, ...], ...]
    is_list: bool
    alternatives: int = 0
    detected: str | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of all texts."""
        return tuple(chain.from_iterable(self.texts))

    def search(self, config: SearchConfig) -> SearchConfig:
        """Adapt the server's `config` to this request."""
        return replace(config, nbest=1 + self.alternatives)

    def answer(self, translations: Sequence[Translation], source: Tokenizer) -> dict[str, Any]:
        """Create the response as JSON values from the translations of `lines`."""
        remaining = iter(translations)
        versions = [_versions(list(islice(remaining, len(text)))) for text in self.texts]
        values = self.with_detected([best for best, *_ in versions])
        if self.alternatives:
            values["alternatives"] = self._one_or_all([others for _, *others in versions])
        return values

    def with_detected(self, texts: list[str]) -> dict[str, Any]:
        """Create the response with translated texts, without alternatives."""
        values: dict[str, Any] = {"translatedText": self._one_or_all(texts)}
        if self.detected is not None:
            detected = {"language": self.detected, "confidence": 100}
            values["detectedLanguage"] = self._one_or_all([detected] * len(self.texts))
        return values

    def _one_or_all(self, values: list[Any]) -> Any:
        return values if self.is_list else values[0]


def _versions(translations: Sequence[Translation]) -> list[str]:
    """Combine the translations of a text's lines, best first. A line with too few hypotheses repeats its last one."""
    count = max(len(translation.candidates) for translation in translations)
    return [
        "\n".join(
            translation.candidates[min(rank, len(translation.candidates) - 1)].text for translation in translations
        )
        for rank in range(count)
    ]


def read_libretranslate(
    values: dict[str, Any], limits: ServeConfig, beam: int, languages: Languages
) -> LibreTranslateRequest | MarkupRequest:
    """Check a request. The beam limits the number of alternatives.

    Raises HTTPException: 400 if the request is malformed or for unsupported languages, 413 if it is too large.
    """
    check_names(values, "q", FIELDS)
    texts = tuple(tuple(text.split("\n")) for text in strings(values, "q"))
    source, target = languages
    _check_word(values, "source", (source, "auto"), f"the model translates from {source} to {target}")
    _check_word(values, "target", (target,), f"the model translates from {source} to {target}")
    _check_word(values, "format", ("text", "html"), 'send "text" or "html"')
    alternatives = values.get("alternatives")
    if alternatives is not None and (type(alternatives) is not int or alternatives < 0):
        raise bad_request("alternatives: a whole number is expected")
    detected = source if values.get("source") == "auto" else None
    request = LibreTranslateRequest(texts, isinstance(values["q"], list), min(alternatives or 0, beam - 1), detected)
    if values.get("format") == "html":  # without alternatives
        return read_markup(values, "q", "html", limits, request.with_detected)
    check_size(request.lines, 1 + request.alternatives, limits)
    return request


def _check_word(values: dict[str, Any], name: str, accepted: Sequence[str], reason: str) -> None:
    """Raise HTTPException 400 unless a field is missing, null, or one of the accepted words."""
    value = values.get(name)
    if value is None or value in accepted:
        return
    if not isinstance(value, str):
        raise bad_request(f"{name}: a string is expected")
    raise bad_request(f"{name} {quoted(value)} is not supported: {reason}")


def languages_answer(languages: Languages) -> list[dict[str, Any]]:
    """Create the response to GET /languages, with each language and its target languages."""
    source, target = languages
    targets = {target: list[str](), source: [target]}
    return [{"code": code, "name": code, "targets": targets[code]} for code in dict.fromkeys((source, target))]

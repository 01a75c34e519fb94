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
from nmtkit.serving.json_fields import bad_request, check_names, check_size, strings
from nmtkit.serving.markup import MarkupRequest, read_markup
from nmtkit.text.tokenizer import Tokenizer

FIELDS = ("q", "source", "target", "format", "alternatives", "api_key")


@dataclass(frozen=True)
class LibreTranslateRequest:
    """Texts of one or more lines, and the number of alternatives for each. `is_list` is whether `q` was a list;
    `detected` is the source language if the request asks to detect it."""

    texts: tuple[tuple[str, ...], ...]
    is_list: bool
    alternatives: int = 0
    detected: str | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of all texts."""
        return tuple(chain.from_iterable(self.texts))

    def search(self, config: SearchConfig) -> SearchConfig:
        """Return the server's `config`, adapted to this request."""
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
    values: dict[str, Any], limits: ServeConfig, beam: int, source: str
) -> LibreTranslateRequest | MarkupRequest:
    """Check a request to a model with the language `source`, with fewer alternatives than `beam`. Raises HTTPException:
    400 if it is malformed, 413 if it is too large."""
    check_names(values, "q", FIELDS)
    texts = tuple(tuple(text.split("\n")) for text in strings(values, "q"))
    if values.get("format") not in (None, "text", "html"):
        raise bad_request('format: "text" or "html" is expected')
    alternatives = values.get("alternatives")
    if alternatives is not None and (type(alternatives) is not int or alternatives < 0):
        raise bad_request("alternatives: a whole number is expected")
    detected = source if values.get("source") == "auto" else None
    request = LibreTranslateRequest(texts, isinstance(values["q"], list), min(alternatives or 0, beam - 1), detected)
    if values.get("format") == "html":  # without alternatives
        return read_markup(values, "q", "html", limits, request.with_detected)
    check_size(request.lines, 1 + request.alternatives, limits)
    return request

"""Requests and responses of POST /translate in the form of LibreTranslate's API.

Its other endpoints and its form-encoded requests are not supported. Source: https://docs.libretranslate.com/api/
"""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from nmtkit.decoding.translation import Translation
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.json_fields import TranslationRequest, bad_request, check_names, check_size, strings
from nmtkit.serving.markup import read_markup
from nmtkit.serving.models import Model

FIELDS = ("q", "source", "target", "format", "alternatives", "api_key")


def read_libretranslate(values: dict[str, Any], limits: ServeConfig, model: Model) -> TranslationRequest:
    """Check a request to `model`, with fewer alternatives than its beam. Raises HTTPException: 400 if it is malformed,
    413 if it is too large."""
    check_names(values, "q", FIELDS)
    texts = [text.split("\n") for text in strings(values, "q")]
    if values.get("format") not in (None, "text", "html"):
        raise bad_request('format: "text" or "html" is expected')
    alternatives = values.get("alternatives")
    if alternatives is not None and (type(alternatives) is not int or alternatives < 0):
        raise bad_request("alternatives: a whole number is expected")

    def one_or_all(found: list[Any]) -> Any:
        return found if isinstance(values["q"], list) else found[0]

    def form(translated: list[str]) -> dict[str, Any]:
        response = {"translatedText": one_or_all(translated)}
        if values.get("source") == "auto":
            detected = {"language": model.languages[0], "confidence": 100}
            response["detectedLanguage"] = one_or_all([detected] * len(texts))
        return response

    def answer(translations: Sequence[Translation]) -> dict[str, Any]:
        remaining = iter(translations)
        versions = [_versions(list(islice(remaining, len(text)))) for text in texts]
        response = form([best for best, *_ in versions])
        if nbest > 1:
            response["alternatives"] = one_or_all([others for _, *others in versions])
        return response

    if values.get("format") == "html":  # without alternatives
        return read_markup(values, "q", "html", limits, form)
    nbest = min(1 + (alternatives or 0), model.search.beam)
    lines = list(chain.from_iterable(texts))
    check_size(lines, nbest, limits)
    return TranslationRequest(lines, answer, nbest)


def _versions(translations: Sequence[Translation]) -> list[str]:
    """Combine the translations of a text's lines, best first. A line with too few hypotheses repeats its last one."""
    count = max(len(translation.candidates) for translation in translations)
    return [
        "\n".join(
            translation.candidates[min(rank, len(translation.candidates) - 1)].text for translation in translations
        )
        for rank in range(count)
    ]

"""The models of the service. Each request chooses one by its languages."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.requests import Request
from nmtkit.errors import UserError
from nmtkit.serving.config import Languages
from nmtkit.serving.json_fields import bad_request, quoted
from nmtkit.serving.scheduler import Line, Translate
from nmtkit.text.languages import SEVERAL, find_code
from nmtkit.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model, which a request keeps from beginning to end. /health and the metrics show its `identity`."""

    translate: Translate
    source: Tokenizer
    languages: Languages
    identity: dict[str, str] = field(default_factory=dict)
    search: SearchConfig = field(default_factory=SearchConfig)

    def requests(self, lines: Sequence[Line]) -> Sequence[Line]:
        """Return the lines as requests with the model's languages if it has language codes; else unchanged."""
        if not self.source.language_codes:
            return lines
        source, target = self.languages
        requests = (Request(line) if isinstance(line, str) else line for line in lines)
        return [replace(request, source_lang=source, target_lang=target) for request in requests]


def choose(models: Sequence[Model], values: dict[str, Any]) -> Model:
    """Choose the model for the languages of a request. A language that is missing or null fits all models.

    A model with language codes gets those of the request, if no other model fits. Raises HTTPException 400 if no model
    fits, or more than one.
    """
    source, target = (_language(values, name) for name in ("source", "target"))
    wanted = (None if source == "auto" else source, target)
    fitting = [
        model
        for model in models
        if not model.source.language_codes
        and all(code in (None, own.lower()) for code, own in zip(wanted, model.languages, strict=True))
    ]
    if not fitting:
        fitting = [_between(model, wanted) for model in models if model.source.language_codes]
    if len(fitting) == 1:
        return fitting[0]
    pairs = ", ".join("-".join(model.languages) for model in models)
    if fitting:
        raise bad_request(f"several models fit: give source and target of one of {pairs}")
    given = " and ".join(
        f"{name} {quoted(code)}" for name, code in (("source", source), ("target", target)) if code is not None
    )
    raise bad_request(f"no model for {given}: the language pairs are {pairs}")


def _between(model: Model, wanted: tuple[str | None, str | None]) -> Model:
    """A model with language codes between `wanted` languages. Raises HTTPException 400 for unknown or missing ones."""
    languages = [code or own for code, own in zip(wanted, model.languages, strict=True)]
    try:
        source, target = (find_code(language, model.source.language_codes) for language in languages)
    except UserError as error:
        raise bad_request("give source and target" if SEVERAL in languages else str(error)) from error
    return replace(model, languages=(source, target))


def _language(values: dict[str, Any], name: str) -> str | None:
    """Read a language in lower case, also from the name of the field in DeepL's requests."""
    for value in (values.get(name), values.get(f"{name}_lang")):
        if isinstance(value, str):
            return value.lower()
        if value is not None:
            raise bad_request(f"{name}: a string is expected")
    return None


def languages_answer(models: Sequence[Model]) -> list[dict[str, Any]]:
    """Create the answer to GET /languages: each language, with its target languages."""
    targets: dict[str, list[str]] = {}
    for model in models:
        for source, target in [*permutations(model.source.language_codes, 2)] or [model.languages]:
            targets.setdefault(source, []).append(target)
            targets.setdefault(target, [])
    return [{"code": code, "name": code, "targets": own} for code, own in targets.items()]

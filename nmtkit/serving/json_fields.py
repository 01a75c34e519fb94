"""The base of all requests, and checks of their fields."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Translation
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.scheduler import Line


@dataclass(frozen=True)
class TranslationRequest:
    """Lines to translate, and a function that creates the response from their translations."""

    lines: Sequence[Line]
    answer: Callable[[Sequence[Translation]], Any]
    nbest: int = 1
    alignment: bool = False

    def search(self, config: SearchConfig) -> SearchConfig:
        """Return the server's `config`, adapted to this request."""
        return replace(config, nbest=self.nbest, alignment=self.alignment)


def bad_request(reason: str) -> HTTPException:
    """Create the exception for a malformed request: status 400."""
    return HTTPException(HTTPStatus.BAD_REQUEST, reason)


def quoted(text: str) -> str:
    """Quote the beginning of a client's text, for a message."""
    return json.dumps(text[:40])


def check_names(values: dict[str, Any], required: str, known: Collection[str]) -> None:
    """Raise HTTPException 400, in one message, if `required` is missing or a field is unknown."""
    problems = [] if required in values else [f'the field "{required}" is missing']
    unknown = next((name for name in values if name not in known), None)
    if unknown is not None:
        problems.append(f"the field {quoted(unknown)} is unknown (known: {', '.join(known)})")
    if problems:
        raise bad_request("; ".join(problems))


def flag(values: dict[str, Any], name: str) -> bool:
    """Read a boolean field; false if it is missing or null. Raises HTTPException 400 for anything else."""
    value = values.get(name)
    if value is not None and type(value) is not bool:
        raise bad_request(f"{name}: true or false is expected")
    return bool(value)


def strings(values: dict[str, Any], name: str) -> list[str]:
    """Read a string or a list of strings, as a list, with U+FFFD for lone surrogates. Raises HTTPException 400."""
    value = values[name]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise bad_request(f"{name}: a string, or a list of strings, is expected")
    return [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]


def check_size(lines: Sequence[str], nbest: int, limits: ServeConfig) -> None:
    """Raise HTTPException 413 for too many lines, or too many characters times nbest."""
    if len(lines) > limits.max_queue:
        raise _too_large(f"{len(lines)} lines are too many: the limit is {limits.max_queue}")
    characters = sum(map(len, lines))
    if characters * nbest > limits.max_request_chars:
        times = f" times nbest {nbest}" if nbest > 1 else ""
        raise _too_large(f"{characters} characters{times} are too many: the limit is {limits.max_request_chars}")


def _too_large(reason: str) -> HTTPException:
    return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)

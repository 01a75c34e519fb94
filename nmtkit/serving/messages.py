"""The JSON that clients send, and what they get."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.tokenizer import Tokenizer


class Refusal(Exception):  # noqa: N818 (said to the client)
    """A request that is not answered as it was meant, and why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Ask:
    """A request to translate: lines, and what is to be told of each."""

    lines: tuple[str, ...]
    nbest: int | None
    scores: bool
    alignment: bool

    def search(self, config: SearchConfig) -> SearchConfig:
        """The search for it, `config` being the server's."""
        return replace(config, nbest=self.nbest or 1, alignment=self.alignment)


def read_ask(body: bytes, max_lines: int, beam: int) -> Ask:
    """The request that a body holds. Raises Refusal."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _bad(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict) or "text" not in values:
        raise _bad('an object is expected, such as {"text": "A dog runs."}')
    for name in values.keys() - {"text", "nbest", "scores", "alignment"}:
        raise _bad(f"{name!r} is not one of text, nbest, scores, alignment")
    lines = _lines(values["text"])
    if len(lines) > max_lines:
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{len(lines)} lines are too many, {max_lines} may be sent")
    nbest = values.get("nbest")
    if nbest is not None and (type(nbest) is not int or not 1 <= nbest <= beam):
        raise _bad(f"nbest: a number from 1 to {beam} is expected")
    scores, alignment = (values.get(name, False) for name in ("scores", "alignment"))
    if type(scores) is not bool or type(alignment) is not bool:
        raise _bad("scores, alignment: true or false is expected")
    return Ask(lines, nbest, scores, alignment)


def _lines(text: Any) -> tuple[str, ...]:
    """The lines of a text, or those of a list; halves of surrogate pairs, which no text has, become U+FFFD."""
    lines = text.split("\n") if isinstance(text, str) else text
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise _bad("text: a string, or a list of them, is expected")
    return tuple(line.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for line in lines)


def _bad(reason: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, reason)


def answer(ask: Ask, translations: Sequence[Translation], source: Tokenizer) -> dict[str, Any]:
    """What the client gets, as JSON values. `source` is the tokenizer that alignments count words by."""
    return {"translations": [_translation(ask, translation, source) for translation in translations]}


def _translation(ask: Ask, translation: Translation, source: Tokenizer) -> dict[str, Any]:
    best, *_ = hypotheses = [_hypothesis(ask, candidate) for candidate in translation.candidates]
    values = dict(best)
    if translation.source_tokens is not None:
        pieces = source.vocab.ids(translation.source_tokens[:-1])
        counted, written = "".join(source.surfaces(pieces)).split(), translation.source.split()
        values["source_words"] = written if len(written) == len(counted) else counted
    if ask.nbest is not None:
        values["nbest"] = hypotheses
    return values


def _hypothesis(ask: Ask, candidate: Candidate) -> dict[str, Any]:
    values: dict[str, Any] = {"text": candidate.text}
    if ask.scores:
        values |= {name: getattr(candidate, name) for name in ("score", "tokens", "token_log_probs")}
    if ask.alignment:
        values["alignment"] = candidate.alignment
    return values

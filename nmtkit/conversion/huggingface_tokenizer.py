"""Reads the settings of a slow tokenizer of Hugging Face's transformers, and its added tokens."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from nmtkit.conversion.folder import read_object
from nmtkit.conversion.huggingface import TOKENIZER_CONFIG
from nmtkit.errors import UserError
from nmtkit.wording import quoted

ADDED_TOKENS = "added_tokens_decoder"  # in tokenizer_config.json
_SPECIAL_TOKENS_MAP = "special_tokens_map.json"
_ADDED_TOKENS_FILE = "added_tokens.json"
_TOKENIZER_FILE = "tokenizer.json"
# Settings of all tokenizers, each with its only supported value, which is also the default.
_FIXED: dict[str, Any] = {
    **{"additional_special_tokens": [], "extra_special_tokens": [], "model_specific_special_tokens": {}},
    "split_special_tokens": False,
}
ANY = ...  #: stands for all values of a setting
_UNSUPPORTED_FLAGS = ("lstrip", "rstrip", "single_word", "special")  # flags of an added token


def read_tokenizer_settings(folder: Path, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Read tokenizer_config.json; a missing file counts as empty.

    Raises UserError if special tokens or settings in it or in special_tokens_map.json differ from `fixed`.
    """
    settings = _read_optional(folder / TOKENIZER_CONFIG)
    _check_settings(settings, fixed, TOKENIZER_CONFIG)
    _check_settings(_read_optional(folder / _SPECIAL_TOKENS_MAP), fixed, _SPECIAL_TOKENS_MAP)
    return settings


def _check_settings(settings: Mapping[str, Any], fixed: Mapping[str, Any], file: str) -> None:
    """Raise UserError if a value differs from `_FIXED` or `fixed`, or for any other special token."""
    fixed = {**_FIXED, **fixed}
    for name, value in settings.items():
        content = value["content"] if isinstance(value, dict) and "content" in value else value
        if fixed.get(name) is ANY:
            continue
        if name in fixed:
            if content not in (fixed[name], None) and (content or fixed[name]):
                raise UserError(f"{file}: {name} is {quoted(content)}, only {fixed[name]!r} is supported")
        elif name.endswith("_token") and isinstance(content, str):
            raise UserError(f"{file}: {name} is {quoted(content)}, which is not supported")


def read_added_tokens(folder: Path, settings: Mapping[str, Any], special: Collection[str] | None) -> dict[str, int]:
    """Read the ids of added tokens, by token. Flags of tokens in `special` are not checked; None checks no flag.

    The tokens are in tokenizer_config.json (`settings`), or else in added_tokens.json and tokenizer.json, as in older
    releases of transformers. Raises UserError for a token with an unsupported flag.
    """
    added: dict[str, int] = {}
    for number, token in _added_tokens(folder, settings):
        content = token["content"]
        if added.setdefault(content, number) != number:
            raise UserError(f"added token {quoted(content)}: it has the ids {added[content]} and {number}")
        for flag in () if special is None or content in special else _UNSUPPORTED_FLAGS:
            if token.get(flag):
                raise UserError(
                    f"added token {quoted(content)}: {flag} is {quoted(token[flag])}, which is not supported"
                )
    return added


def added_tokens(ids: Mapping[str, int], special: Collection[str]) -> dict[str, Any]:
    """Return the setting in tokenizer_config.json from which `read_added_tokens` reads these ids."""
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {
        ADDED_TOKENS: {
            str(number): {"content": token, **flags, "special": token in special} for token, number in ids.items()
        }
    }


def _added_tokens(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if settings.get(ADDED_TOKENS) is not None:
        for number, token in settings[ADDED_TOKENS].items():
            yield int(number), token
        return
    for content, number in _read_optional(folder / _ADDED_TOKENS_FILE).items():
        yield int(number), {"content": content}
    for token in _read_optional(folder / _TOKENIZER_FILE).get("added_tokens", ()):
        yield int(token["id"]), token


def _read_optional(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file counts as empty."""
    return read_object(path) if path.exists() else {}

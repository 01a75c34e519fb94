"""Options of other toolkits with their equivalents, from other_toolkits.toml, for messages."""

from functools import cache
from pathlib import Path

from nmtkit.storage.files import parse_toml

# fairseq's architecture -> nmtkit's, with options
ARCHITECTURES = {
    "transformer_wmt_en_de": "transformer_base",
    "transformer_wmt_en_de_big": "transformer_big",
    "transformer_vaswani_wmt_en_de_big": "transformer_big",
    "transformer_vaswani_wmt_en_fr_big": "transformer_big",
    "transformer_iwslt_de_en": "transformer_base --d-ff 1024 --heads 4",
    "fconv_wmt_en_de": "convs2s",
    "fconv_wmt_en_fr": "convs2s",
}


@cache
def options() -> dict[str, dict[str, dict[str, str]]]:
    """Map commands, then toolkits, then options, separated by spaces, to the answer."""
    return parse_toml(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def answer(command: str, option: str) -> str | None:
    """Return a command's equivalent of a foreign option, without Markdown; None for an unknown option."""
    for rows in options().get(command, {}).values():
        for names, text in rows.items():
            if option.replace("_", "-") in names.split():
                return text.replace("`", "")
    return None

"""The keyword arguments of `Translator`, typed so that editors complete them and mypy checks them.

They are fields of `SearchConfig` and `EngineConfig`, which hold their defaults and check their values.
"""

from pathlib import Path
from typing import TypedDict


class PenaltyKeywords(TypedDict, total=False):
    """The fields of `SearchConfig` that the score of a given translation depends on."""

    length_penalty: float
    length_penalty_form: str


class SearchKeywords(PenaltyKeywords, total=False):
    """The fields of `SearchConfig`, without `nbest`."""

    beam: int
    max_len_a: float
    max_len_b: int
    min_len: int
    no_repeat_ngram: int | None
    ban: tuple[str, ...]
    diverse_groups: int
    diversity: float
    sampling: bool
    top_k: int | None
    top_p: float | None
    temperature: float
    seed: int
    alignment: bool
    alignment_layer: int | None
    copy_unknown: bool


class EngineKeywords(TypedDict, total=False):
    """The fields of `EngineConfig`."""

    device: str
    precision: str
    threads: int | None
    shortlist: Path | None
    workers: int

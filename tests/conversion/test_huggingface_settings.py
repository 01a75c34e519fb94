"""Options of models and of generation in the files of transformers: aliases, defaults, refusals, suggested commands."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from foreign_models import FsmtModel
from marian_models import LINES, MarianModel

from nmtkit.conversion import fsmt, marian
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fsmt import from_fsmt
from nmtkit.conversion.huggingface_settings import search_options
from nmtkit.conversion.marian import from_marian
from nmtkit.decoding.config import EngineConfig, SearchConfig
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("sacremoses")
pytest.importorskip("safetensors")


@pytest.mark.parametrize(
    ("module", "defaults"),
    [("MarianConfig", marian._DEFAULTS), ("FSMTConfig", fsmt._DEFAULTS | fsmt._REQUIRED | fsmt.SEARCH_DEFAULTS)],
)
def test_defaults_are_those_of_transformers(module: str, defaults: dict[str, Any]) -> None:
    theirs = getattr(import_module("transformers"), module)()
    assert defaults == {name: getattr(theirs, name) for name in defaults}


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("forced_bos_token_id", 0),
        ("decoder_start_token_id", 4),
        ("eos_token_id", [0, 4]),
        ("suppress_tokens", [4]),
        ("bad_words_ids", [[4]]),
        ("repetition_penalty", 1.2),
    ],
)
def test_options_of_generation_that_change_the_output_are_refused_by_name(
    name: str, value: Any, file: str, tmp_path: Path
) -> None:
    marian = MarianModel(tmp_path / "marian", seed=1)
    marian.edit(file, **{name: value})
    if file == "config.json":
        (marian.folder / "generation_config.json").unlink()
    with pytest.raises(UserError, match=name):
        from_marian(marian.folder, ImportConfig())
    fsmt = FsmtModel(tmp_path / "fsmt", 1)
    (fsmt.folder / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(UserError, match=name):
        from_fsmt(fsmt.folder, ImportConfig())


def test_options_of_generation_without_effect_are_accepted(tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=1)
    pad = marian.model.config.pad_token_id
    usual = {"bad_words_ids": [[pad]], "eos_token_id": [0], "forced_eos_token_id": 0, "renormalize_logits": True}
    marian.edit("generation_config.json", **usual, suppress_tokens=[], repetition_penalty=1, forced_bos_token_id=None)
    assert from_marian(marian.folder, ImportConfig()).joined


@pytest.mark.parametrize(
    ("name", "value", "options"),
    [
        ("num_beams", 7, {"beam": 7}),
        ("num_beams", -3, {}),
        ("length_penalty", -1.0, {}),
        ("length_penalty", float("nan"), {}),
        ("max_length", 12, {"max_len_a": 0, "max_len_b": 10}),
    ],
)
def test_the_suggested_command_leaves_out_and_names_values_that_the_search_refuses(
    name: str, value: float, options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({name: value}))
    usual = {"length_penalty_form": "power", "length_penalty": 1.0}
    left_out = {"num_beams": {"beam"}, "length_penalty": {"length_penalty_form", "length_penalty"}}.get(name, set())
    expected = {key: number for key, number in usual.items() if key not in left_out} | options
    assert search_options(tmp_path, {}) == expected
    assert (name in caplog.text) is (options == {})


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"max_new_tokens": 9, "max_length": 32}, {"max_len_a": 0, "max_len_b": 8}),
        ({"min_length": 5}, {"min_len": 4}),
        ({"min_length": 5, "min_new_tokens": 6, "max_new_tokens": 20}, {"min_len": 6, "max_len_a": 0, "max_len_b": 19}),
        ({"no_repeat_ngram_size": 2, "max_new_tokens": 12}, {"no_repeat_ngram": 2, "max_len_a": 0, "max_len_b": 11}),
        ({"min_length": 0, "min_new_tokens": 0, "no_repeat_ngram_size": 0}, {}),
    ],
    ids=str,
)
def test_suggested_options_search_greedily_like_transformers(
    settings: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    source = MarianModel(tmp_path / "marian", 5)
    source.edit("generation_config.json", **settings)
    suggested = search_options(source.folder, {})
    assert {name: value for name, value in suggested.items() if name in options or "len" in name} == {
        "length_penalty_form": "power",
        "length_penalty": 1.0,
    } | options
    pad = source.model.config.pad_token_id
    limits = {"max_new_tokens": 15} | settings
    outputs = source.model.generate(
        **source.batch(), num_beams=1, do_sample=False, bad_words_ids=[[pad]], forced_eos_token_id=None, **limits
    )
    theirs = [[source.names[1][i] for i in ids if i not in (0, pad)] for ids in outputs[:, 1:].tolist()]
    longest = limits["max_new_tokens"] - 1
    search = SearchConfig(**{"max_len_a": 0, "max_len_b": longest} | options | {"beam": 1})
    ours = Translator.of([from_marian(source.folder, ImportConfig())], EngineConfig(device="cpu", precision="fp32"))
    own = [list(line.candidates[0].tokens[:-1]) for line in ours.stream(LINES, search)]
    empty = LINES.index("")  # nmtkit translates an empty line as an empty line
    del own[empty], theirs[empty]
    assert own == [pieces[:longest] for pieces in theirs]


def test_the_suggested_command_names_settings_of_the_search_that_nmtkit_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    generation = {"do_sample": True, "num_beam_groups": 2, "diversity_penalty": 0.3, "max_new_tokens": 0}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    search_options(tmp_path, {})
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith(": do_sample True, num_beam_groups 2, diversity_penalty 0.3, max_new_tokens 0")
    caplog.clear()
    harmless = {"do_sample": False, "num_beam_groups": 1, "diversity_penalty": 0.0, "max_new_tokens": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(harmless))
    search_options(tmp_path, {})
    assert caplog.records == []


def test_generation_config_replaces_the_values_of_config_json_and_of_fsmt(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_beams": 7}))
    found = search_options(tmp_path, fsmt.SEARCH_DEFAULTS)
    assert (found["beam"], found["max_len_b"]) == (7, 198)
    (tmp_path / "generation_config.json").write_text("{}")
    found = search_options(tmp_path, fsmt.SEARCH_DEFAULTS)
    assert ("beam" in found, "max_len_b" in found) == (False, False)

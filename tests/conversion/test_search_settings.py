"""Search settings of an imported model travel with it, and inputs that are not models lead to one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from foreign_models import FsmtModel
from marian_models import LINES, MarianModel

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fairseq import from_fairseq
from nmtkit.conversion.huggingface_export import to_huggingface
from nmtkit.conversion.importers import find_importer, snapshot_in
from nmtkit.conversion.safetensors import from_safetensors, to_safetensors
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.training.averaging import average_checkpoints

pytest.importorskip("transformers")
pytest.importorskip("sacremoses")
pytest.importorskip("safetensors")
STATED = {"num_beams": 3, "length_penalty": 1.3, "max_length": 9, "min_length": 4, "no_repeat_ngram_size": 3}
SETTINGS: dict[str, Any] = {
    **{"beam": 3, "length_penalty_form": "power", "length_penalty": 1.3, "max_len_a": 0, "max_len_b": 7},
    **{"min_len": 3, "no_repeat_ngram": 3},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of Marian with the settings STATED."""
    marian = MarianModel(tmp_path / "marian", seed=2)
    marian.edit("generation_config.json", **STATED)
    return marian.folder


def test_settings_of_a_model_are_defaults_of_its_search_which_options_override(
    run_here: Run, model: Path, tmp_path: Path
) -> None:
    assert run_here("nmt-import", model, "--output", tmp_path / "a.pt").returncode == 0
    text, explicit = "\n".join(LINES).encode(), ("--beam", 4, "--length-penalty", 0.6)
    own, other = (
        run_here("nmt-generate", "--checkpoint", tmp_path / "a.pt", "--format", "tsv", *options, input=text)
        for options in ((), explicit)
    )
    assert b"search settings of the model: --beam 3 --length-penalty 1.3 --length-penalty-form power" in own.stderr
    assert b"search settings of the model: --length-penalty-form power --max-len-a 0 --max-len-b 7" in other.stderr
    translator = Translator.from_checkpoint(tmp_path / "a.pt", device="cpu", precision="fp32")
    found = [line.candidates[0].score for line in translator.stream(LINES)]
    expected = [line.candidates[0].score for line in translator.stream(LINES, SearchConfig(**SETTINGS))]
    assert found == expected
    assert [float(row.split(b"\t")[2]) for row in own.stdout.splitlines()] == pytest.approx(expected, abs=1e-4)
    assert own.stdout != other.stdout
    assert translator.translate(LINES, beam=1) == [
        line.text for line in translator.stream(LINES, SearchConfig(**{**SETTINGS, "beam": 1}))
    ]


def test_a_beam_of_the_model_allows_as_many_hypotheses(run_here: Run, model: Path, tmp_path: Path) -> None:
    checkpoint = find_importer(model).load(model, ImportConfig())
    save_checkpoint(tmp_path / "a.pt", replace(checkpoint, search={"beam": 6}))
    for nbest, code in ((6, 0), (7, 2)):
        done = run_here("nmt-generate", "--checkpoint", tmp_path / "a.pt", "--nbest", nbest, input=b"the dog\n")
        assert done.returncode == code, done.stderr


def test_settings_survive_averaging_and_every_export(model: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.pt", find_importer(model).load(model, ImportConfig()))
    assert load_checkpoint(tmp_path / "a.pt").search == SETTINGS | {"allow_unknown": True}
    average = average_checkpoints([tmp_path / "a.pt"])
    to_safetensors(average, tmp_path / "safetensors")
    to_huggingface(average, tmp_path / "marian-again")
    generation = json.loads((tmp_path / "marian-again" / "generation_config.json").read_text())
    assert {name: generation[name] for name in STATED} == STATED
    found: list[Checkpoint] = [average, from_safetensors(tmp_path / "safetensors")]
    found.append(find_importer(tmp_path / "marian-again").load(tmp_path / "marian-again", ImportConfig()))
    assert [checkpoint.search for checkpoint in found] == [SETTINGS | {"allow_unknown": True}] * 3


@pytest.mark.parametrize(
    ("recorded", "settings"),
    [
        ({"eval_bleu_args": '{"beam": 7, "max_len_a": 1.2, "max_len_b": 10}'}, {"beam": 7, "max_len_b": 11}),
        ({"eval_bleu_args": '{"beam": 5, "lenpen": 0.6}'}, {"beam": 5, "length_penalty": 0.6}),
        ({}, {}),
    ],
)
def test_settings_that_fairseq_recorded_are_kept(
    recorded: dict[str, Any], settings: dict[str, float], tmp_path: Path
) -> None:
    path = FsmtModel(tmp_path / "fsmt", 1).write_fairseq(tmp_path / "model", **recorded)
    expected = settings | ({"max_len_a": 1.2} if "max_len_b" in settings else {})
    assert from_fairseq(path, ImportConfig()).search == expected


def test_a_folder_of_the_cache_leads_to_its_snapshot(run_here: Run, model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--Helsinki-NLP--opus-mt-en-de"
    (cache / "refs").mkdir(parents=True)
    (cache / "snapshots").mkdir()
    (cache / "refs" / "main").write_text("abc")
    model.rename(cache / "snapshots" / "abc")
    assert run_here("nmt-import", cache, "--output", tmp_path / "a.pt").returncode == 0
    assert (snapshot_in(cache), snapshot_in(tmp_path)) == (cache / "snapshots" / "abc", tmp_path)


def test_the_name_of_a_model_at_hugging_face_leads_to_its_download() -> None:
    with pytest.raises(UserError, match="hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de"):
        find_importer(Path("Helsinki-NLP/opus-mt-en-de"))


def test_a_model_without_a_tokenizer_says_that_it_cannot_translate_raw_text(run_here: Run, tmp_path: Path) -> None:
    path = FsmtModel(tmp_path / "fsmt", 1).write_fairseq(tmp_path / "model")
    (path.parent / "bpecodes").unlink()
    done = run_here("nmt-import", path, "--output", tmp_path / "a.pt")
    assert done.returncode == 0
    assert b"cannot translate raw text" in done.stderr
    assert b": give --bpe-codes or --spm-model FILE" in done.stderr


@pytest.mark.parametrize(
    ("kind", "said"),
    [("t5", "ct2-transformers-converter"), ("whisper", "speech"), ("llama", "decoder-only"), ("bert", "an encoder")],
)
def test_a_model_of_a_different_kind_is_named_with_the_way_through(kind: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(UserError, match=said):
        find_importer(tmp_path)

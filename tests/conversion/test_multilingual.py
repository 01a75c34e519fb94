"""M2M-100, NLLB-200 and mBART-50: random models with the tokens that transformers 5.23 read and wrote.

`compare_multilingual.py` wrote them; it also compares more models.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.huggingface_export import to_huggingface
from nmtkit.conversion.importers import find_importer
from nmtkit.data.corpus import Dataset
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.requests import Request
from nmtkit.errors import UserError
from nmtkit.model.weights import build_model
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.pipeline import preprocess
from nmtkit.text.changed_vocabularies import trimmed
from nmtkit.text.reading import read_lines
from nmtkit.text.vocabulary import EOS
from nmtkit.training.config import TrainingOptions, ValidationConfig
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.ranks import Ranks
from nmtkit.training.validation import Validator

pytest.importorskip("safetensors")
FOREIGN = Path(__file__).parent / "foreign"
CODES = {"m2m": ("__en__", "__de__"), "nllb": ("eng_Latn", "deu_Latn"), "mbart": ("en_XX", "de_DE")}
FEW = 6  # of the lines, where each is searched several times
GREEDY = SearchConfig(beam=1, max_len_a=0, max_len_b=30)
every_family = pytest.mark.parametrize("family", CODES)


def imported(folder: Path, **options: Any) -> Checkpoint:
    return find_importer(folder).read(folder, ImportConfig(**options))


def pinned(family: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOREIGN / family / "pinned.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Translator]:
    """Loads a family as a translator from English to German."""

    def loaded(family: str, **options: Any) -> Translator:
        save_checkpoint(tmp_path / "model.pt", imported(FOREIGN / family))
        options = {"source_lang": "en", "target_lang": "de", "device": "cpu", "precision": "fp32"} | options
        return Translator.from_checkpoint(tmp_path / "model.pt", **options)

    return loaded


@pytest.fixture
def encoded(tmp_path: Path) -> tuple[Checkpoint, Dataset]:
    """M2M-100 with a new language and new characters, and a dataset from English to it."""
    lines = [each["line"] for each in pinned("m2m")[2:FEW]]
    (tmp_path / "valid.en").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (tmp_path / "valid.gsw").write_text("ጽን ጽን\n" * len(lines), encoding="utf-8")
    grow = ImportConfig(add_language="__gsw__", like="__de__", add_characters=(tmp_path / "valid.gsw",))
    checkpoint = find_importer(FOREIGN / "m2m").load(FOREIGN / "m2m", grow)
    files = FilesConfig("en", "gsw", validpref=(str(tmp_path / "valid"),), destdir=tmp_path / "data-bin")
    options = VocabularyConfig(vocab_from=tmp_path / "model.pt")
    save_checkpoint(tmp_path / "model.pt", checkpoint)
    return checkpoint, preprocess(files, options, CleaningConfig())


def tokens(translations: Any) -> list[list[str]]:
    return [list(translation.candidates[0].tokens) for translation in translations]


@every_family
def test_greedy_tokens_equal_those_of_transformers(family: str, load: Callable[..., Translator]) -> None:
    translator, expected = load(family), pinned(family)
    found = list(translator.stream([each["line"] for each in expected], GREEDY))
    read = [[*translator.source.vocab.to_pieces(each.source_ids), "</s>"] for each in found]
    assert read == [each["source"] for each in expected]
    assert tokens(found) == [each["output"] for each in expected]
    assert len(set(map(str, tokens(found)))) > 30


@every_family
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_lines_of_many_languages_share_a_stream(family: str, precision: str, load: Callable[..., Translator]) -> None:
    translator, codes = load(family, precision=precision), CODES[family]
    lines = [each["line"] for each in pinned(family)[:FEW]]
    directions = [codes, codes[::-1], (codes[0], codes[0])]
    mixed = [Request(line, source_lang=s, target_lang=t) for line in lines for s, t in directions]
    apart = [load(family, source_lang=s, target_lang=t, precision=precision) for s, t in directions]
    expected = [translator.translate(lines, beam=2, max_len_b=5) for translator in apart]
    assert translator.translate(mixed, beam=2, max_len_b=5) == [
        text for row in zip(*expected, strict=True) for text in row
    ]


@every_family
def test_scores_count_the_code_in_the_length_and_equal_those_of_the_search(
    family: str, load: Callable[..., Translator]
) -> None:
    translator = load(family)
    config = SearchConfig(beam=1, length_penalty=1.0, length_penalty_form="power")
    lines = [each["line"] for each in pinned(family)[2:FEW]]
    scored, forced = (
        [each.candidates[0] for each in translator.stream(requests, config)]
        for requests in (
            [Request(line, target="Ein Hund.") for line in lines],
            [Request(line, "Ein") for line in lines],
        )
    )
    for one, two in zip(scored, forced, strict=True):
        same = sum(a == b for a, b in zip(one.tokens[:2], two.tokens, strict=False))
        assert same
        assert np.allclose(one.token_log_probs[:same], two.token_log_probs[:same], atol=1e-4)
        for each in (one, two):
            assert each.score == pytest.approx(sum(each.token_log_probs) / (len(each.tokens) + 1), abs=1e-5)


@every_family
def test_an_export_is_imported_as_the_same_model(family: str, tmp_path: Path) -> None:
    checkpoint = imported(FOREIGN / family)
    to_huggingface(checkpoint, tmp_path / "exported")
    again = imported(tmp_path / "exported")
    assert (again.model_config, again.languages) == (checkpoint.model_config, checkpoint.languages)
    assert (again.source.vocab, again.source.model) == (checkpoint.source.vocab, checkpoint.source.model)
    assert again.weights.keys() == checkpoint.weights.keys()
    assert all(np.array_equal(again.weights[name], weight) for name, weight in checkpoint.weights.items())


def test_an_extended_and_trimmed_model_is_exported_and_imported_with_all_its_pieces(
    encoded: tuple[Checkpoint, Dataset], tmp_path: Path
) -> None:
    grown, _ = encoded
    small = grown.with_vocabularies(trimmed((grown.source, grown.target), [["ጽን the dog"]]))
    for name, given in (("grown", grown), ("small", small)):
        to_huggingface(replace(given, target_language="gsw"), tmp_path / name)
        again = imported(tmp_path / name)
        assert again.target_language == "__gsw__"
        assert again.source.language_codes == given.source.language_codes
        assert again.source.encode(["ጽን the dogs"]) != again.source.encode(["the dogs"])
        rows = (
            zip(each.target.vocab.pieces, each.weights["target_embedding.weight"], strict=True)
            for each in (again, given)
        )
        found, expected = (
            {piece: row.tolist() for piece, row in one if not piece.startswith("<unused")} for one in rows
        )
        assert found == expected
    assert len(small.target.vocab) < len(grown.target.vocab)


@pytest.mark.parametrize(
    ("family", "code", "like"),
    [("m2m", "__gsw__", "__de__"), ("nllb", "gsw_Latn", "deu_Latn"), ("mbart", "gsw_CH", "de_DE")],
)
def test_transformers_finds_the_row_of_a_new_code_and_omits_it_from_text(
    family: str, code: str, like: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file

    grown = find_importer(FOREIGN / family).load(FOREIGN / family, ImportConfig(add_language=code, like=like))
    to_huggingface(grown, tmp_path / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    matrix = load_file(tmp_path / "exported/model.safetensors")["model.shared.weight"]
    new, old = tokenizer.convert_tokens_to_ids([code, like])
    assert new != old
    assert matrix[new].equal(matrix[old])
    assert tokenizer.decode([new, old], skip_special_tokens=True) == ""


@every_family
def test_exported_tensors_equal_those_of_the_original(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    to_huggingface(imported(FOREIGN / family), tmp_path / "exported")
    before, after = (load_file(folder / "model.safetensors") for folder in (FOREIGN / family, tmp_path / "exported"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():  # the first two positions and the bias of <pad> have no effect
        used = slice(2 * ("embed_positions" in name), None)
        different = (tensor[used] != after[name][used]).sum().item()
        assert different <= (name == "final_logits_bias"), name


def test_a_line_may_begin_with_its_source_code(load: Callable[..., Translator]) -> None:
    lines = [each["line"] for each in pinned("nllb")[3:FEW]]
    tagged = load("nllb", source_lang="").translate([f"eng_Latn {line}" for line in lines], beam=1)
    assert tagged == load("nllb").translate(lines, beam=1)


def test_an_import_may_fix_the_languages(tmp_path: Path) -> None:
    assert imported(FOREIGN / "nllb").languages == ("mul", "mul")
    assert imported(FOREIGN / "nllb", source_lang="en", target_lang="zho_Hans").languages == ("eng_Latn", "zho_Hans")
    shutil.copytree(FOREIGN / "mbart", tmp_path / "model")
    code = imported(FOREIGN / "mbart").source.vocab.pieces.index("en_XX") - 1  # of transformers
    edit(tmp_path / "model/generation_config.json", forced_bos_token_id=code)
    assert imported(tmp_path / "model").languages == ("mul", "en_XX")


@pytest.mark.parametrize(
    ("languages", "reason"),
    [
        (("xx", "de"), "language 'xx' is not one of the model's 202 languages: use a code such as ace_Arab"),
        (("en", "deut"), "language 'deut' is not one of the model's 202 languages: use deu_Latn"),
        (("en", "zh"), "language 'zh' has several codes in this model: use zho_Hans or zho_Hant"),
    ],
)
def test_an_unknown_language_is_named_with_close_codes(
    languages: tuple[str, str], reason: str, load: Callable[..., Translator]
) -> None:
    with pytest.raises(UserError, match=reason):
        load("nllb", source_lang=languages[0], target_lang=languages[1])
    requests = [Request("A dog."), Request(""), Request("A dog.", source_lang=languages[0], target_lang=languages[1])]
    with pytest.raises(UserError, match=f"line 3: {reason}"):
        load("nllb").translate(requests)


def test_sources_and_targets_of_a_dataset_begin_with_the_codes_of_its_languages(
    encoded: tuple[Checkpoint, Dataset], tmp_path: Path
) -> None:
    checkpoint, dataset = encoded
    split, save = dataset.split("valid"), tmp_path / "model.pt"
    save_checkpoint(save, checkpoint)
    translator = Translator.from_checkpoint(save, source_lang="en", target_lang="gsw", device="cpu")
    lines = list(read_lines(tmp_path / "valid.en"))
    for number, found in enumerate(translator.stream(lines, GREEDY)):
        assert split.source[number].tolist() == [*found.source_ids, EOS]
        target = checkpoint.target.vocab.to_pieces(split.target[number].tolist())
        assert target == ["__gsw__", "▁", "ጽ", "ን", "▁", "ጽ", "ን", "</s>"]


def test_validation_translates_between_the_languages_of_the_dataset(
    encoded: tuple[Checkpoint, Dataset], tmp_path: Path
) -> None:
    checkpoint, dataset = encoded
    save_checkpoint(tmp_path / "model.pt", checkpoint)
    translator = Translator.from_checkpoint(
        tmp_path / "model.pt", source_lang="en", target_lang="__gsw__", device="cpu", precision="fp32"
    )
    sizes = len(dataset.source.vocab), len(dataset.target.vocab)
    model = build_model(checkpoint.model_config, *sizes, checkpoint.weights)
    options = TrainingOptions(validation=ValidationConfig(valid_bleu=True, valid_beam=1))
    results = Validator(dataset, options).run(MicroBatchLoss(model, 0.1), Ranks(torch.device("cpu")))
    assert results is not None
    expected = translator.translate(list(read_lines(tmp_path / "valid.en")), beam=1)
    assert [sample.translation for sample in results.samples] == expected


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("config.json", {"model_type": "nllb-moe"}, "mixture of experts"),
        ("config.json", {"pad_token_id": 0}, "pad_token_id is 0, only 1 is supported"),
        ("config.json", {"vocab_size": 300}, "the vocabulary has ids that are not below 300"),
        ("tokenizer_config.json", {"legacy_behaviour": True}, "legacy_behaviour is True, only False is supported"),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "MBartTokenizer"},
            "the tokenizer of this m2m_100 model is MBartT",
        ),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"250": {"content": "eng_Latn"}}},
            r"'eng_Latn' has the id 250, but the vocabulary leads to \d+: damaged",
        ),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"500": {"content": "[name]"}}},
            r"added token '\[name\]': only language codes are supported",
        ),
    ],
)
def test_an_unsupported_or_damaged_folder_is_rejected_in_one_line(
    file: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    shutil.copytree(FOREIGN / "nllb", tmp_path / "model")
    edit(tmp_path / "model" / file, **changes)
    with pytest.raises(UserError, match=reason):
        imported(tmp_path / "model")


def test_a_folder_without_its_sentencepiece_model_asks_for_it(tmp_path: Path) -> None:
    shutil.copytree(FOREIGN / "nllb", tmp_path / "model")
    model = (tmp_path / "model/sentencepiece.bpe.model").rename(tmp_path / "spm.model")
    with pytest.raises(
        UserError, match=r"sentencepiece.bpe.model is missing: give that of the original model with --spm-model"
    ):
        imported(tmp_path / "model")
    assert imported(tmp_path / "model", spm_model=(model,)).source.vocab == imported(FOREIGN / "nllb").source.vocab

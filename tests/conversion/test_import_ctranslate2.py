"""Imported models of CTranslate2 compute what that engine computes."""

import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_models import FsmtModel
from foreign_tokenizers import ENGLISH, MarianFiles
from small_transformers import VARIANTS

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.conversion.ctranslate2_import import from_ctranslate2
from nmtkit.conversion.fsmt import from_fsmt
from nmtkit.decoding.config import EngineConfig, SearchConfig
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary

ctranslate2 = pytest.importorskip("ctranslate2")
LANGUAGES = ImportConfig(source_lang="en", target_lang="de")
MASK = -1e4  # bias of tokens that nmtkit never outputs
WORDS = [f"w{number}" for number in range(20)]


def checkpoint_of(seed: int = 1, size: int = len(WORDS), **changes: Any) -> Checkpoint:
    """A model of words with random weights, biases and norms included."""
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}
    tokenizer = SpaceTokenizer(Vocabulary([*SPECIALS, *WORDS[:size]]))
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(**(sizes | changes)), size + 4, size + 4)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return Checkpoint(model.config, as_arrays(collect_weights(model)), "en", "de", tokenizer, tokenizer)


def assert_computes_the_same(
    checkpoint: Checkpoint, folder: Path, lines: list[str], tolerance: float = 1e-4, end: Sequence[str] = ()
) -> None:
    """Compare greedy translations, and the log-probabilities of their tokens, with those of CTranslate2.

    `end` are the tokens after each source that the engine does not add itself.
    """
    engine = ctranslate2.Translator(str(folder), device="cpu", intra_threads=1, compute_type="float32")
    ours = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    best = [line.candidates[0] for line in ours.stream(lines, SearchConfig(beam=1, max_len_a=0, max_len_b=9))]
    sources = [[*checkpoint.source.vocab.to_pieces(ids), *end] for ids in checkpoint.source.encode(lines)]
    tokens = [list(candidate.tokens[:-1]) for candidate in best]
    theirs = engine.translate_batch(sources, beam_size=1, max_decoding_length=9)
    assert [result.hypotheses[0] for result in theirs] == tokens
    for score, candidate in zip(engine.score_batch(sources, tokens), best, strict=True):
        assert score.log_probs == pytest.approx(candidate.token_log_probs, abs=tolerance)


def sentences(words: list[str], seed: int) -> list[str]:
    choose = random.Random(seed)
    return [" ".join(choose.choices(words, k=length)) for length in (1, 3, 8)]


# nmtkit's own exports --------------------------------------------------------------------------------------------

UNSUPPORTED = {"d_k", "attention_window", "norm_type", "decoder_recurrence"}  # there, or in imports
EXPORTED = [changes for changes in VARIANTS if not UNSUPPORTED & changes.keys()]


@pytest.mark.parametrize("changes", EXPORTED, ids=str)
def test_an_export_of_nmtkit_is_imported_bit_by_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    exported = checkpoint_of(**changes)
    to_ctranslate2(exported, tmp_path / "model")
    imported = from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert imported.model_config.to_dict() == exported.model_config.to_dict() | {
        "dropout": imported.model_config.to_dict()["dropout"]
    }
    for name, weight in exported.weights.items():
        rows = slice(None) if name != "projection_bias" else [1, *range(3, len(weight))]  # others have no effect
        assert np.array_equal(imported.weights[name][rows], weight[rows]), name
    assert imported.source.vocab == exported.source.vocab
    assert imported.joined


def test_separate_vocabularies_are_imported(tmp_path: Path) -> None:
    exported = checkpoint_of(share_embeddings="decoder")
    other = SpaceTokenizer(Vocabulary([*SPECIALS, *reversed(WORDS)]))
    to_ctranslate2(replace(exported, target=other), tmp_path / "model")
    imported = from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert (imported.source.vocab, imported.target.vocab) == (exported.source.vocab, other.vocab)
    assert_computes_the_same(imported, tmp_path / "model", sentences(WORDS, 1))


def test_a_shared_vocabulary_comes_before_separate_ones_as_in_ctranslate2(tmp_path: Path) -> None:
    exported = checkpoint_of()
    to_ctranslate2(exported, tmp_path / "model")
    for side in ("source", "target"):
        (tmp_path / f"model/{side}_vocabulary.json").write_text(json.dumps([*SPECIALS, *reversed(WORDS)]))
    imported = from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert imported.source.vocab == imported.target.vocab == exported.source.vocab


def test_a_piece_with_the_name_of_other_toolkits_padding_is_imported(tmp_path: Path) -> None:
    exported = checkpoint_of(share_embeddings="decoder")
    other = SpaceTokenizer(Vocabulary([*SPECIALS, *WORDS[1:], "<blank>"]))
    to_ctranslate2(replace(exported, target=other), tmp_path / "model")
    imported = from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert imported.target.vocab == other.vocab
    assert np.array_equal(imported.weights["target_embedding.weight"], exported.weights["target_embedding.weight"])


def test_the_sentencepiece_model_of_an_export_is_found(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    exported = make_checkpoint()
    to_ctranslate2(exported, tmp_path / "model")
    imported = from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert (imported.source.kind, imported.source.model) == ("sentencepiece", exported.source.model)
    (tmp_path / "model/spm.model").rename(tmp_path / "elsewhere")
    assert from_ctranslate2(tmp_path / "model", LANGUAGES).source.kind == "space"
    named = from_ctranslate2(tmp_path / "model", replace(LANGUAGES, spm_model=(tmp_path / "elsewhere",)))
    assert named.source.model == exported.source.model


@pytest.mark.parametrize("codes", [("eng_Latn", "deu_Latn"), ("__en__", "__de__")], ids=str)
def test_a_model_that_begins_its_output_with_a_language_code_is_refused(
    codes: tuple[str, str], make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    """As NLLB, M2M-100 and mBART do: its SentencePiece model cannot make the codes."""
    pieces, model = make_checkpoint().source.vocab.pieces, make_checkpoint().source.model
    (tmp_path / "spm").write_bytes(model)
    options = replace(LANGUAGES, spm_model=(tmp_path / "spm",))
    for count in (1, 2):  # a single one may be anything
        tokenizer = SpaceTokenizer(Vocabulary([*pieces, *codes[:count]]))
        exported = checkpoint_of(size=len(tokenizer.vocab) - 4)
        to_ctranslate2(replace(exported, source=tokenizer, target=tokenizer), tmp_path / f"model{count}")
    assert from_ctranslate2(tmp_path / "model1", options).source.kind == "sentencepiece-vocab"
    with pytest.raises(UserError, match=f"has language codes, such as '{codes[0]}', which begin each text of NLLB"):
        from_ctranslate2(tmp_path / "model2", options)


def test_a_model_with_many_language_codes_is_refused_also_without_a_sentencepiece_model(tmp_path: Path) -> None:
    codes = [f"{first}{second}_XX" for first in "abcde" for second in "vwxyz"]  # as many as the first mBART has
    for count in (20, 25):  # a few may be words of the text
        tokenizer = SpaceTokenizer(Vocabulary([*SPECIALS, *codes[:count]]))
        exported = replace(checkpoint_of(size=count), source=tokenizer, target=tokenizer)
        to_ctranslate2(exported, tmp_path / f"model{count}")
    assert from_ctranslate2(tmp_path / "model20", LANGUAGES).source.kind == "space"
    with pytest.raises(UserError, match="has language codes, such as 'av_XX'"):
        from_ctranslate2(tmp_path / "model25", LANGUAGES)


def test_the_tokenizers_of_an_export_of_an_imported_model_are_found(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    exported = from_fsmt(FsmtModel(tmp_path / "fsmt", 1).folder, ImportConfig())
    to_ctranslate2(exported, tmp_path / "model")
    imported = from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert (imported.source.model, imported.target.model) == (exported.source.model, exported.target.model)


@pytest.mark.parametrize(
    ("quantization", "step"), [("float16", 2**-11), ("bfloat16", 2**-8), ("int16", 2**-10), ("int8", 1 / 127)]
)
def test_each_number_format_is_imported_within_its_rounding(quantization: str, step: float, tmp_path: Path) -> None:
    exported = checkpoint_of(positions="fairseq")
    to_ctranslate2(exported, tmp_path / "model", quantization=quantization)
    imported = from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert imported.model_config.to_dict()["positions"] == "fairseq"
    assert imported.model_config.to_dict()["share_embeddings"] == "all"
    for name, weight in exported.weights.items():
        assert np.abs(imported.weights[name] - weight).max() <= step * np.abs(weight).max()
    if quantization != "bfloat16":  # the engine multiplies in float32 what the import has
        assert_computes_the_same(imported, tmp_path / "model", sentences(WORDS, 2), tolerance=1e-3)


# Exports of other toolkits ---------------------------------------------------------------------------------------


def write_fsmt(model: FsmtModel, folder: Path, **settings: Any) -> None:
    """Convert an FSMT model by CTranslate2's converter of fairseq, whose modules have the same names."""
    from ctranslate2.converters import fairseq
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    theirs = model.model.requires_grad_(False).model
    for stack in (theirs.encoder, theirs.decoder):
        stack.layer_norm = stack.layernorm_embedding = stack.project_in_dim = stack.project_out_dim = None
    sizes = model.config
    spec = TransformerSpec.from_config(
        (sizes.encoder_layers, sizes.decoder_layers),
        sizes.encoder_attention_heads,
        pre_norm=False,
        activation=getattr(Activation, sizes.activation_function.upper()),
    )
    fairseq.set_transformer_encoder(spec.encoder, theirs.encoder)
    fairseq.set_transformer_decoder(spec.decoder, theirs.decoder)
    vocabularies = [["<s>", "<blank>", "</s>", "<unk>", *side.pieces[4:]] for side in model.files.vocabs]
    bias = torch.randn(len(vocabularies[1]))
    bias[:2] = MASK
    spec.decoder.projection.bias = bias.numpy()
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    for name, value in settings.items():
        setattr(spec.decoder if name == "start_from_zero_embedding" else spec.config, name, value)
    spec.register_source_vocabulary(vocabularies[0])
    spec.register_target_vocabulary(vocabularies[1])
    spec.validate()
    spec.optimize()
    folder.mkdir()
    spec.save(str(folder))


@pytest.mark.parametrize("seed", range(6))
def test_a_conversion_from_fairseq_computes_the_same(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sharing = ("none", "decoder", "all")[seed % 3]
    model = FsmtModel(tmp_path / "fsmt", seed, sharing)
    write_fsmt(model, tmp_path / "model")
    checkpoint = from_ctranslate2(tmp_path / "model", LANGUAGES)
    options = checkpoint.model_config.to_dict()
    assert options["positions"] == "fairseq"
    assert options["share_embeddings"] == sharing
    lines = sentences(model.files.vocabs[0].pieces[4:], seed)
    assert_computes_the_same(checkpoint, tmp_path / "model", lines)


def test_a_zero_embedding_at_the_start_is_imported(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = FsmtModel(tmp_path / "fsmt", 4, "decoder")
    write_fsmt(model, tmp_path / "model", start_from_zero_embedding=True)
    checkpoint = from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert not checkpoint.weights["target_embedding.weight"][2].any()
    assert_computes_the_same(checkpoint, tmp_path / "model", sentences(model.files.vocabs[0].pieces[4:], 1))


def test_a_conversion_of_a_marian_model_computes_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("sacremoses")
    from ctranslate2.converters import TransformersConverter

    files = MarianFiles(tmp_path / "marian")
    pad = len(files.names) - 1
    config = transformers.MarianConfig(
        **{
            "vocab_size": pad + 1,
            "pad_token_id": pad,
            "decoder_start_token_id": pad,
            "d_model": 16,
            "scale_embedding": True,
        },
        **{f"{stack}_layers": 2 for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": 24 for stack in ("encoder", "decoder")},
        **{f"{stack}_attention_heads": 2 for stack in ("encoder", "decoder")},
        **{"activation_function": "swish", "max_position_embeddings": 64, "eos_token_id": 0, "bos_token_id": 0},
    )
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config)
    torch.nn.init.normal_(model.model.shared.weight, std=0.3)
    model.final_logits_bias.normal_()
    model.save_pretrained(tmp_path / "marian")
    TransformersConverter(str(tmp_path / "marian")).convert(str(tmp_path / "model"))
    for name in ("source.spm", "target.spm"):
        (tmp_path / "model" / name).write_bytes((tmp_path / "marian" / name).read_bytes())
    checkpoint = from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert checkpoint.source.kind == "sentencepiece-vocab"
    assert checkpoint.model_config.to_dict()["positions"] == "sinusoidal"
    assert_computes_the_same(checkpoint, tmp_path / "model", list(ENGLISH), end=["</s>"])


def test_positions_that_the_engine_computes_become_a_table(tmp_path: Path) -> None:
    to_ctranslate2(checkpoint_of(), tmp_path / "model")
    edit(tmp_path / "model/model.bin", lambda variables: [item for item in variables if b"encodings" not in item[0]])
    checkpoint = from_ctranslate2(tmp_path / "model", LANGUAGES)
    options = checkpoint.model_config.to_dict()
    assert (options["positions"], options["max_positions"]) == ("learned", 1024)
    assert_computes_the_same(checkpoint, tmp_path / "model", sentences(WORDS, 1))


def test_text_vocabularies_are_read(tmp_path: Path) -> None:
    to_ctranslate2(checkpoint_of(), tmp_path / "model")
    path = tmp_path / "model/shared_vocabulary.json"
    path.with_suffix(".txt").write_text("".join(f"{piece}\n" for piece in json.loads(path.read_text())))
    path.unlink()
    assert from_ctranslate2(tmp_path / "model", LANGUAGES).source.vocab.pieces == [*SPECIALS, *WORDS]


# What is refused -------------------------------------------------------------------------------------------------

Item = tuple[bytes, bytes]  # the name of a variable, and all after it


def edit(path: Path, change: Callable[[list[Item]], list[Item]]) -> None:
    """Rewrite the variables of a `model.bin`; aliases of variables that are gone go too."""
    content, position = path.read_bytes(), 0

    def take(form: str) -> Any:
        nonlocal position
        (value,) = struct.unpack_from(f"<{form}", content, position)
        position += struct.calcsize(f"<{form}")
        return value

    def name() -> bytes:
        length = take("H")
        text: bytes = take(f"{length}s")
        return text

    assert take("I") == 6
    start = [struct.pack("<IH", 6, 16), name(), struct.pack("<I", take("I"))]
    variables: list[Item] = []
    for _ in range(take("I")):
        key, begin = name(), position
        rank = take("B")
        position += 4 * rank + 1
        size = take("I")
        position += size
        variables.append((key, content[begin:position]))
    variables = change(variables)
    aliases = [(name(), name()) for _ in range(take("I"))]
    kept = [(alias, original) for alias, original in aliases if original in dict(variables)]
    packed = [struct.pack("<H", len(key)) + key + rest for key, rest in variables]
    tail = [struct.pack("<H", len(key)) + key for pair in kept for key in pair]
    path.write_bytes(b"".join([*start, struct.pack("<I", len(packed)), *packed, struct.pack("<I", len(kept)), *tail]))


def scalar(name: str, value: int) -> Callable[[list[Item]], list[Item]]:
    """Set or add an attribute of one byte."""
    key = name.encode() + b"\0"
    return lambda items: [*(item for item in items if item[0] != key), (key, struct.pack("<BBIb", 0, 1, 1, value))]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda items: [
                (key, struct.pack("<BBIB", 0, 1, 1, 4) if key.endswith(b"coder/activation\0") else value)
                for key, value in items
            ],
            "the activation gelu approximated by a sigmoid is not supported, only relu, swish, gelu",
        ),
        (scalar("decoder/alibi", 1), "decoder.alibi is 1, which is not supported"),
        (scalar("decoder/unheard_of", 7), "decoder.unheard_of is 7, which is not supported"),
        (scalar("encoder/num_heads", 3), "num_heads is 3 in the encoder, but 2 in the decoder"),
        (
            lambda items: [(k.replace(b"r_0", b"r_7"), v) for k, v in items],
            "damaged, or not a CTranslate2 model",
        ),
        (lambda items: [i for i in items if b"ffn/layer_norm" not in i[0]], "ffn.layer_norm.weight is missing"),
        (lambda items: [*items, (b"x/w\0", struct.pack("<BIBIf", 1, 1, 0, 4, 1))], "the weight x.w has no counterpart"),
        (lambda items: [*items, (b"x/w\0", struct.pack("<BIBIf", 1, 2, 0, 4, 1))], "which does not match its shape"),
    ],
)
def test_models_that_nmtkit_lacks_are_refused_by_name(
    change: Callable[[list[Item]], list[Item]], words: str, tmp_path: Path
) -> None:
    to_ctranslate2(checkpoint_of(), tmp_path / "model")
    edit(tmp_path / "model/model.bin", change)
    with pytest.raises(UserError, match=words) as error:
        from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"add_source_bos": True}, "add_source_bos is set"),
        ({"decoder_start_token": None}, "decoder_start_token is None, which is not in the vocabulary"),
    ],
)
def test_settings_that_nmtkit_lacks_are_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    to_ctranslate2(checkpoint_of(), tmp_path / "model")
    path = tmp_path / "model/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=words):
        from_ctranslate2(tmp_path / "model", LANGUAGES)


def test_a_model_that_starts_from_zero_needs_no_start_token(tmp_path: Path) -> None:
    """As the converters of Marian and OPUS-MT models write it."""
    to_ctranslate2(checkpoint_of(), tmp_path / "model")
    edit(tmp_path / "model/model.bin", scalar("decoder/start_from_zero_embedding", 1))
    path, found = tmp_path / "model/config.json", []
    for token in ("<none>", "</s>"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder_start_token": token}))
        found.append(from_ctranslate2(tmp_path / "model", LANGUAGES).weights)
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(weight, found[1][name]) for name, weight in found[0].items())


@pytest.mark.parametrize(
    ("piece", "words"),
    [*((piece, f"the vocabulary lists '{piece}' twice$") for piece in ("</s>", WORDS[0])), ("\ud800", "is not JSON")],
)
def test_a_vocabulary_with_a_repeated_piece_or_one_that_is_no_text_is_refused(
    piece: str, words: str, tmp_path: Path
) -> None:
    to_ctranslate2(checkpoint_of(), tmp_path / "model")
    path = tmp_path / "model/shared_vocabulary.json"
    path.write_text(json.dumps([*json.loads(path.read_text())[:-1], piece]))
    with pytest.raises(UserError, match=words):
        from_ctranslate2(tmp_path / "model", LANGUAGES)


@pytest.mark.parametrize("name", ["model.bin", "config.json", "shared_vocabulary.json"])
@pytest.mark.parametrize("content", [None, b"\xff" * 99, b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_missing_or_foreign_file_is_refused(name: str, content: bytes | None, tmp_path: Path) -> None:
    to_ctranslate2(checkpoint_of(), tmp_path / "model")
    path = tmp_path / "model" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError) as error:
        from_ctranslate2(tmp_path / "model", LANGUAGES)
    assert "\n" not in str(error.value)
    assert content is None or ("git lfs pull" in str(error.value)) == content.startswith(b"version")


def test_languages_are_required(tmp_path: Path) -> None:
    to_ctranslate2(checkpoint_of(), tmp_path / "model")
    with pytest.raises(UserError, match="give --source-lang and --target-lang"):
        from_ctranslate2(tmp_path / "model", ImportConfig())


def test_a_damaged_model_is_refused_or_read_and_never_crashes(tmp_path: Path) -> None:
    to_ctranslate2(checkpoint_of(), tmp_path / "model", quantization="int8")
    path, choose = tmp_path / "model/model.bin", random.Random(1)
    whole = path.read_bytes()
    for trial in range(30):
        damaged = bytearray(whole[: choose.randrange(len(whole))] if trial % 2 else whole)
        for _ in range(trial % 4 if damaged else 0):
            damaged[choose.randrange(min(len(damaged), choose.choice([200, 10**6])))] = choose.randrange(256)
        path.write_bytes(damaged)
        try:
            from_ctranslate2(tmp_path / "model", LANGUAGES)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017

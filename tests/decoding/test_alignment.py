"""Alignments: the attention of a layer, what it makes of words, and unknown words copied by it."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import Run

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint
from nmtkit.data.padding import pad
from nmtkit.decoding.alignment import align_words, balance
from nmtkit.decoding.config import SearchConfig, StreamConfig
from nmtkit.decoding.forced import with_attention
from nmtkit.decoding.search import Hypothesis, search
from nmtkit.decoding.translation import SourcePieces, compose, word_numbers
from nmtkit.errors import UserError
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.serving.messages import source_words
from nmtkit.text.moses_bpe import respaced
from nmtkit.text.spm_training import train_sentencepiece
from nmtkit.text.tokenizer import SentencePieceTokenizer, SpaceTokenizer, Tokenizer
from nmtkit.text.vocabulary import BOS, EOS, SPECIALS, UNK, Vocabulary

MakeCheckpoint = Callable[..., Checkpoint]
LINES = ["the dog runs on the street", "", "a cat", "die katze läuft"]


@pytest.mark.parametrize(("layer", "number"), [(None, 1), (1, 0), (3, 2)])
def test_attention_is_the_mean_over_the_heads_of_a_layer(
    layer: int | None, number: int, make_checkpoint: MakeCheckpoint
) -> None:
    models = [torch_backend(make_checkpoint(seed, decoder_layers=3).build_model()) for seed in (1, 2)]
    rows = [[7, 8, 9, EOS], [5, EOS]]
    found = search(Ensemble(models), *pad(rows), SearchConfig(beam=2, nbest=2, max_len_b=3))
    for row, nbest in zip(rows, with_attention(Ensemble(models), rows, found, layer), strict=True):
        for hypothesis in nbest:
            tgt_in, _ = pad([[BOS, *hypothesis.ids]])
            own = [model.attention(*pad([row]), tgt_in).cross[number][0].mean(0) for model in models]
            assert hypothesis.attention is not None
            assert hypothesis.attention.shape == (len(hypothesis.ids) + 1, len(row))
            assert np.allclose(hypothesis.attention, np.mean(own, 0), atol=1e-5)
            assert np.allclose(hypothesis.attention.sum(1), 1.0, atol=1e-5)


def test_word_numbers_follow_the_spaces_in_pieces(tokenizer: Tokenizer) -> None:
    assert word_numbers([" the", " d", "og", " runs"]) == [0, 1, 1, 2]
    assert word_numbers(["the", " ", "", "dog"]) == [0, 1, 1, 1]
    assert word_numbers([" ", "", "", "犬", " ", "", "猫", " "]) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert word_numbers([" a", "", "é", "", "ß", " b"]) == [0, 0, 0, 0, 0, 1]
    assert word_numbers(["the ", "dog "]) == [0, 1]
    assert word_numbers([]) == []
    segmented = SpaceTokenizer(Vocabulary([*SPECIALS, "a@@", "b", "c"]))
    assert word_numbers(segmented.surfaces([6, 4, 5, 4, 4, 6])) == [0, 1, 1, 2, 2, 2]
    for line in ("the dog runs", "straßen laufen", "a"):
        (ids,) = tokenizer.encode([line])
        assert word_numbers(tokenizer.surfaces(ids))[-1] + 1 == len(line.split())


def test_pieces_get_the_spaces_of_the_text_that_they_spell() -> None:
    assert respaced([" a", " b", "", "c"], "a  bc") == ["a", "  b", "", "c"]
    assert respaced([" ", " ⁇", "b", " ."], "⁇ b.") == ["", "⁇", " b", "."]
    assert respaced([" a"], "ab") is None


@pytest.mark.parametrize("unknown", ["t2e", "2", "2t the 2"])
def test_words_of_an_alignment_are_those_of_the_text_beside_unknown_pieces(unknown: str) -> None:
    model = train_sentencepiece(
        ["the dog runs"], vocab_size=15, model_type="bpe", character_coverage=1.0, byte_fallback=False, threads=1
    )
    tokenizer = SentencePieceTokenizer(model)
    (ids,) = tokenizer.encode([f"the {unknown} runs"])
    assert UNK in ids
    attention = np.full((len(ids) + 1, 2), 0.5, dtype=np.float32)
    part = Hypothesis(ids, -1.0, [0.0] * (len(ids) + 1), attention)
    source = SourcePieces(["x"], [0], [0])
    made = compose([part], tokenizer, SearchConfig(alignment=True), source)
    assert made.alignment == tuple((0, word) for word in range(len(made.text.split())))
    given = compose([part], tokenizer, SearchConfig(alignment=True), source, f"the {unknown} runs")
    assert given.alignment == tuple((0, word) for word in range(len(f"the {unknown} runs".split())))


def aligned(attention: list[list[float]], source: list[int], target: list[int]) -> list[tuple[int, int]]:
    return [(i, j) for _, i, j in align_words(np.array(attention, dtype=np.float32), source, target)]


def test_a_word_is_aligned_by_the_attention_between_all_its_pieces() -> None:
    attention = [[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.1, 0.7, 0.2]]
    assert aligned(attention, [0, 1, 1], [0, 1, 2]) == [(0, 0), (1, 1), (1, 2)]
    assert aligned(attention, [3, 4, 4], [7, 8, 8]) == [(3, 7), (4, 8)]
    assert aligned(attention, [0, 1, 1], [0, 0, 0]) == [(1, 0)]  # 1.0 and 2.0 in all


def test_source_words_compete_for_target_words() -> None:
    """An article attends to its noun, which the noun's translation needs more."""
    of_article, of_noun, of_verb = [0.2, 0.7, 0.1], [0.02, 0.9, 0.08], [0.01, 0.09, 0.9]
    assert aligned([of_article, of_noun, of_verb], [0, 1, 2], [0, 1, 2]) == [(0, 0), (1, 1), (2, 2)]
    assert aligned([of_article], [0, 1, 2], [0]) == [(1, 0)]  # no competitor


@pytest.mark.parametrize(
    ("pieces", "text", "alignment"),
    [
        (["x", "y", "z"], "x y z x", ((0, 0), (1, 1), (3, 2), (2, 3))),
        (["犬", "猫", "z"], "犬 猫 z 犬", ((0, 0), (1, 1), (3, 2), (2, 3))),
        (["犬", "猫", "狐"], "犬 猫狐 犬", ((0, 0), (3, 1), (2, 2))),
        (["犬@@", "猫", "狐@@"], "犬猫狐犬", ((2, 0),)),
    ],
)
def test_words_of_an_alignment_are_those_of_the_joined_parts(
    pieces: list[str], text: str, alignment: tuple[tuple[int, int], ...]
) -> None:
    """Chinese and Japanese parts are joined without a space. The second part attends more than the first."""
    target = SpaceTokenizer(Vocabulary([*SPECIALS, *pieces]))
    eye = np.eye(3, dtype=np.float32)
    parts = [
        Hypothesis([4, 5], -1.0, [0.0] * 3, np.float32(0.4) * eye),
        Hypothesis([6, 4], -2.0, [0.0] * 3, eye[[1, 0, 2]]),
    ]
    source = SourcePieces(["a", "b", "c", "d"], [0, 1, 2, 3], [0, 2])
    candidate = compose(parts, target, SearchConfig(alignment=True), source)
    assert (candidate.text, candidate.alignment) == (text, alignment)


def test_source_words_of_segmented_text_are_whole_and_as_the_user_wrote_them() -> None:
    tokenizer = SpaceTokenizer(Vocabulary([*SPECIALS, "dogs", "les"]))
    assert source_words("dogs muzz@@ les", ["dogs", "<unk>", "les"], tokenizer) == ["dogs", "muzzles"]


def test_unknown_words_are_copied_from_the_most_attended_source_words() -> None:
    target = SpaceTokenizer(Vocabulary([*SPECIALS, "x@@", "y"]))
    attention = np.array([[0.1, 0.8, 0.1], [0.9, 0.1, 0.0], [0.2, 0.2, 0.6], [0.0, 0.0, 1.0]], dtype=np.float32)
    part = Hypothesis([UNK, 4, UNK], -1.0, [0.0] * 4, attention)
    source = SourcePieces(["Bob", "Ångström"], [0, 1], [0])
    copied = compose([part], target, SearchConfig(copy_unknown=True), source)
    assert copied.text == "Ångström xBob"
    assert copied.tokens == (SPECIALS[UNK], "x@@", SPECIALS[UNK], SPECIALS[EOS])
    assert copied.alignment is None
    assert compose([part], target, SearchConfig(), None).text == "<unk> x<unk>"


@pytest.mark.parametrize(
    ("copied", "text", "alignment"),
    [
        (("word", "second"), "longword second y", ((0, 0), (1, 1), (0, 2))),  # as long as two <unk>
        (("su@@", "per@@"), "longsupery", ((0, 0),)),
    ],
)
def test_an_alignment_counts_the_words_of_an_output_with_copied_pieces(
    copied: tuple[str, str], text: str, alignment: tuple[tuple[int, int], ...]
) -> None:
    target = SpaceTokenizer(Vocabulary([*SPECIALS, "long@@", "y"]))
    first, second = [0.7, 0.2, 0.1], [0.2, 0.7, 0.1]
    attention = np.array([first, first, second, first, first], dtype=np.float32)
    part = Hypothesis([4, UNK, UNK, 5], -1.0, [0.0] * 5, attention)
    found = compose([part], target, SearchConfig(copy_unknown=True, alignment=True), SourcePieces(copied, [0, 1], [0]))
    assert (found.text, found.alignment) == (text, alignment)


def test_alignments_do_not_change_translations(tiny_checkpoint: Path) -> None:
    translator = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")
    plain = list(translator.stream(LINES, SearchConfig(beam=2, max_len_b=4)))
    config = SearchConfig(beam=2, max_len_b=4, alignment=True)
    for batches in (StreamConfig(), StreamConfig(max_source_tokens=3)):
        aligned = list(translator.stream(LINES, config, batches))
        if batches.max_source_tokens > 10:
            assert [own.text for own in aligned] == [own.text for own in plain]
        for line, translation in zip(LINES, aligned, strict=True):
            pairs = translation.candidates[0].alignment
            assert pairs is not None
            assert [j for _, j in pairs] == list(range(len(pairs)))
            assert bool(pairs) == bool(translation.text.split())
            assert all(0 <= i < len(line.split()) for i, _ in pairs)


def test_the_default_layer_is_the_second_to_last_or_the_second_of_two(tiny_checkpoint: Path) -> None:
    model = Translator.from_checkpoint(tiny_checkpoint).model
    for layers, default in ((1, 0), (2, 1), (3, 1), (6, 4)):
        model.attention_layers = layers
        assert model.alignment_layer(None) == default


def test_a_nonexistent_alignment_layer_is_refused(tiny_checkpoint: Path) -> None:
    translator = Translator.from_checkpoint(tiny_checkpoint, device="cpu")
    with pytest.raises(UserError, match="--alignment-layer 3: the model has 2 decoder layers"):
        translator.translate(LINES, alignment_layer=3)
    with pytest.raises(UserError, match="--copy-unknown"):
        translator.translate(LINES, copy_unknown=True)


def test_the_command_writes_alignments(run_here: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in LINES).encode()
    fast = ("--beam", 2, "--max-len-b", 3, "--device", "cpu", "--precision", "fp32")
    generate = partial(run_here, "nmt-generate", "--checkpoint", tiny_checkpoint, *fast, input=text)
    rows = [json.loads(row) for row in generate("--alignment", "--format", "jsonl").stdout.splitlines()]
    for row in rows:
        (hypothesis,) = row["hypotheses"]
        assert row["source_tokens"][-1] == SPECIALS[EOS]
        if row["source"]:
            assert len(hypothesis["attention"]) == len(hypothesis["tokens"])
            assert {len(shares) for shares in hypothesis["attention"]} == {len(row["source_tokens"])}
            assert all(sum(shares) == pytest.approx(1.0, abs=0.01) for shares in hypothesis["attention"])
    pharaoh = [" ".join(f"{i}-{j}" for i, j in row["hypotheses"][0]["alignment"]) for row in rows]
    assert generate("--format", "pharaoh").stdout.decode().split("\n")[:-1] == pharaoh
    table = [row.split("\t") for row in generate("--format", "tsv", "--alignment").stdout.decode().split("\n")[:-1]]
    assert [row[4] for row in table] == pharaoh
    weights = [np.array(row["hypotheses"][0].get("attention", [])) for row in rows]
    pieces = [
        " ".join(f"{i}-{j}" for j, i in enumerate(balance(each[:-1, :-1]).argmax(1))) if each.size else ""
        for each in weights
    ]
    assert generate("--format", "pharaoh-pieces").stdout.decode().split("\n")[:-1] == pieces
    given = tmp_path / "given"
    given.write_text("der hund\nnichts\neine katze\nthe cat\n")
    scored = generate("--score", given, "--format", "pharaoh", "--alignment-layer", 2)
    assert scored.returncode == 2  # --beam has no effect
    plain = partial(run_here, "nmt-generate", "--checkpoint", tiny_checkpoint, "--device", "cpu", input=text)
    aligned = plain("--score", given, "--format", "pharaoh", "--alignment-layer", 2).stdout.decode().split("\n")[:-1]
    assert [len(line.split()) for line in aligned] == [2, 0, 2, 2]
    assert plain("--score", given, "--format", "pharaoh-pieces").stdout.split(b"\n")[1] == b""
    for arguments in (("--alignment",), ("--alignment-layer", 1, "--format", "jsonl"), ("--copy-unknown",)):
        done = generate(*arguments)
        assert (done.returncode, done.stdout) == (2, b"")

"""The translator: a line out for each line in, in order, in bounded memory."""

import itertools
import logging
import multiprocessing
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from log_messages import without_cut_outputs
from patience import PATIENCE
from repository import ROOT

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.config import Config
from nmtkit.decoding import engine
from nmtkit.decoding.config import EngineConfig, EngineKeywords, SearchConfig, SearchKeywords, StreamConfig
from nmtkit.decoding.engine import WorkersNotStartedError
from nmtkit.decoding.requests import Request
from nmtkit.decoding.search import Hypothesis, search
from nmtkit.errors import RunError, UserError
from nmtkit.inference.arrays import Ints
from nmtkit.machine.workers import WorkerPool
from nmtkit.text.tokenizer import SpaceTokenizer, Tokenizer
from nmtkit.text.vocabulary import EOS, SPECIALS, Vocabulary

SEARCH = SearchConfig(beam=2, max_len_b=3)
LINES = ["the dog runs", "", "a cat", " \t ", "die katze läuft über die straße", "\u3000", "dog\rcat", "ein hund"]


@pytest.fixture(scope="module")
def translator(tiny_checkpoint: Path) -> Translator:
    return Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")


def texts(translator: Translator, lines: list[str], **batches: Any) -> list[str]:
    return [translation.text for translation in translator.stream(lines, SEARCH, StreamConfig(**batches))]


@pytest.mark.parametrize("batches", [{"buffer": 1}, {"buffer": 3}, {"max_tokens": 12}])
def test_buffer_and_batches_do_not_change_the_result(translator: Translator, batches: dict[str, int]) -> None:
    assert texts(translator, LINES * 2, **batches) == texts(translator, LINES * 2)


def test_at_most_one_buffer_is_read_ahead(translator: Translator) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for read in itertools.count(1):
            yield "dog " * (read % 3)

    stream = translator.stream(endless(), SEARCH, StreamConfig(buffer=5))
    for given in range(1, 12):
        next(stream)
        assert given <= read <= given + 5
    stream, read = translator.stream(endless(), SEARCH, StreamConfig(buffer=1)), 0
    assert [read for _ in itertools.islice(stream, 4)] == [1, 2, 3, 4]  # a dialogue


def test_overlong_lines_are_truncated_and_counted(translator: Translator, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        long = texts(translator, ["dog " * 50, "cat", "dog " * 70], max_source_tokens=4)
        texts(translator, ["dog dog"], max_source_tokens=1)
    assert long == texts(translator, ["dog dog dog dog", "cat", "dog dog dog dog"], max_source_tokens=4)
    assert without_cut_outputs(caplog.messages) == [
        "2 lines truncated to 4 tokens (--max-source-tokens)",
        "1 line truncated to 1 token (--max-source-tokens)",
    ]


def test_overlong_lines_are_split_translated_and_joined(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    """Of n candidates the best of each part are the best of the line, and so on; other lines are as they were."""
    config = SearchConfig(beam=2, max_len_b=3, nbest=2)
    lines, parts = (
        ["a cat", "the dog runs. die katze läuft. a cat", "", "dog"],
        ["the dog runs.", "die katze läuft.", "a cat"],
    )
    longest = max(map(len, translator.source.encode(parts)))
    with caplog.at_level(logging.WARNING):
        batches = StreamConfig(max_source_tokens=longest, overlong="split", max_tokens=30, buffer=3)
        found = list(translator.stream(lines, config, batches))
    apart = list(translator.stream(parts, config))
    for rank, candidate in enumerate(found[1].candidates):
        own = [part.candidates[rank] for part in apart]
        assert candidate.text == " ".join(part.text for part in own if part.text)
        assert candidate.tokens == sum((part.tokens for part in own), ())
        assert candidate.score == pytest.approx(sum(part.score for part in own), rel=1e-4)
    assert [row.text for row in found[::2]] == texts(translator, lines[::2])
    assert without_cut_outputs(caplog.messages) == [
        f"1 line translated in parts of at most {longest} tokens (--max-source-tokens)"
    ]


def test_a_line_with_a_prefix_is_truncated_instead_of_split(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    long, batches = "dog " * 9, StreamConfig(max_source_tokens=4, overlong="split")
    with caplog.at_level(logging.WARNING):
        forced, cut, _ = translator.stream(
            [Request(long, prefix="a"), Request("dog " * 4, prefix="a"), long], SEARCH, batches
        )
    assert forced.text == cut.text
    assert without_cut_outputs(caplog.messages) == [
        "1 line truncated to 4 tokens (--max-source-tokens)",
        "1 line translated in parts of at most 4 tokens (--max-source-tokens)",
    ]


def test_skipping_finished_lines_leaves_the_other_translations_bit_identical(translator: Translator) -> None:
    batches = StreamConfig(max_source_tokens=5, overlong="split", max_tokens=12)
    chunks = [LINES[:5], LINES[5:], LINES[:3]]
    whole = list(translator.stream_chunks(chunks, SEARCH, batches))
    for done in range(len(whole) + 2):
        translated: list[int] = []
        rest = list(translator.stream_chunks(chunks, SEARCH, batches, translated.append, done=done))
        assert rest == whole[done:]
        assert sum(translated) == len(rest)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), MemoryError(), RuntimeError("DefaultCPUAllocator: …")]
)
def test_a_batch_too_large_for_the_memory_is_halved(
    error: Exception, translator: Translator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = texts(translator, LINES * 3)
    sizes: list[int] = []

    def limited(model: Any, src: Ints, *arguments: Any) -> list[list[Hypothesis]]:
        sizes.append(len(src))
        if len(src) > most:
            raise error
        return search(model, src, *arguments)

    monkeypatch.setattr(engine, "search", limited)
    engine._warn_of_halves.cache_clear()
    most = 2
    with caplog.at_level(logging.WARNING):
        assert texts(translator, LINES * 3) == expected
    assert max(sizes) > 8
    assert len(without_cut_outputs(caplog.messages)) == 1
    most = 0
    with pytest.raises(RunError, match="out of memory for one sentence of 3 tokens: lower --max-source-tokens"):
        texts(translator, ["a cat"])


def test_workers_give_what_one_process_gives(tiny_checkpoint: Path, translator: Translator) -> None:
    shared = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32", workers=2)
    assert texts(shared, LINES * 5, max_tokens=12, buffer=16) == texts(translator, LINES * 5)
    assert len(multiprocessing.active_children()) == 2  # they wait for more
    del shared
    for worker in multiprocessing.active_children():
        worker.join(timeout=PATIENCE)
    assert multiprocessing.active_children() == []


def test_workers_keep_the_model_that_was_loaded_when_its_file_is_replaced_or_removed(
    tiny_checkpoint: Path, make_checkpoint: Callable[..., Checkpoint], translator: Translator, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    shutil.copy(tiny_checkpoint, path)
    shared = Translator.from_checkpoint(path, device="cpu", precision="fp32", workers=2)
    assert texts(shared, LINES[:1]) == texts(translator, LINES[:1])  # a batch for one of both
    save_checkpoint(path, make_checkpoint(2))
    assert texts(shared, LINES * 5, max_tokens=12, buffer=16) == texts(translator, LINES * 5)
    path.unlink()
    assert texts(shared, LINES * 5, max_tokens=12, buffer=16) == texts(translator, LINES * 5)


def test_a_call_after_an_error_or_ctrl_c_gets_no_result_of_the_call_before(
    tiny_checkpoint: Path, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(pool: WorkerPool) -> None:
        assert pool._busy
        raise KeyboardInterrupt

    shared = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32", workers=2)
    impossible = SearchConfig(beam=1, no_repeat_ngram=1, min_len=1000, max_len_b=1000)
    for _ in range(3):
        with pytest.raises(UserError, match="satisfies"):
            list(shared.stream([*LINES, "the dog " * 9] * 9, impossible, StreamConfig(max_tokens=20)))
        assert texts(shared, LINES * 5, max_tokens=12, buffer=16) == texts(translator, LINES * 5)
    with monkeypatch.context() as impatient:
        impatient.setattr(WorkerPool, "_wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            texts(shared, LINES)
    assert texts(shared, LINES * 5, max_tokens=12, buffer=16) == texts(translator, LINES * 5)


def test_candidates_carry_pieces_and_their_log_probabilities(translator: Translator) -> None:
    config = SearchConfig(beam=3, nbest=3, max_len_b=3)
    (translation,) = translator.stream(["the dog"], config)
    assert len(translation.candidates) == 3
    for candidate in translation.candidates:
        assert candidate.tokens[-1] == SPECIALS[EOS]
        assert len(candidate.tokens) == len(candidate.token_log_probs)
        penalty = ((5 + len(candidate.tokens)) / 6) ** config.length_penalty
        assert candidate.score == pytest.approx(sum(candidate.token_log_probs) / penalty, rel=1e-5)


def test_encoded_sentences_are_translated_like_their_text(translator: Translator) -> None:
    encoded = translator.source.encode(LINES)
    from_ids = [translation.text for translation in translator.stream(map(translator.request, encoded), SEARCH)]
    assert from_ids == texts(translator, LINES)


def test_pre_segmented_text_is_translated(make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint()
    pieces = [*SPECIALS, *(f"w{n}" for n in range(len(checkpoint.source.vocab) - 5)), "hun@@"]
    checkpoint.source = checkpoint.target = SpaceTokenizer(Vocabulary(pieces))
    translator = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    translated = translator.translate(["w1 hun@@ w2 never-seen", "", "w3"], max_len_b=3)
    assert [bool(text) for text in translated] == [True, False, True]
    assert not any("@@ " in text for text in translated)


def test_a_model_without_finite_probabilities_is_an_error(make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint()
    checkpoint.weights = {name: np.full_like(tensor, np.nan) for name, tensor in checkpoint.weights.items()}
    translator = Translator.of([checkpoint], EngineConfig(device="cpu"))
    with pytest.raises(RunError, match="probabilities of the model are not finite"):
        translator.translate(["a dog"])
    with pytest.raises(RunError, match="probabilities of the model are not finite"):
        translator.translate(["a dog"], sampling=True)


def test_rules_that_leave_no_output_are_reported(tiny_checkpoint: Path) -> None:
    translator = Translator.from_checkpoint(tiny_checkpoint, device="cpu")
    vocabulary = len(translator.target.vocab)
    with pytest.raises(UserError, match="satisfies --min-len and --no-repeat-ngram: relax them"):
        translator.translate(["a dog"], no_repeat_ngram=1, min_len=vocabulary, max_len_b=vocabulary)


def test_banning_a_word_that_the_vocabulary_cannot_spell_gives_a_warning(
    make_checkpoint: Callable[..., Checkpoint], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = make_checkpoint()
    words = SpaceTokenizer(checkpoint.target.vocab)
    translator = Translator.of([replace(checkpoint, source=words, target=words)], EngineConfig(device="cpu"))
    plain = translator.translate(["a dog"])
    assert translator.translate(["a dog"], ban=("Hund",)) == plain
    assert without_cut_outputs(caplog.messages) == [
        "--ban: the model has no pieces for 'Hund': write it as in the training text"
    ]


def test_an_unavailable_device_is_refused(tiny_checkpoint: Path) -> None:
    for device in ("cuda:99", "abacus"):
        with pytest.raises(UserError, match=rf"--device {device}"):
            Translator.from_checkpoint(tiny_checkpoint, device=device)


def test_progress_counts_lines_before_they_are_returned_in_order(translator: Translator) -> None:
    lines = ["dog", "", "the dog runs on the street"]
    counts: list[int] = []
    stream = translator.stream(lines, SEARCH, StreamConfig(max_tokens=1), counts.append)
    next(stream)
    assert counts == [1, 1, 1]  # the blank one, the longest, then the first
    assert len(list(stream)) == 2
    assert sum(counts) == len(lines)


# From Python ---------------------------------------------------------------------------------------------------


def test_nbest_gives_a_list_for_each_line_best_first(translator: Translator) -> None:
    lists = translator.translate(LINES, nbest=3, beam=3, max_len_b=3)
    assert [texts[0] for texts in lists] == translator.translate(LINES, beam=3, max_len_b=3)
    assert [len(texts) > 1 for texts in lists] == [bool(line.strip()) for line in LINES]
    assert all(len(set(texts)) == len(texts) <= 3 for texts in lists)
    assert translator.translate(["a cat"], nbest=1, beam=3) == [translator.translate(["a cat"], beam=3)]


@pytest.mark.parametrize(("keywords", "config"), [(SearchKeywords, SearchConfig), (EngineKeywords, EngineConfig)])
def test_keyword_types_match_the_fields_of_the_config(keywords: type, config: type[Config]) -> None:
    given_apart = {"nbest", "explicit"}
    expected = {field.name: field.type for field in fields(config) if field.name not in given_apart}
    assert get_type_hints(keywords) == expected


def test_unknown_and_meaningless_options_are_refused(translator: Translator) -> None:
    with pytest.raises(TypeError, match="beams"):
        translator.translate(LINES, beams=3)  # type: ignore[call-overload]
    refused: list[dict[str, Any]] = [{"beam": 0}, {"nbest": 0}, {"nbest": 5, "beam": 4}]
    for options in refused:
        with pytest.raises(UserError, match="--"):
            translator.translate(LINES, **options)
    with pytest.raises(UserError, match=r"use stream\(\)"):
        translator.translate(LINES, alignment=True)


def test_a_single_string_instead_of_a_list_is_refused(translator: Translator) -> None:
    for call in (translator.translate, translator.stream, lambda text: translator.score(text, [text])):
        with pytest.raises(TypeError, match="write \\[line\\]"):
            call("the dog runs")


def test_the_progress_option_shows_a_line_count(translator: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    texts = translator.translate(LINES, progress=True, max_len_b=3)
    out, err = capsys.readouterr()
    assert (out, f"{len(LINES)}/{len(LINES)}" in err) == ("", True)
    translator.score(LINES, texts, progress=True)
    assert f"{len(LINES)}/{len(LINES)}" in capsys.readouterr().err
    translator.translate(iter(LINES), progress=True, max_len_b=3)  # how many there are is not known
    assert f"{len(LINES)} lines" in capsys.readouterr().err
    translator.translate(LINES, max_len_b=3)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_that_share_a_translator_get_the_same_results_as_alone(workers: int, tiny_checkpoint: Path) -> None:
    shared = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32", workers=workers)
    inputs = [[f"{line} {word}" for line in LINES] for word in ("dog", "cat", "street", "the", "über", "a")]
    expected = [shared.translate(lines, max_len_b=4) for lines in inputs]
    with ThreadPoolExecutor(len(inputs)) as threads:
        found = [threads.submit(shared.translate, lines, max_len_b=4) for lines in inputs * 3]
        assert [future.result(timeout=PATIENCE) for future in found] == expected * 3


@pytest.mark.parametrize("workers", [1, 2])
def test_while_a_stream_is_read_in_any_threads_other_calls_go_on_in_all_of_them(
    workers: int, tiny_checkpoint: Path
) -> None:
    shared = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32", workers=workers)
    expected = shared.translate(LINES * 9, max_len_b=3)
    stream = shared.stream(LINES * 9, SearchConfig(max_len_b=3), StreamConfig(max_tokens=8, buffer=9))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        found = []
        for number, thread in enumerate([one, other] * len(LINES)):
            found.append(thread.submit(next, stream).result(timeout=PATIENCE).text)
            caller = (one, other)[number // 2 % 2]
            assert (
                caller.submit(shared.translate, LINES, max_len_b=3).result(timeout=PATIENCE) == expected[: len(LINES)]
            )
        assert [*found, *(translation.text for translation in stream)] == expected


def test_the_examples_of_the_guide_run(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (ROOT / "docs/how-to/python.md").read_text(encoding="utf-8")
    shutil.copy(tiny_checkpoint, tmp_path / "averaged.pt")
    (tmp_path / "input.en").write_text("the dog runs\n\na cat\n")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    exec("".join(blocks), {})
    assert len(blocks) == 6
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 + 1 + 3


def test_different_numbers_of_lines_and_targets_are_refused_with_their_counts(translator: Translator) -> None:
    with pytest.raises(UserError, match=r"^2 lines and 1 target: give one for each$"):
        translator.score(iter(["the dog", "a cat"]), ["der hund"])
    assert translator.score([], []) == []


def test_workers_do_not_load_a_checkpoint_that_was_replaced_since_the_model_was_loaded(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    save_checkpoint(path, make_checkpoint())
    shared = Translator.from_checkpoint(path, device="cpu", precision="fp32", workers=2)
    save_checkpoint(path, make_checkpoint(2))
    for _ in range(2):
        with pytest.raises(WorkersNotStartedError, match=r"model\.pt has been replaced"):
            texts(shared, LINES)


def test_line_breaks_in_model_output_are_removed(tokenizer: Tokenizer) -> None:
    pieces = ["▁dog", "<0x0A>", "<0x0D>", "<0x0D>", "<0x0A>", "▁cat"]
    text = tokenizer.decode(tokenizer.vocab.to_ids(pieces))
    assert text.split() == ["dog", "cat"]
    assert not {"\n", "\r"} & set(text)


def test_mixing_lines_to_score_with_lines_to_translate_is_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match="some lines have a target to score and some have none"):
        translator.translate(["the dog", Request("a cat", target="eine katze")])
    for lines, targets in ((["the dog"], [None]), ([Request("the dog")], ["der hund"])):
        with pytest.raises(TypeError, match="each line and target is a str: for a Request use stream"):
            translator.score(lines, targets)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the path of a checkpoint is expected"):
        Translator.from_checkpoint()

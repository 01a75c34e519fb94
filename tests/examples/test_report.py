"""The reports of recipes: scores of several seeds, intervals, curves, the tables of single recipes."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import cast

import by_length
import compare
import compare_architectures
import compare_browser
import compare_rows
import compare_students
import curves
import numpy as np
import pairs
import pytest
import report
import results
from commands import Train
from compare import Estimate, Spread
from measure import SETTINGS
from repository import ROOT
from variations import ROWS, options

from nmtkit import Translator
from nmtkit.checkpoint import load_checkpoint, save_checkpoint
from nmtkit.cli.train import choose_model
from nmtkit.cli.train import main as nmt_train
from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file in a folder of its own, and return it."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def scores(bleu: float) -> str:
    log = "22:00:00 translated | sentences 2 | sentences/s 12.4 | tokens/s 150"
    return f"{log}\nBLEU|nrefs:1|tok:13a = {bleu} 70.1/40.2 (BP = 1.000)\nchrF2|nc:6 = 51.00\n"


def test_a_report_has_scores_with_their_spread_cost_and_translations(
    train: Train, tmp_path: Path, write: Write
) -> None:
    for number, bleu in ((1, 36.5), (2, 37.5)):
        train(tmp_path / f"seed-{number}/checkpoints", "--max-updates", 2)
        write(f"seed-{number}/scores.txt", scores(bleu))
        write(f"seed-{number}/translation.de", "ein | Hund\neine Katze\n")
    source, reference = write("test.en", "a dog\na cat\n"), write("test.de", "der Hund\ndie Katze\n")
    text = report.report([tmp_path / "seed-1", tmp_path / "seed-2"], source, reference)
    assert "| seed-1 | 36.50 | 51.00 |" in text
    assert "| mean ± standard deviation | 37.00 ± 0.71 | 51.00 ± 0.00 |" in text
    assert "| seed-2 | 2 | " in text
    assert r"| a dog | der Hund | ein \| Hund |" in text


def test_an_unfinished_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"scores\.txt has no scores"):
        report.read_bleu(tmp_path)


# --- intervals


def test_the_spread_is_pooled_over_models_with_several_seeds() -> None:
    assert Spread.of([[1.0, 3.0], [10.0, 12.0], [5.0]]) == (2**0.5, 2)
    assert Spread.of([[1.0], [2.0]]).mean([1.0]) == Estimate(1.0, None)


def test_an_interval_of_a_difference_covers_the_true_one_in_95_percent_of_experiments() -> None:
    random, covered = Random(1), 0
    for _ in range(2000):
        models = [[random.gauss(mean, 1) for _ in range(3)] for mean in (0, 2, 5)]
        covered += not Spread.of(models).difference(models[1], models[0]).excludes(2.0)
    assert 0.94 < covered / 2000 < 0.96


def test_students_t_has_95_percent_of_its_distribution_within_the_table() -> None:
    for freedom, t in enumerate(compare.T, 1):
        x = np.linspace(-t, t, 20_001)
        density = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
        values = density * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
        assert float(((values[1:] + values[:-1]) / 2 * np.diff(x)).sum()) == pytest.approx(0.95, abs=1e-4)


def test_a_single_seed_of_each_model_shows_no_difference() -> None:
    assert not Spread.of([[30.0], [35.0]]).difference([35.0], [30.0]).excludes(0.0)


def test_models_are_compared_with_the_first() -> None:
    table = compare.compare({"alone": [30.0, 31.0], "with more text": [33.0, 34.0]})
    assert "| with more text | 2 | 33.50 ± 2.15 | +3.00 ± 3.04 |" in table
    assert "| alone | 1 | 30.00 |  |" in compare.compare({"alone": [30.0]})


# --- curves


def test_the_metrics_of_nmt_train_are_drawn_in_a_panel_each(train: Train, tmp_path: Path, write: Write) -> None:
    train(tmp_path / "run", "--max-updates", 4, "--validate-every", 2, "--log-every", 2)
    damaged = write("metrics.jsonl", '{"update": 2, "loss": 9}\n{"update": 2, "loss": 5}\n[]\n{"update": 4, "lo')
    runs = dict(map(curves.read, (str(tmp_path / "run"), f"a $name={damaged}")))
    assert list(runs) == ["run", "a $name"]
    assert list(runs["a $name"]) == [{"loss": {2: 5}}]
    figure = curves.plot(runs)
    assert [len(axes.get_lines()) for axes in figure.axes[:2]] == [4, 4]
    counts = [np.size(line.get_xdata()) for line in figure.axes[0].get_lines()]
    assert counts == [2, 2, 1, 0]  # loss and valid_loss of each
    figure.savefig(tmp_path / "curves.svg")


def test_several_seeds_are_a_mean_in_a_band_over_the_cost_of_training(write: Write) -> None:
    rows = [
        [{"update": 5, "tflop": ppl}, {"update": 9, "valid_ppl": ppl}, {"update": 10, "tflop": 2 * ppl}]
        for ppl in (1, 2, 4)
    ]
    files = [write(f"{i}.jsonl", "\n".join(map(json.dumps, own))) for i, own in enumerate(rows)]
    name, runs = curves.read(f"a=model={' '.join(map(str, files))}")
    assert name == "a=model"
    assert curves.points(runs, "valid_ppl", "tflop").tolist() == [[pytest.approx(1.8 * 7 / 3), 7 / 3, 1, 4]]
    assert curves.points(runs, "valid_bleu", "tflop").shape == (0, 4)
    assert curves.plot({name: runs}, "tflop").axes[0].get_xlabel() == "operations, 10¹²"


@pytest.mark.parametrize("content", ["", "[]\n", '{"update": 1, "speed": 5}\n'])
def test_unusable_metrics_are_refused(content: str, write: Write) -> None:
    with pytest.raises(SystemExit, match="metrics"):
        curves.plot(dict([curves.read(str(write("metrics.jsonl", content)))]))


# --- tables of single recipes


def test_table3_is_made_from_the_results_in_the_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    compare_rows.main([ROOT / "examples/table3/results.csv"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    readme = (ROOT / "examples/table3/README.md").read_text(encoding="utf-8")
    assert len(rows) == 8
    assert all(row in readme for row in rows[2:])


def test_rows_of_table3_that_were_not_trained_alike_are_refused(write: Write) -> None:
    results = (ROOT / "examples/table3/results.csv").read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match="settings"):
        compare_rows.read([write("other.csv", results.replace("c96be1bb", "00000000", 1))])
    with pytest.raises(SystemExit, match="differ in their updates"):
        compare_rows.read([write("longer.csv", results.replace("base,1,", "base,1,9", 1))])
    with pytest.raises(SystemExit, match="several results"):
        compare_rows.read([write("twice.csv", results + results.splitlines()[-1])])


def test_every_row_of_table3_can_be_trained_at_the_papers_size() -> None:
    for row in ROWS:
        assert f"--arch table3_{row}" in options(row, 1, 1) or ROWS[row].arch in options(row, 1, 1)
    with pytest.raises(SystemExit, match="encoder-layers"):
        options("base", 1, 4)


def model_of(options: str) -> TransformerConfig:
    """The model that nmt-train makes with these options."""
    with nmt_train.make_context("nmt-train", ["data", *options.split()]) as context:
        choose_model(context.params)
        return cast(TransformerConfig, context.params["model"])


def test_the_sizes_of_a_row_of_table3_are_divided_and_all_else_is_that_of_its_preset() -> None:
    for row in ROWS:
        full = model_of(options(row, 1, 1))
        assert full == PRESETS[ROWS[row].arch or f"table3_{row}"].model_config(d_k=full.d_k, d_v=full.d_v)
        small = model_of(options(row, 4, 2))
        changes = {name: getattr(full, name) // 4 for name in ("d_model", "d_ff", "d_k", "d_v")}
        changes |= {name: getattr(full, name) // 2 for name in ("encoder_layers", "decoder_layers")}
        assert small == replace(full, **changes)


def test_a_row_of_table3_is_read_from_its_checkpoint(train: Train, tmp_path: Path, write: Write) -> None:
    train(tmp_path / "base/checkpoints", "--max-updates", 2, "--seed", 7)
    write("base/scores.txt", scores(30.5))
    trained = load_checkpoint(path := tmp_path / "base/checkpoints/checkpoint_last.pt", merge=False)
    found = dict(zip(results.COLUMNS, results.result(tmp_path / "base"), strict=True))
    assert [found[name] for name in ("row", "seed", "updates", "bleu")] == ["base", 7, 2, 30.5]
    assert found["perplexity"] == f"{trained.progress['valid_ppl']:.4f}"
    assert (found["sizes"], found["parameters"]) == (
        "1, 16, 24, 2, 8, 8",
        sum(weight.size for weight in trained.weights.values()),
    )
    save_checkpoint(path, replace(trained, progress=trained.progress | {"valid_ppl": None}))
    with pytest.raises(SystemExit, match="has diverged"):
        results.result(tmp_path / "base")


def test_table2_reads_curves_at_equal_cost(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    for model, speed in (("transformer", 1), ("recurrent", 2)):
        lines = [
            {
                "update": update,
                "tflop": update * speed,
                "processor_minutes": update,
                "valid_ppl": 10,
                "valid_bleu": update,
            }
            for update in (10, 20)
        ]
        folder = write(f"{model}/seed-1/checkpoints/metrics.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
        write(f"{model}/seed-1/scores.txt", scores(30.5))
    compare_architectures.main([folder.parents[3] / model / "seed-1" for model in ("transformer", "recurrent")])
    shown = capsys.readouterr().out
    run = compare_architectures.Run.read(folder.parents[3] / "transformer/seed-1")
    assert [run.at("processor_minutes", cost, "bleu") for cost in (9, 10, 15, 20, 21)] == [None, 10, 15, 20, None]
    assert "| recurrent | 1 | 20 | 4e+13 | 20.0 | 10.00 | 20.00 | 30.50 | 12 |" in shown
    # at 20 · 10¹² operations: update 20 of one, update 10 of the other
    assert "| transformer |  | 10.00 | 15.00 | 20.00 |  | 10.00 | 10.00 | 10.00 |" in shown
    assert "| recurrent |  |  |  | 10.00 |  |  |  | 10.00 |" in shown
    write("recurrent/seed-1/checkpoints/metrics.jsonl", '{"update": 9, "valid_bleu": 0.1}\n')
    with pytest.raises(SystemExit, match="diverged"):
        compare_architectures.Run.read(folder.parents[3] / "recurrent/seed-1")


def test_students_are_compared_with_their_teacher() -> None:
    measured = [
        setting._asdict()
        | {"bleu": 30.0, "speed": 100.0 * (1 + setting.shortlist), "parameters": 5e6, "int8_megabytes": 9}
        for setting in SETTINGS
    ]
    table = compare_students.report([measured])
    assert "| student | greedy, shortlist | int8 | 30.00 | +0.00 | 200 | 2.0 | 5.00 | 9.0 |" in table
    assert "is 2.0 times as fast as its teacher, at +0.00 BLEU" in table
    other = [one | {"bleu": 33.0 if one["shortlist"] else 30.0, "speed": 400.0} for one in measured]
    table = compare_students.report([measured, other])
    assert "is 1.2 times as fast as its teacher, at +1.50 BLEU" in table  # means over seeds


def test_students_in_the_browser_are_compared_with_the_teacher_that_they_share() -> None:
    system = {"chrf": 60.0, "speed": 50.0, "megabytes": 9.0}
    seeds = [[system | {"system": "T", "bleu": 35.0}, system | {"system": "S", "bleu": bleu}] for bleu in (33.0, 34.0)]
    _, _, teacher, student, *_ = compare_browser.report(seeds).splitlines()
    assert teacher.startswith("| T | 35.00 | 60.00 |  |")
    assert student.startswith("| S | 33.50 ± 0.71 | 60.00 | -1.50 |")


def test_each_translation_of_an_n_best_list_becomes_a_pair(write: Write, tmp_path: Path) -> None:
    rows = [("a dog", ["ein Hund", "der Hund"]), ("a cat", ["eine Katze", " "])]
    lines = [{"source": source, "hypotheses": [{"text": text} for text in texts]} for source, texts in rows]
    pairs.main(write("n.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines)), tmp_path / "en", tmp_path / "de")
    assert (tmp_path / "en").read_text() == "a dog\na dog\na cat\n"
    assert (tmp_path / "de").read_text() == "ein Hund\nder Hund\neine Katze\n"


def test_lengths_are_divided_into_ranges_without_gaps() -> None:
    found = by_length.ranges(15)
    assert found[0][0] == 1
    assert all(first == last + 1 for (_, last), (first, _) in pairwise(found))
    models = {
        "sinusoids": [by_length.Pair(9, "a b c d", "a b c d", [-0.0]), by_length.Pair(40, "a b c d", "e", [-1.0])]
    }
    assert "| 1–15 | 1 | 1.0 | 100.0 |" in by_length.by_length(models, "de", 15)
    unequal = [by_length.Pair(1, "", "", [-1.0]), by_length.Pair(2, "", "", [-2.0, -3.0])]
    assert by_length.perplexity(unequal) == pytest.approx(math.exp(2))  # of tokens, not of sentences


def test_pairs_of_a_model_have_their_length_translation_and_score(tiny_checkpoint: Path) -> None:
    sources, references = ["the dog runs", "a cat"], ["der hund", "die katze auf der straße"]
    found = by_length.pairs(tiny_checkpoint, sources, references)
    model = Translator.from_checkpoint(tiny_checkpoint, precision="fp32")
    sides = zip(model.source.encode(sources), model.target.encode(references), strict=True)
    assert [pair.length for pair in found] == [max(map(len, side)) for side in sides]
    assert [pair.translation for pair in found] == model.translate(sources, beam=4)
    totals = [sum(pair.log_probabilities) for pair in found]
    assert totals == pytest.approx(model.score(sources, references, length_penalty=0), rel=1e-4)

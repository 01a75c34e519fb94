"""The helpers of the WMT 2014 recipe: text from the archives, the paper's cost, the plan."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import corpus
import cost
import paper
import plan
import pytest
import smoke_archives
import torch
from patience import PATIENCE
from repository import ROOT

from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny archives, and `server` with their list."""
    folder = tmp_path_factory.mktemp("archives")
    smoke_archives.main(folder / "server")
    for path in folder.glob("server/*/*"):
        path.rename(folder / path.name)
    return folder


def get(name: str, target: str, archives: Path, folder: Path, code: int = 0) -> str:
    """Run corpus.py with the archives of a user; return what it says."""
    files = [str(folder / f"{name}.{side}") for side in ("en", target)]
    script = [
        sys.executable,
        "-m",
        "corpus",
        name,
        *files,
        "--archives",
        str(archives),
        "--smoke",
        str(archives / "server"),
    ]
    path = f"{ROOT}/examples/wmt14:{ROOT}/examples"
    done = subprocess.run(
        script, cwd=folder, env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("name", "target", "pairs"),
    [("europarl", "de", 400), ("commoncrawl", "fr", 400), ("giga", "fr", 400), ("newstest2014", "de", 21)],
)
def test_text_comes_from_the_archives(name: str, target: str, pairs: int, archives: Path, tmp_path: Path) -> None:
    assert f"{name}: {pairs} pairs" in get(name, target, archives, tmp_path)
    for side in ("en", target):
        assert len((tmp_path / f"{name}.{side}").read_text(encoding="utf-8").splitlines()) == pairs


def test_an_archive_that_is_missing_or_damaged_is_named_and_writes_nothing(archives: Path, tmp_path: Path) -> None:
    archive = archives / "test.tgz"
    good = archive.read_bytes()
    archive.unlink()
    said = get("newstest2013", "de", archives, tmp_path, code=1)
    assert f"{archive} is missing: put it there, from file://" in said
    for damaged in (good[:500], good[:-9] + b"different"):
        archive.write_bytes(damaged)
        assert f"{archive}: damaged" in get("newstest2013", "de", archives, tmp_path, code=1)
    archive.write_bytes(good)
    assert not list(tmp_path.iterdir())


def test_every_corpus_has_an_archive_with_a_known_checksum() -> None:
    assert corpus.known_archives().keys() == {archive for archive, _ in corpus.CORPORA.values()}


def test_segments_are_read_in_order_with_entities_resolved() -> None:
    text = (
        '<srcset setid="x" srclang="any">\n<doc docid="a" origlang="en">\n<hl>\n<seg id="1">A  head</seg>\n</hl>\n'
        '<p>\n<seg id="2"> R&amp;D &lt;b&gt; &quot;x&quot; </seg>\n<seg id="3"></seg>\n</p>\n</doc>\n'
        '<DOC docid="b"><SEG id="1">two\nlines</SEG></DOC></srcset>\n'
    )
    assert corpus.segments(text) == ["A head", 'R&D <b> "x"', "", "two lines"]


def test_pairs_that_are_unusable_for_training_are_dropped_and_counted() -> None:
    dropped: Counter[str] = Counter()
    pairs = [
        *[(b"a\tdog\r", "ein Hund\u2028läuft".encode()), (b" ", b"leer"), (b"x", b""), (b"same", b"same ")],
        *[(b"\xff", b"y"), (b"last", b"letzter")],
    ]
    assert list(corpus.cleaned(pairs, dropped)) == [("a dog", "ein Hund läuft"), ("last", "letzter")]
    assert dropped == {"a blank side": 2, "both sides the same": 1, "not UTF-8": 1}


def test_sides_of_different_length_are_refused() -> None:
    with pytest.raises(SystemExit, match="europarl: one side ends before line 2"):
        list(corpus.side_by_side([iter([b"1", b"2"]), iter([b"1"])], "europarl"))


def test_a_test_set_with_other_numbers_of_segments_on_its_sides_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "lines_of", lambda archive, name: [b"<seg>1</seg>"] * (2 if "src" in name else 3))
    with pytest.raises(SystemExit, match=r"has 2 segments and .* has 3"):
        list(corpus.pairs_of("newstest2014", "de", Path(), Counter()))


def test_the_papers_cost_equals_table_2_and_the_count_is_near_6_operations_per_parameter_and_token() -> None:
    base, big = paper.TRAININGS["base"], paper.TRAININGS["big"]
    assert (f"{base.flops:.1e}", f"{big.flops:.1e}") == ("3.3e+18", "2.3e+19")
    counted = paper.counted_flops(PRESETS[base.arch].model_config(), 37_000, base.updates, paper.BATCH_TOKENS)
    in_layers_and_output = 6 * 25_000 * 100_000 * (19e6 + 25e6 + 19e6)  # encoder, decoder, output
    assert 0.9 < counted / in_layers_and_output < 1.1


def test_a_run_like_the_papers_has_the_papers_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla P100-SXM2-16GB")
    _, here, published = cost.rows(
        {"update": 100_000, "minutes": 12 * 60, "device_minutes": 8 * 12 * 60, "flops": 9.5e17}, "en-de", "base"
    )
    assert here[0] == "here: 100000 updates in 12 h on 8 × Tesla P100-SXM2-16GB"
    assert here[1:] == published[1:] == ("3.3e+18", "9.5e+17")


def test_the_plan_tries_smaller_micro_batches_until_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def speed(model: object, tokens: int, device: object) -> float:
        if tokens > 7000:
            raise torch.OutOfMemoryError
        return tokens

    monkeypatch.setattr(plan, "speed", speed)
    assert plan.trial(TransformerConfig(d_model=8, d_ff=8), 100, 25_000, torch.device("cpu"))[0] == 6250


def test_the_plan_parses_options_as_nmt_train_does() -> None:
    model, options = plan.training_options(["--arch", "transformer_big", "--heads", "8", "--batch-tokens", "30000"])
    assert isinstance(model, TransformerConfig)
    assert (model.d_model, model.heads, model.dropout) == (1024, 8, 0.3)
    assert (options["max_updates"], options["batch_tokens"], options["keep_last"]) == (300_000, 30_000, 10)

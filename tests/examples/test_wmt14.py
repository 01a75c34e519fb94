"""The WMT 2014 recipe: complete runs on tiny archives, and its behaviour after faults."""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import archives
import cost
import paper
import parallel_text
import plan
import pytest
import torch
from patience import PATIENCE
from repository import PYTHON, ROOT, in_shell

from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS

COMMANDS = ("preprocess", "train", "average", "generate", "score")
ARCHIVES = {
    *("training-parallel-europarl-v7.tgz", "training-parallel-commoncrawl.tgz", "training-parallel-nc-v9.tgz"),
    *("test.tgz", "test-full.tgz"),
}
Make = Callable[..., "subprocess.CompletedProcess[str]"]
downloads = pytest.mark.skipif(shutil.which("curl") is None, reason="curl, which downloads the archives, is not there")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny archives in the layout of the server."""
    folder = tmp_path_factory.mktemp("server")
    subprocess.run([sys.executable, ROOT / "examples/wmt14/smoke_archives.py", folder], check=True, timeout=PATIENCE)
    return folder


@pytest.fixture
def recipe(tmp_path: Path, server: Path) -> Path:
    """The folder of a copy of the recipe, with the archives on its server."""
    examples = shutil.copytree(ROOT / "examples", tmp_path / "my examples", ignore=shutil.ignore_patterns("work"))
    folder = examples / "wmt14"
    shutil.copytree(server, folder / "work/smoke/server")
    return folder


def scripts(folder: Path, bodies: dict[str, str]) -> dict[str, str]:
    """Write commands to a folder; return an environment for make with them and this Python in PATH."""
    folder.mkdir()
    for name, body in (bodies | {"python": f'exec {PYTHON} "$@"'}).items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    path = f"{folder}:{environment['PATH']}"
    return environment | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SMOKE": "1", "GPUS": "0"}


def files(folder: Path) -> dict[Path, float]:
    """The files with their times, without the lists of makes."""
    return {path: path.stat().st_mtime for path in folder.rglob("*") if path.is_file() and path.suffix != ".users"}


@downloads
@pytest.mark.slow
def test_the_recipe_runs_from_download_to_scores_and_a_second_run_does_nothing(recipe: Path, tmp_path: Path) -> None:
    bodies = {f"nmt-{name}": f'exec {in_shell(f"nmt-{name}")} "$@"' for name in COMMANDS}
    environment = scripts(tmp_path / "bin", bodies)

    def make(*arguments: str) -> str:
        done = subprocess.run(
            ["make", *arguments], cwd=recipe, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = make()
    assert shown.index("The plan") < shown.index("downloading") < shown.index("nmt-preprocess")
    planned = re.findall(r"^  (\w[\w ]+?)  ", shown, re.MULTILINE)
    assert planned[:8] == ["model", "archives", "disk", "memory", "updates", "time", "cost", "the paper"]
    run = recipe / "work/smoke/en-de/base"
    report = (run / "report.txt").read_text(encoding="utf-8")
    assert shown.endswith(report)
    assert [name.split("|")[4] for name in re.findall(r"^(?:BLEU|chrF2)\|\S+", report, re.MULTILINE)] == [
        *("tok:moses-de", "tok:moses-de-compounds", "tok:moses-de-compounds-quotes", "tok:13a", "nc:6"),
    ]
    assert re.search(r"the paper: 100000 updates in 12 h on 8 × P100 +3\.3e\+18", report)
    text = recipe / "work/smoke/en-de/text"
    assert len((run / "translation.de").read_text(encoding="utf-8").splitlines()) == 21
    assert (text / "newstest2014.en").read_text(encoding="utf-8").endswith("\nR&D <today>\n")

    before = files(recipe / "work")
    assert make() == report
    assert files(recipe / "work") == before


# --- the following tests use stub commands that only write the targets of their rules

VALUE = 'sed "s/.*--{} \\([^ ]*\\).*/\\1/" <<< "$*"'  # value of an option
OUTPUT = f"touch $({VALUE.format('output')})"
BODIES = {
    "nmt-preprocess": f"folder=$({VALUE.format('destdir')}); mkdir -p $folder; touch $folder/dataset.json",
    "nmt-train": f"mkdir -p $({VALUE.format('save-dir')})",
    "nmt-average": OUTPUT,
    "nmt-generate": OUTPUT,
    "nmt-score": "echo BLEU = 27.3",
}


@pytest.fixture
def make(recipe: Path, tmp_path: Path) -> Make:
    """Run make in the recipe's folder, with files limited to `kilobytes`."""
    environment = scripts(tmp_path / "bin", BODIES)
    for script in ("plan.py", "cost.py"):
        (recipe / script).write_text("")

    def run(*arguments: str, code: int = 0, kilobytes: str = "unlimited") -> "subprocess.CompletedProcess[str]":
        limited = ["bash", "-c", f'ulimit -f {kilobytes}; exec make "$@"', "make", *arguments]
        done = subprocess.run(limited, cwd=recipe, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == code, done.stderr
        return done

    return run


@pytest.fixture
def data_dir(server: Path, tmp_path: Path) -> Path:
    """A folder with downloaded archives."""
    folder = tmp_path / "data"
    folder.mkdir()
    for path in server.glob("wmt*/*"):
        shutil.copy(path, folder)
    return folder


def texts(recipe: Path, pair: str = "en-de", work: str = "work") -> dict[str, int]:
    """The number of lines of each text file."""
    folder = recipe / f"{work}/smoke/{pair}/text"
    return {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(folder.iterdir())}


ALL_TEXTS = {
    f"{name}.{language}": lines
    for name, lines in {
        "europarl": 400,
        "commoncrawl": 400,
        "news-commentary": 400,
        "newstest2013": 21,
        "newstest2014": 21,
    }.items()
    for language in ("en", "de")
}


@downloads
def test_french_also_uses_the_un_and_giga_corpora(make: Make, recipe: Path) -> None:
    make("PAIR=en-fr", "SIZE=big")
    french = {name.replace(".de", ".fr"): lines for name, lines in ALL_TEXTS.items()}
    assert texts(recipe, "en-fr") == french | dict.fromkeys(("un.en", "un.fr", "giga.en", "giga.fr"), 400)


def test_archives_in_data_dir_are_not_downloaded_and_a_missing_one_is_reported(
    make: Make, recipe: Path, data_dir: Path
) -> None:
    missing = data_dir / "training-parallel-nc-v9.tgz"
    aside = missing.rename(data_dir / "aside")
    said = make(f"DATA_DIR={data_dir}", code=2).stderr
    assert f"{missing} is missing: put it there, from file://" in said
    assert "/wmt14/training-parallel-nc-v9.tgz" in said
    aside.rename(missing)
    assert "downloading" not in make(f"DATA_DIR={data_dir}").stdout
    assert texts(recipe) == ALL_TEXTS


@pytest.mark.parametrize("name", ["my data", "100%", "a;b", "a$b", "a&b"])
def test_a_data_dir_that_make_or_the_shell_cannot_handle_is_refused(name: str, make: Make) -> None:
    said = (
        f"DATA_DIR={name}: its name has spaces or characters that are special to make or the shell: give a link to it"
    )
    assert said in make(f"DATA_DIR={name.replace('$', '$$')}", code=2).stderr


@pytest.mark.parametrize(
    ("damage", "said"),
    [(lambda good: good[:5000], "it has 5000 bytes and not"), (lambda good: good[:-9] + b"different", "its sha256 is")],
    ids=["half", "changed"],
)
def test_an_archive_with_a_wrong_size_or_checksum_is_refused(
    damage: Callable[[bytes], bytes], said: str, make: Make, recipe: Path, data_dir: Path
) -> None:
    archive = data_dir / "training-parallel-commoncrawl.tgz"
    good = archive.read_bytes()
    archive.write_bytes(damage(good))
    assert f"{archive}: {said}" in make(f"DATA_DIR={data_dir}", code=2).stderr
    assert not (recipe / "work/smoke/en-de/data-bin").exists()
    archive.write_bytes(good)
    make(f"DATA_DIR={data_dir}")
    assert texts(recipe) == ALL_TEXTS


def test_an_archive_that_replaces_a_verified_one_is_verified_even_if_it_is_older(
    make: Make, recipe: Path, data_dir: Path
) -> None:
    def extract(code: int = 0) -> str:
        for folder in ("text", "extracted"):
            shutil.rmtree(recipe / "work/smoke/en-de" / folder, ignore_errors=True)
        return make(f"DATA_DIR={data_dir}", "text", code=code).stderr

    archive = data_dir / "training-parallel-commoncrawl.tgz"
    assert f"{archive}: as it should be" in extract()
    assert "as it should be" not in extract()
    before = archive.stat()
    archive.write_bytes(archive.read_bytes()[:-9] + b"different")
    os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert f"{archive}: its sha256 is" in extract(code=2)


@downloads
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_an_interrupted_download_is_resumed(share: float, make: Make, recipe: Path) -> None:
    whole = (recipe / "work/smoke/server/wmt14/test-full.tgz").read_bytes()
    (recipe / "work/smoke/archives").mkdir()
    (recipe / "work/smoke/archives/test-full.tgz.part").write_bytes(whole[: int(share * len(whole))])
    make()
    assert (recipe / "work/smoke/archives/test-full.tgz").read_bytes() == whole
    assert {path.name.removesuffix(".lock") for path in (recipe / "work/smoke/archives").iterdir()} == ARCHIVES


@downloads
def test_two_makes_do_not_download_an_archive_at_the_same_time(make: Make, recipe: Path, tmp_path: Path) -> None:
    """The first curl stands for another experiment: it starts a make, and both would append to one file."""
    curl = tmp_path / "bin/curl"
    second = f"PATH={tmp_path}/bin:$PATH make SIZE=big 2> {tmp_path}/refused"
    curl.write_text(
        f"#!/bin/bash\nif mkdir {tmp_path}/once 2> /dev/null; then {second}; echo $? >> {tmp_path}/refused; fi\n"
        f'exec {shutil.which("curl")} "$@"\n'
    )
    curl.chmod(0o755)
    make()
    assert texts(recipe) == ALL_TEXTS
    refusal = (tmp_path / "refused").read_text()
    assert re.search(r"a step that needs \S*/archives/\S+\.tgz\.lock runs: wait for it, or stop it\n", refusal)
    assert refusal.endswith("2\n")


def test_a_text_that_another_make_has_converted_meanwhile_is_not_converted_again(
    make: Make, recipe: Path, tmp_path: Path, data_dir: Path
) -> None:
    """A newer text would repeat the dataset and the training of the other make."""
    begun, other = tmp_path / "begun", f"PATH={tmp_path}/bin:$PATH make DATA_DIR={data_dir}"
    (tmp_path / "bin/python").write_text(  # before a step that converts a text, another make does everything
        f'#!/bin/bash\nif [[ "$*" == *--if-needed*newstest2014* ]] && mkdir {begun} 2> /dev/null; then {other}; fi\n'
        f'exec {PYTHON} "$@"\n'
    )
    said = make(f"DATA_DIR={data_dir}").stderr
    assert begun.exists()
    assert said.count("newstest2014: 21 pairs") == 1
    assert texts(recipe) == ALL_TEXTS


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("PAIR=en-cs", "no experiment PAIR=en-cs: use en-de or en-fr"),
        ("SIZE=huge", "no model SIZE=huge: use base or big"),
        ("SIZE=base big", "no model SIZE=base big: use base or big"),
        ("PAIR=en-de en-fr", "no experiment PAIR=en-de en-fr: use en-de or en-fr"),
        ("GPUS=x", "GPUS=x: give a number of GPUs on each machine, without leading zeros; 0 for the CPU"),
        ("GPUS=00", "GPUS=00: give a number of GPUs"),
        ("NODES=0", "NODES=0: give a number of machines, at least 1"),
        ("SMOKE=no", "SMOKE=no: give 1 for a short run, or 0"),
    ],
)
def test_an_experiment_that_there_is_not_is_refused(asked: str, said: str, make: Make) -> None:
    assert said in make("-n", asked, code=2).stderr


@downloads
def test_downloads_and_results_are_in_the_folder_that_is_given(make: Make, recipe: Path, tmp_path: Path) -> None:
    shutil.copytree(recipe / "work/smoke/server", tmp_path / "results/smoke/server")
    before = files(recipe / "work")
    make(f"WORK={tmp_path}/results", "text")
    assert files(recipe / "work") == before
    assert texts(tmp_path, work="results") == ALL_TEXTS


@downloads
def test_a_failed_download_is_reported_and_the_next_call_resumes(make: Make, recipe: Path) -> None:
    there = recipe / "work/smoke/server/wmt13/test.tgz"
    aside = there.rename(there.with_name("aside"))
    assert "archives/test.tgz: the download broke off; call make again" in make(code=2).stderr
    aside.rename(there)
    assert make().stdout.count("downloading") == 2  # this archive and the next
    assert texts(recipe) == ALL_TEXTS


@downloads
def test_a_full_disk_is_reported_and_the_next_call_resumes(make: Make, recipe: Path, data_dir: Path) -> None:
    assert "the download broke off" in make(code=2, kilobytes="8").stderr
    here = f"DATA_DIR={data_dir}"
    make(here, code=2, kilobytes="8")
    make(here, "work/smoke/en-de/extracted/europarl")
    assert "cannot write" in make(here, code=2, kilobytes="8").stderr
    assert not list((recipe / "work/smoke/en-de").glob("text/*"))
    make(here)
    assert texts(recipe) == ALL_TEXTS


@downloads
def test_other_devices_do_not_repeat_preprocessing_and_training(make: Make, recipe: Path) -> None:
    make()
    before = files(recipe / "work/smoke/en-de/data-bin") | files(recipe / "work/smoke/en-de/base/checkpoints")
    assert make("GPUS=1", "CORES=1").stdout == "BLEU = 27.3\n"
    assert before == files(recipe / "work/smoke/en-de/data-bin") | files(recipe / "work/smoke/en-de/base/checkpoints")
    assert "nmt-generate" in make("SEARCH=--beam 5").stdout


@pytest.mark.parametrize("change", [os.utime, Path.unlink], ids=["copied again", "removed"])
def test_extracted_archives_that_are_touched_or_removed_are_not_extracted_again(
    change: Callable[[Path], None], make: Make, recipe: Path, data_dir: Path
) -> None:
    make(f"DATA_DIR={data_dir}")
    for path in (*data_dir.iterdir(), *recipe.glob("*.txt"), recipe / "parallel_text.py"):
        if path.parent == data_dir or change is os.utime:
            change(path)
    assert make(f"DATA_DIR={data_dir}").stdout == "BLEU = 27.3\n"


def test_a_file_that_an_extracted_archive_lost_is_named(make: Make, recipe: Path, data_dir: Path) -> None:
    asked = (f"DATA_DIR={data_dir}", "text")
    make(*asked)
    folder = "work/smoke/en-de/extracted/europarl"
    lost = f"{folder}/training/europarl-v7.de-en.de"
    for name in (lost, "work/smoke/en-de/text/europarl.de"):
        (recipe / name).unlink()
    assert f"{lost} is missing: remove {folder}, and call make again" in make(*asked, code=2).stderr
    shutil.rmtree(recipe / folder)
    make(*asked)
    assert texts(recipe) == ALL_TEXTS


@downloads
def test_a_kill_during_the_extraction_leaves_no_incomplete_corpus(make: Make, recipe: Path, tmp_path: Path) -> None:
    tar = tmp_path / "bin/tar"
    tar.write_text(f'#!/bin/bash\n{shutil.which("tar")} "$@"; touch {tmp_path}/extracted; sleep 60\n')
    tar.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "SMOKE": "1",
        "PYTHONPATH": str(ROOT),
    }
    with subprocess.Popen(
        ["make", "GPUS=0"], cwd=recipe, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / "extracted").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    tar.unlink()
    assert not list(recipe.glob("work/smoke/en-de/extracted/europarl"))
    make()
    assert texts(recipe) == ALL_TEXTS


def test_two_experiments_do_not_extract_an_archive_at_the_same_time(make: Make, recipe: Path, tmp_path: Path) -> None:
    """The first tar stands for another experiment: it starts a make, and each would remove the other's files."""
    tar = tmp_path / "bin/tar"
    second = f"PATH={tmp_path}/bin:$PATH make SIZE=big 2> {tmp_path}/refused"
    tar.write_text(
        f"#!/bin/bash\nif mkdir {tmp_path}/once 2> /dev/null; then {second}; echo $? >> {tmp_path}/refused; fi\n"
        f'exec {shutil.which("tar")} "$@"\n'
    )
    tar.chmod(0o755)
    make()
    assert texts(recipe) == ALL_TEXTS
    refusal = (tmp_path / "refused").read_text()
    assert re.search(r"a step that needs \S*/extracted/\w+\.lock runs: wait for it, or stop it\n", refusal)
    assert refusal.endswith("2\n")


def commands(make: Make, *arguments: str) -> str:
    return re.sub(r"\\\n\s*", "", make("-n", *arguments).stdout)


def test_an_update_has_the_same_number_of_tokens_on_any_number_of_gpus(make: Make) -> None:
    trainings = {
        gpus: re.findall(
            r"^(torchrun .*?)?(nmt-train .*?)( --device cpu)?$", commands(make, f"GPUS={gpus}"), re.MULTILINE
        )
        for gpus in (0, 1, 8)
    }
    (before, training, cpu), (alone,), (among,) = trainings[0][0], trainings[1], trainings[8]
    assert (before, cpu) == ("", " --device cpu")
    assert alone == ("", training, "")
    assert among == ("torchrun --no-python --standalone --nproc-per-node 8 --max-restarts 3 ", training, "")
    assert "--batch-tokens 12345" in commands(make, "BATCH_TOKENS=12345", "SMOKE=", "GPUS=8")


def test_nmt_train_chooses_the_size_of_micro_batches_unless_it_is_given(make: Make) -> None:
    assert "--max-tokens" not in commands(make, "SMOKE=")
    assert " --max-tokens 1664 " in commands(make, "SMOKE=", "MAX_TOKENS=1664")


@pytest.mark.parametrize(
    ("pair", "size", "expected"),
    [
        ("en-de", "base", "--dropout 0.1 --max-updates 100000 --keep-last 5 --vocab-size 37000"),
        ("en-de", "big", "--dropout 0.3 --max-updates 300000 --keep-last 20 --vocab-size 37000"),
        ("en-fr", "base", "--dropout 0.1 --max-updates 100000 --keep-last 5 --vocab-size 32000"),
        ("en-fr", "big", "--dropout 0.1 --max-updates 300000 --keep-last 20 --vocab-size 32000"),
    ],
)
def test_the_settings_are_those_of_the_paper(pair: str, size: str, expected: str, make: Make) -> None:
    shown = commands(make, f"PAIR={pair}", f"SIZE={size}", "SMOKE=")
    same = "--label-smoothing 0.1 --warmup-updates 4000 --batch-tokens 25000 --beam 4 --length-penalty 0.6"
    for option in re.findall(r"--\S+ \S+", f"{expected} {same} --arch transformer_{size}"):
        assert f" {option} " in f"{shown} ".replace("\n", " "), option


@downloads
def test_an_interrupted_training_is_resumed(make: Make, recipe: Path, tmp_path: Path) -> None:
    training = tmp_path / "bin/nmt-train"
    training.write_text(
        f"#!/bin/bash\nfolder=$({VALUE.format('save-dir')}); mkdir -p $folder; touch $folder/1; exit 143\n"
    )
    make(code=2)
    training.write_text("#!/bin/bash\ntrue\n")
    make()
    assert (recipe / "work/smoke/en-de/base/checkpoints/1").exists()
    assert not list((recipe / "work/smoke/en-de/base").glob("until-*"))


TOGETHER = ("train", "NODES=2", "RENDEZVOUS=a:1")


@downloads
def test_several_machines_need_a_dataset_and_a_rendezvous(make: Make, recipe: Path) -> None:
    first = "first run make ready on one machine, with the same variables except NODES and RENDEZVOUS: see README.md"
    assert first in make(*TOGETHER, code=2).stderr
    make("ready")
    assert "RENDEZVOUS=host:port is missing" in make("NODES=2", code=2).stderr
    assert first in make(*TOGETHER, "UPDATES=50", code=2).stderr
    shown = commands(make, *TOGETHER, "GPUS=4")
    assert "--nnodes 2 --nproc-per-node 4 --max-restarts 3" in shown
    assert "nmt-average" not in shown
    os.utime(recipe / "work/smoke/en-de/data-bin/dataset.json")
    assert first in make(*TOGETHER, code=2).stderr


@downloads
def test_machines_train_together_and_resume_while_another_one_holds_all_locks(
    make: Make, recipe: Path, tmp_path: Path
) -> None:
    make("ready")
    torchrun = tmp_path / "bin/torchrun"
    torchrun.write_text('#!/bin/bash\nmkdir -p work/smoke/en-de/base/checkpoints; echo "torchrun $*"\n[ ! -e stop ]\n')
    torchrun.chmod(0o755)
    (recipe / "stop").touch()
    with contextlib.ExitStack() as stack:
        for path in recipe.glob("work/**/*.command"):
            fcntl.flock(stack.enter_context(path.open()), fcntl.LOCK_SH)
        assert "torchrun --no-python --nnodes 2" in make(*TOGETHER, code=2).stdout
        (recipe / "stop").unlink()
        assert "torchrun --no-python --nnodes 2" in make(*TOGETHER).stdout
    assert not list((recipe / "work/smoke/en-de/base").glob("until-*"))


# --- the scripts


def test_segments_are_read_in_order_with_entities_resolved(tmp_path: Path) -> None:
    path = tmp_path / "x.sgm"
    path.write_text(
        '<srcset setid="x" srclang="any">\n<doc docid="a" origlang="en">\n<hl>\n<seg id="1">A  head</seg>\n</hl>\n'
        '<p>\n<seg id="2"> R&amp;D &lt;b&gt; &quot;x&quot; </seg>\n<seg id="3"></seg>\n</p>\n</doc>\n'
        '<DOC docid="b"><SEG id="1">two\nlines</SEG></DOC></srcset>\n'
    )
    assert parallel_text.segments(path) == ["A head", 'R&D <b> "x"', "", "two lines"]


def test_pairs_that_are_unusable_for_training_are_dropped_and_counted() -> None:
    left_out: Counter[str] = Counter()
    pairs = [
        *[
            (b"a\tdog\r", "ein Hund\u2028läuft".encode()),
            (b" ", b"leer"),
            (b"x", b""),
            (b"same", b"same "),
            (b"\xff", b"y"),
        ],
        (b"last", b"letzter"),
    ]
    kept = list(parallel_text.cleaned(pairs, left_out))
    assert kept == [("a dog", "ein Hund läuft"), ("last", "letzter")]
    assert left_out == {"a blank side": 2, "both sides the same": 1, "not UTF-8": 1}


def test_sides_of_different_length_are_refused_with_their_names(tmp_path: Path) -> None:
    for name, lines in (
        ("a.en", "1\n2\n"),
        ("a.de", "1\n"),
        ("b.sgm", "<seg>1</seg>"),
        ("c.sgm", "<seg>1</seg><seg>2</seg>"),
    ):
        (tmp_path / name).write_text(lines)
    out = tmp_path / "out.en", tmp_path / "out.de"
    with pytest.raises(UserError, match=r"a\.de ends before line 2, .*a\.en goes on"):
        parallel_text.convert(tmp_path / "a.en", tmp_path / "a.de", *out)
    with pytest.raises(UserError, match=r"b\.sgm has 1 segments and .*c\.sgm has 2"):
        parallel_text.convert(tmp_path / "b.sgm", tmp_path / "c.sgm", *out)
    assert not any(path.exists() for path in out)


def test_every_archive_of_the_recipe_has_a_known_checksum() -> None:
    known = archives.read(ROOT / "examples/wmt14/archives.txt")
    assert known.keys() > ARCHIVES
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", archive.checksum) for archive in known.values())


def test_the_papers_cost_equals_table_2_and_the_count_is_near_6_operations_per_parameter_and_token() -> None:
    base, big = paper.TRAININGS["base"], paper.TRAININGS["big"]
    assert (f"{base.flops:.1e}", f"{big.flops:.1e}") == ("3.3e+18", "2.3e+19")
    counted = paper.counted_flops(PRESETS[base.arch].model_config(), 37_000, base.updates, paper.BATCH_TOKENS)
    in_layers_and_output = 6 * 25_000 * 100_000 * (19e6 + 25e6 + 19e6)  # encoder, decoder, output
    assert 0.9 < counted / in_layers_and_output < 1.1


def test_a_run_like_the_papers_is_reported_with_the_papers_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla P100-SXM2-16GB")
    _, here, published = cost.rows(
        {"update": 100_000, "minutes": 12 * 60, "device_minutes": 8 * 12 * 60, "flops": 9.5e17}, "en-de", "base"
    )
    assert here[0] == "here: 100000 updates in 12 h on 8 × Tesla P100-SXM2-16GB"
    assert here[1:] == published[1:] == ("3.3e+18", "9.5e+17")


def test_the_papers_cost_is_unknown_for_a_device_of_unknown_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    progress = {"update": 40, "minutes": 0.1, "device_minutes": 0.15, "flops": 1e11}
    _, here, _ = cost.rows(progress, "en-fr", "big")
    assert here[0].endswith(" on 1.5 × CPU")
    assert here[1:] == ("rate not known", "1e+11")


def test_devices_that_an_older_version_did_not_count_are_not_known() -> None:
    _, here, _ = cost.rows({"update": 40, "minutes": 8.0, "flops": 1e11}, "en-fr", "big")
    assert " on ? × " in here[0]
    assert here[1] == "devices not known"


def test_the_plan_parses_options_as_nmt_train_does() -> None:
    model, options = plan.training_options(["--arch", "transformer_big", "--heads", "8", "--batch-tokens", "30000"])
    assert isinstance(model, TransformerConfig)
    assert (model.d_model, model.heads, model.dropout) == (1024, 8, 0.3)
    assert (options["max_updates"], options["batch_tokens"], options["keep_last"]) == (300_000, 30_000, 10)


def test_the_plan_tries_smaller_micro_batches_until_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def trial(config: object, vocabulary: int, tokens: int, device: torch.device) -> plan.Trial:
        tried.append(tokens)
        if tokens > 7000:
            raise torch.OutOfMemoryError
        return plan.Trial(1.0, 1.0, 1, "")

    monkeypatch.setattr(plan, "trial", trial)
    plan.trial_that_fits(PRESETS["transformer_base"].model_config(), 100, 25_000, torch.device("cpu"))
    assert tried == [25_000, 12_500, 6250]


def test_the_plan_lists_missing_archives(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").touch()
    assert plan.describe_archives([tmp_path / "a.tgz"]) == "1 of 1 there"
    assert plan.describe_archives([tmp_path / name for name in ("a.tgz", "b.tgz")]) == "1 of 2 there; to come: b.tgz"

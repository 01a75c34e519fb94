"""The recipes whose last model learns from translations: which steps make repeats, and what they end in."""

import gzip
import json
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import backtranslation
import distillation
import pytest
import torch
from measure import SETTINGS, STUDENT, TEACHER
from pairs import nbest_lists
from recipe_commands import REAL, STUBS, WAIT, Make, called, make_with, unlocked, value
from repository import PYTHON, ROOT

from nmtkit.checkpoint import load_checkpoint
from nmtkit.errors import UserError

RECIPES = ("distillation", "backtranslation", "diversification")
TEXT = ("MULTI30K_DIR=text", "TANAKA_DIR=text", "ENDING=")
TEXT_GZ = ("MULTI30K_BPE_DIR=text",)
NBEST = '{"source": "a", "hypotheses": [{"text": "b"}]}'
# nmt-generate. A part is printed like a dataset, and has its share of the lines. A file `wait` delays it, and a file
# `fault` leaves it incomplete.
TRANSLATE = f"""output={value("output")}
case $output in
*-of-*) [ ! -e wait ] || touch waiting-${{output##*/}}
{WAIT}
echo "preprocess $output"; [ ! -e fault ] || {{ touch $output.partial; exit 1; }}
parts=${{output##*-of-}}; lines=$(gzip -cdf {value("input")} | wc -l)
for _ in $(seq $((lines / ${{parts%%.*}}))); do echo '{NBEST}'; done > $output;;
*) echo "BLEU = 7" | tee $output;;
esac
rm -f $output.partial"""


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """The folder of each recipe in a copy, with small texts in `text`."""
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    for recipe in RECIPES:
        text = examples / recipe / "text"
        text.mkdir()
        for split, count in (("train", 60), ("val", 6), ("dev", 6), ("test", 6), ("test_2016_flickr", 6)):
            for language in ("en", "de", "ja"):
                lines = (f"{language} {i % 7} a {'b c' * (i % 5)} {i % 3}\n" for i in range(count))
                (text / f"{split}.{language}").write_text("".join(lines))
    text = examples / "diversification/text"
    for path in list(text.iterdir()):
        name = path.name.replace("val.", "valid.").replace("test.", "test.2016.")
        (text / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes().replace(b"b c", b"b@@ c")))
    return {recipe: examples / recipe for recipe in RECIPES}


@pytest.fixture
def distil(folders: dict[str, Path], tmp_path: Path) -> Make:
    """Make of the distillation recipe with stubs, for one model."""
    asked = ("CORPUS=multi30k", "SEED=1", "PARTS=2")
    return make_with(tmp_path / "bin", folders["distillation"], STUBS | {"nmt-generate": TRANSLATE}, *TEXT, *asked)


@pytest.fixture
def back(folders: dict[str, Path], tmp_path: Path) -> Make:
    """Make of the back-translation recipe with stubs, for all models of a seed."""
    asked = ("CORPORA=multi30k", "SEEDS=1", "PARTS=2", "PAIRS=40", "trainings")
    return make_with(tmp_path / "bin", folders["backtranslation"], STUBS | {"nmt-generate": TRANSLATE}, *TEXT, *asked)


@pytest.mark.parametrize("recipe", ["distillation", "backtranslation"])
def test_a_corpus_that_is_missing_is_refused_before_the_first_step(
    recipe: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    stubs = STUBS | {"nmt-generate": TRANSLATE}
    done = make_with(tmp_path / "bin", folders[recipe], stubs, "MULTI30K_DIR=text", "ENDING=", "SEEDS=1")()
    assert (done.returncode, called(done)) == (2, [])
    assert "set TANAKA_DIR to the folder of the corpus" in done.stderr


TAUGHT = ["work/seed-1/taught/1-of-2.jsonl", "work/seed-1/taught/2-of-2.jsonl"]
TEACHER_RUN, STUDENT_RUN = (f"work/seed-1/{model}/checkpoints" for model in ("teacher", "student"))
AFTER_TEACHER = [*TAUGHT, "work/seed-1/taught/data-bin", STUDENT_RUN]


def test_a_dataset_that_has_lost_a_file_is_made_again(folders: dict[str, Path], tmp_path: Path) -> None:
    stubs = STUBS | {"nmt-preprocess": REAL["nmt-preprocess"]}
    asked = (*TEXT, "CORPUS=multi30k", "VOCAB_SIZE=26", "MODEL=teacher", "averaged")
    make = make_with(tmp_path / "bin", folders["distillation"], stubs, *asked)
    assert called(make()) == [TEACHER_RUN]
    path = folders["distillation"] / "work/data-bin/train.en.bin"
    before = path.read_bytes()
    path.unlink()
    assert called(make()) == [TEACHER_RUN]
    assert path.read_bytes() == before
    assert called(make()) == []


def test_a_student_learns_the_translations_of_its_teacher_and_no_step_is_repeated(distil: Make) -> None:
    assert called(distil("averaged")) == ["work/data-bin", TEACHER_RUN, *AFTER_TEACHER]
    assert called(distil("averaged")) == []


def test_models_are_trained_one_after_another_although_make_may_run_several_jobs(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    alone = {name: f"mkdir running || touch together\n{body}\nsleep 0.2; rmdir running" for name, body in STUBS.items()}
    asked = ("CORPUS=multi30k", "SEED=1", "work/seed-1/teacher/averaged.pt", "work/seed-1/plain/averaged.pt")
    assert make_with(tmp_path / "bin", folders["distillation"], alone, *TEXT, *asked)("-j4").returncode == 0
    assert not (folders["distillation"] / "together").exists()


def test_a_student_does_not_learn_from_a_part_that_lost_lines(distil: Make, folders: dict[str, Path]) -> None:
    assert distil("averaged").returncode == 0
    part = folders["distillation"] / TAUGHT[1]
    part.write_text("".join(part.read_text().splitlines(keepends=True)[:20]))
    done = distil("averaged")
    assert done.returncode == 2
    assert "work/seed-1/taught: 50 translated lines, but work/text/train.en has 60: remove the file" in done.stderr
    part.unlink()
    assert called(distil("averaged")) == AFTER_TEACHER[1:]


@pytest.mark.parametrize("parts", ["0", "-1", "x", "2 3", "", "02", "+2"])
def test_a_number_of_parts_that_is_not_positive_is_refused(distil: Make, parts: str) -> None:
    """Without parts, a step would read stdin."""
    done = distil("-n", "part", "PART=1", f"PARTS={parts}")
    assert done.returncode == 2
    assert f"PARTS={parts}: give a number of parts, at least 1" in done.stderr


@pytest.mark.parametrize("nbest", ["0", "6", "2 3", "x", ""])
def test_a_number_of_translations_that_the_search_does_not_find_is_refused_at_once(distil: Make, nbest: str) -> None:
    done = distil("averaged", f"NBEST={nbest}")
    assert (done.returncode, called(done)) == (2, [])
    assert f"NBEST={nbest}: give a number of translations, 1 to 5" in done.stderr


def test_the_number_of_parts_and_the_form_of_a_folder_repeat_no_step(distil: Make, folders: dict[str, Path]) -> None:
    distil("averaged")
    assert called(distil("averaged", f"WORK={folders['distillation']}/work")) == []
    unnumbered = make_with(
        folders["distillation"] / "bin", folders["distillation"], STUBS, *TEXT, "CORPUS=multi30k", "SEED=1"
    )
    assert called(unnumbered("averaged")) == []


@pytest.mark.parametrize("part", ["", "0", "3", "x", "1 2"])
def test_a_part_that_does_not_exist_is_refused(distil: Make, part: str) -> None:
    done = distil("-n", "part", f"PART={part}")
    assert done.returncode == 2
    assert f"PART={part}: give the part to translate, 1 to PARTS=2" in done.stderr


def test_a_new_teacher_translates_everything_again(distil: Make) -> None:
    distil("averaged")
    assert called(distil("averaged", "UPDATES=4")) == [TEACHER_RUN, *AFTER_TEACHER]


@pytest.mark.parametrize("removed", ["text/train.de", "seed-1/teacher/averaged.pt", "data-bin"])
def test_files_that_are_made_again_as_before_translate_no_part_again_and_resume_the_trainings(
    removed: str, distil: Make, folders: dict[str, Path]
) -> None:
    distil("averaged")
    work = folders["distillation"] / "work"
    path = work / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = called(distil("averaged"))
    assert not set(TAUGHT) & set(again)
    assert again[-1] == STUDENT_RUN
    assert not list(work.glob("seed-1/*/until-*"))
    assert called(distil("averaged")) == []


@pytest.mark.parametrize(
    ("recipe", "goals"), [("distillation", ("distil", "averaged")), ("backtranslation", ("back",))]
)
def test_a_work_folder_that_is_moved_repeats_no_step(
    recipe: str, goals: tuple[str, ...], folders: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fixture, *goals_of_make = goals
    make: Make = request.getfixturevalue(fixture)
    assert called(make(*goals_of_make))
    shutil.move(folders[recipe] / "work", tmp_path / "moved")
    done = make(*goals_of_make, f"WORK={tmp_path}/moved")
    assert (done.returncode, called(done)) == (0, [])


def test_another_training_text_translates_all_parts_again(distil: Make, folders: dict[str, Path]) -> None:
    distil("averaged")
    folder = folders["distillation"]
    (folder / "work/text/train.de").unlink()
    (folder / "text/train.de").write_bytes((folder / "text/train.de").read_bytes().replace(b"de 1", b"de 0"))
    assert called(distil("averaged")) == ["work/data-bin", TEACHER_RUN, *AFTER_TEACHER]
    assert len(list(folder.glob("work/seed-1/teacher/until-*"))) == 1


def test_an_interrupted_part_is_resumed_and_finished_parts_are_kept(distil: Make, folders: dict[str, Path]) -> None:
    folder = folders["distillation"]
    distil("ready")
    distil("part", "PART=1")
    (folder / "fault").touch()
    assert called(distil("averaged")) == TAUGHT[1:]
    (folder / "fault").unlink()
    assert (folder / f"{TAUGHT[1]}.partial").exists()
    assert called(distil("averaged")) == AFTER_TEACHER[1:]


def test_parts_started_together_on_several_machines_repeat_no_step(distil: Make) -> None:
    assert called(distil("ready")) == ["work/data-bin", TEACHER_RUN]
    with ThreadPoolExecutor() as pool:
        parts = [called(done) for done in pool.map(lambda part: distil("part", f"PART={part}"), (1, 2))]
    assert parts == [[path] for path in TAUGHT]
    assert called(distil("averaged")) == AFTER_TEACHER[2:]


@pytest.mark.parametrize("missing", ["everything", "the parts' folder", "the teacher", "the command", "the order"])
def test_a_part_before_the_steps_that_precede_it_makes_nothing(
    missing: str, distil: Make, folders: dict[str, Path]
) -> None:
    work = folders["distillation"] / "work"
    teacher = work / "seed-1/teacher/averaged.pt"
    if missing == "the parts' folder":
        distil("MODEL=teacher", "averaged")
    elif missing != "everything":
        distil("ready")
    if missing == "the teacher":
        teacher.unlink()
    elif missing == "the order":
        future = time.time_ns() + 10**9
        os.utime(teacher, ns=(future, future))
    before = sorted(work.rglob("*"))
    done = distil("part", "PART=1", *(["NBEST=2"] if missing == "the command" else []))
    assert done.returncode == 2
    assert called(done) == []
    assert "first run make ready on one machine, with the same variables except PART: see README.md\n" in done.stderr
    assert sorted(work.rglob("*")) == before


def test_parts_are_not_discarded_while_one_is_being_translated(distil: Make, folders: dict[str, Path]) -> None:
    """From its start on: while it loads the model, it has written nothing."""
    distil("ready")
    folder = folders["distillation"]
    (folder / "wait").touch()
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(distil, "part", f"PART={part}") for part in (1, 2)]
        while len(list(folder.glob("waiting-*"))) < 2 and not any(part.done() for part in running):
            time.sleep(0.01)
        done = distil("ready", "NBEST=2")
        (folder / "wait").unlink()
        parts = [called(part.result()) for part in running]
    assert done.returncode == 2
    assert "a step that needs work/seed-1/taught/translate.command runs: wait for it, or stop it\n" in done.stderr
    assert parts == [[path] for path in TAUGHT]
    distil("ready")
    assert all((folder / path).exists() for path in TAUGHT)
    assert called(distil("part", "PART=1")) == []


def test_a_refused_make_leaves_the_parts_of_another_one(folders: dict[str, Path], tmp_path: Path, distil: Make) -> None:
    distil("ready")
    begun = folders["distillation"] / "work/seed-1/taught/begun"
    begun.unlink()
    refused = f'[[ "$*" != *"> work/seed-1/taught/begun"* ]] || {{ touch {begun}; exit 2; }}; exec {PYTHON} "$@"'
    stubs = STUBS | {"nmt-generate": TRANSLATE, "python": refused}
    other = make_with(tmp_path / "other", folders["distillation"], stubs, *TEXT, "CORPUS=multi30k", "SEED=1", "PARTS=2")
    assert other("ready").returncode == 2
    assert called(distil("part", "PART=1")) == TAUGHT[:1]
    assert called(distil("averaged")) == AFTER_TEACHER[1:]


def test_parts_of_one_text_never_come_from_two_teachers(distil: Make, folders: dict[str, Path]) -> None:
    distil("ready")
    folder = folders["distillation"]
    teacher = folder / "work/seed-1/teacher/averaged.pt"
    (folder / "wait").touch()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(distil, "averaged")  # translates both parts
        while not list(folder.glob("waiting-*")) and not running.done():
            time.sleep(0.01)
        refused = distil("ready", "AVERAGED=4")  # is refused as long as the first make uses its teacher
        future = time.time_ns() + 10**9
        os.utime(teacher, ns=(future, future))  # as if replaced between the two parts
        (folder / "wait").unlink()
        done = running.result()
    assert (refused.returncode, done.returncode) == (2, 2)
    assert " uses work/seed-1/teacher/train.command with other variables: wait for it, or stop it\n" in refused.stderr
    assert "another make has replaced work/seed-1/teacher/averaged.pt: call make again\n" in done.stderr
    assert called(done) == TAUGHT[:1]


def test_other_options_of_the_search_discard_what_an_interrupted_part_has(
    distil: Make, folders: dict[str, Path]
) -> None:
    distil("averaged")
    left = folders["distillation"] / f"{TAUGHT[0]}.partial"
    left.touch()
    assert called(distil("averaged", "NBEST=2")) == AFTER_TEACHER
    assert not left.exists()


def test_other_options_of_the_search_remove_no_file_that_is_no_part(distil: Make, folders: dict[str, Path]) -> None:
    distil("averaged")
    folder = folders["distillation"] / "work/seed-1/taught"
    own = [
        folder / name
        for name in ("best-of-all.txt", "1-of-2.jsonl.bak", "1-of-2.txt", "x1-of-2.jsonl", "01-of-02.jsonl")
    ]
    for path in own:
        path.touch()
    (folder / "copy-of-parts").mkdir()
    assert called(distil("averaged", "NBEST=2")) == AFTER_TEACHER
    assert all(path.exists() for path in [*own, folder / "copy-of-parts"])


def test_the_number_of_parts_is_that_of_the_latest_translation(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["distillation"]
    stubs = STUBS | {"nmt-generate": TRANSLATE}
    make = make_with(tmp_path / "bin", folder, stubs, *TEXT, "CORPUS=multi30k", "SEED=1", "averaged")
    for parts in ("3", "2"):
        make(f"PARTS={parts}")
        assert called(make()) == []
    again = make("NBEST=2")  # removes all parts
    assert called(again)[:2] == TAUGHT
    assert re.findall(r"--shard (\S+)", again.stdout) == ["1/2", "2/2"]


def test_the_number_of_parts_is_kept_when_parts_are_removed(folders: dict[str, Path], tmp_path: Path) -> None:
    stubs = STUBS | {"nmt-generate": TRANSLATE}
    make = make_with(tmp_path / "bin", folders["distillation"], stubs, *TEXT, "CORPUS=multi30k", "SEED=1", "NBEST=2")
    make("averaged", "PARTS=2", "NBEST=3")
    make("ready")
    assert called(make("part", "PART=2")) == TAUGHT[1:]


@pytest.mark.parametrize("name", ["best-of-all.txt", "3-of-2.jsonl", "10-of-9.jsonl", "02-of-2.jsonl"])
def test_a_file_that_is_no_part_does_not_count_for_the_number_of_parts(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folders["distillation"]
    (folder / "work/seed-1/taught").mkdir(parents=True)
    (folder / "work/seed-1/taught" / name).touch()
    make = make_with(tmp_path / "bin", folder, STUBS, *TEXT, "CORPUS=multi30k", "SEED=1", "-n", "averaged")
    assert "--shard 1/1 " in make().stdout


def test_a_shortlist_is_replaced_when_its_student_is_trained_again(folders: dict[str, Path], tmp_path: Path) -> None:
    output = value("output")
    export = f'[[ "$*" == *--force* ]] || [ ! -e {output} ] || exit 2; echo >> {output}'
    commands = STUBS | {"nmt-generate": TRANSLATE, "nmt-export": export}
    shortlist = "work/seed-1/student/shortlist.bin"
    distil = make_with(
        tmp_path / "bin", folders["distillation"], commands, *TEXT, "CORPUS=multi30k", "SEED=1", shortlist
    )
    for nbest in (2, 3):
        assert distil(f"NBEST={nbest}").returncode == 0
    assert (folders["distillation"] / shortlist).read_text() == "\n\n"


def test_pairs_of_an_n_best_list_repeat_the_source_and_leave_out_blank_translations(tmp_path: Path) -> None:
    rows = [("a", ["b", "c"]), ("d", [" ", "ä"]), ("", [""])]
    lists = tmp_path / "lists.jsonl"
    lists.write_text(
        "".join(
            json.dumps({"source": source, "hypotheses": [{"text": text} for text in texts]}) + "\n"
            for source, texts in rows
        )
    )
    assert list(nbest_lists(lists)) == [("a", ["b", "c"]), ("d", ["ä"]), ("", [])]


@pytest.mark.parametrize("source", ["1", "null", '"a\\nb"', '"\\ud800"', "[" * 100_000])
@pytest.mark.parametrize("place", ["source", "text"])
def test_a_line_that_is_no_n_best_list_is_refused(source: str, place: str, tmp_path: Path) -> None:
    values = {"source": '"a"', "text": '"b"', place: source}
    lists = tmp_path / "lists.jsonl"
    lists.write_text(f'{{"source": {values["source"]}, "hypotheses": [{{"text": {values["text"]}}}]}}\n')
    with pytest.raises(UserError, match=r"lists\.jsonl:1: not an n-best list"):
        list(nbest_lists(lists))


@pytest.fixture
def diversify(folders: dict[str, Path], tmp_path: Path) -> Make:
    """Make of the diversification recipe with stubs, for one seed."""
    generate = f"""output={value("output")}; echo "preprocess $output"; touch $output"""
    commands = STUBS | {"nmt-generate": generate}
    return make_with(tmp_path / "bin", folders["diversification"], commands, *TEXT_GZ, "SEED=1", "averaged")


def test_a_text_that_the_same_make_has_made_meanwhile_is_kept(folders: dict[str, Path], tmp_path: Path) -> None:
    asked = (*TEXT_GZ, "SEED=1", "averaged")
    twice = f"[ -e other ] || {{ touch other; env -u MAKEFLAGS -u MAKELEVEL make {' '.join(asked)} >&2; }}"
    commands = STUBS | {"sed": f'{twice}\nexec {shutil.which("sed")} "$@"'}
    done = make_with(tmp_path / "bin", folders["diversification"], commands, *asked)()
    assert "work/seed-1/checkpoints" in done.stderr  # of the other make
    assert called(done) == ["work/seed-1/checkpoints"]  # which nmt-train finds finished
    assert not list(folders["diversification"].glob("work/**/until-*"))


def test_the_final_model_learns_from_the_text_and_the_translations_of_both_sides(
    diversify: Make, folders: dict[str, Path]
) -> None:
    run = "work/seed-1"
    steps = [
        "work/data-bin",
        f"{run}/forward/checkpoints",
        f"{run}/forward/train.de",
        "work/reverse/data-bin",
        f"{run}/reverse/checkpoints",
        f"{run}/reverse/train.en",
        f"{run}/data-bin",
        f"{run}/checkpoints",
    ]
    assert sorted(called(diversify())) == sorted(steps)
    assert called(diversify()) == []
    assert called(diversify("UPDATES=5")) == steps[-1:]
    assert sorted(called(diversify("UPDATES=5", "BEAM=6"))) == sorted([steps[2], *steps[5:]])
    work = folders["diversification"] / "work"
    assert "a bc" in gzip.decompress((work / "joined/train.en.gz").read_bytes()).decode()
    genuine = [(work / "seed-1" / name).read_bytes() for name in ("forward/train.en", "reverse/train.de")]
    assert genuine == [gzip.decompress((work / f"joined/train.{side}.gz").read_bytes()) for side in ("en", "de")]


@pytest.mark.parametrize(
    ("recipe", "asked"),
    [
        ("distillation", (*TEXT, "CORPUS=multi30k", "SEED=1", "work/seed-1/measures.json")),
        ("backtranslation", (*TEXT, "CORPUS=multi30k", "SEED=1", "PAIRS=40", "score")),
        ("diversification", (*TEXT_GZ, "SEED=1", "score")),
    ],
)
def test_no_step_runs_while_its_text_can_be_replaced(
    recipe: str, asked: tuple[str, ...], folders: dict[str, Path], tmp_path: Path
) -> None:
    check = unlocked("work/fetch.command")
    script = f"""case $1 in -c | ../locked.py | ../fetch_text.py | ../dates.py) exec {PYTHON} "$@";; esac
[[ $* != *"--target "* ]] || touch {value("source")} {value("target")}
[[ $* != *"--output "* ]] || touch {value("output")}"""
    commands = STUBS | {"nmt-generate": TRANSLATE, "nmt-export": f"touch {value('output')}", "python": script}
    filters = {name: f'{check}\nexec {shutil.which(name)} "$@"' for name in ("awk", "sed", "tail")}
    checked = {name: f"{body}\n{check}" for name, body in commands.items()} | filters
    make = make_with(tmp_path / "bin", folders[recipe], checked, *asked)
    assert make().returncode == 0
    assert not (folders[recipe] / "unlocked").exists()


@pytest.mark.parametrize(
    ("recipe", "asked"),
    [
        ("distillation", (*TEXT, "CORPUS=multi30k", "SEED=1", "averaged")),
        ("diversification", (*TEXT_GZ, "SEED=1", "averaged")),
    ],
)
def test_the_vocabulary_of_a_later_dataset_cannot_be_replaced_while_it_is_read(
    recipe: str, asked: tuple[str, ...], folders: dict[str, Path], tmp_path: Path
) -> None:
    check = f"[[ $* != *--vocab-from* ]] || {{ touch reads; {unlocked('work/data-bin/dataset.json')}; }}"
    script = f"""case $1 in ../locked.py | ../fetch_text.py | ../dates.py) exec {PYTHON} "$@";; esac
[[ $* != *"--target "* ]] || touch {value("source")} {value("target")}"""
    commands = STUBS | {"nmt-generate": TRANSLATE, "python": script}
    commands["nmt-preprocess"] += f"\n{check}"
    done = make_with(tmp_path / "bin", folders[recipe], commands, *asked)()
    assert done.returncode == 0, done.stderr
    assert (folders[recipe] / "reads").exists()
    assert not (folders[recipe] / "unlocked").exists()


def measures(bleu: float, speed: float) -> dict[str, object]:
    """What measure.py writes if the teacher has 30 BLEU and a speed of 100, and all other settings have these."""
    return {
        "results": [
            setting._asdict()
            | ({"bleu": 30.0, "sentences_per_second": 100.0} if setting == TEACHER else {})
            | ({"bleu": bleu, "sentences_per_second": speed} if setting != TEACHER else {})
            for setting in SETTINGS
        ],
        "sizes": {name: {"parameters": 4e6, "int8_megabytes": 5.0} for name in ("teacher", "plain", "student")},
        "source": ["a <b>"],
        "reference": ["c"],
        "translations": [["d"], ["e"]],
    }


@pytest.mark.parametrize(("bleu", "speed", "end"), [(29.5, 300, "reached"), (29.4, 400, "missed"), (31, 299, "missed")])
def test_the_aim_of_a_student_has_two_conditions(bleu: float, speed: float, end: str) -> None:
    corpus = distillation.Corpus("multi30k", [measures(bleu, speed)])
    assert corpus.conclusion().endswith(f"is {end}.")


def test_students_are_compared_with_their_teacher_by_means_over_seeds() -> None:
    corpus = distillation.Corpus("multi30k", [measures(29.0, 300.0), measures(31.0, 500.0)])
    row = corpus.row(STUDENT)
    assert row[:3] == ["student", "greedy, shortlist", "fp32"]
    assert (row[3].split(" ±")[0], row[4].split(" ±")[0], *row[5:]) == ("30.00", "+0.00", "400", "4.0", "4.00", "5.0")
    assert corpus.row(TEACHER)[4] == ""
    assert "a &lt;b&gt;" in distillation.page([corpus])


@pytest.mark.parametrize("damage", ["", '{"results": []}', "[", '{"results": [{"model": "teacher"}]}', "whole"])
def test_a_file_that_is_no_result_of_a_student_is_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "multi30k/seed-1/measures.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(measures(29.5, 300)) if damage == "whole" else damage)
    if damage == "whole":
        assert distillation.read([path]) == [distillation.Corpus("multi30k", [measures(29.5, 300)])]
        return
    with pytest.raises(UserError, match=r"seed-1/measures\.json is not a result of measure\.py"):
        distillation.read([path])


GENUINE, SYNTHETIC = "work/multi30k/genuine-40", "work/multi30k/seed-1/synthetic"


def run_of(model: str) -> str:
    return f"work/multi30k/seed-1/{model}/checkpoints"


def test_the_monolingual_text_is_the_target_side_of_the_pairs_that_are_not_genuine(
    back: Make, folders: dict[str, Path]
) -> None:
    first = called(back())
    assert first == [
        *(f"{GENUINE}/data-bin", run_of("genuine")),
        *(f"{GENUINE}/reverse/data-bin", run_of("reverse"), f"{SYNTHETIC}/1-of-2.en", f"{SYNTHETIC}/2-of-2.en"),
        *(f"{SYNTHETIC}/data-bin", run_of("tagged")),
        *(f"{GENUINE}/all/data-bin", run_of("all")),
    ]
    folder = folders["backtranslation"]
    text = (folder / "text/train.de").read_text().splitlines()
    assert (folder / GENUINE / "train.de").read_text().splitlines() == text[:40]
    assert (folder / SYNTHETIC / "train.de").read_text().splitlines() == text[40:]
    assert called(back()) == []


def test_another_number_of_genuine_pairs_leaves_other_monolingual_text(back: Make, folders: dict[str, Path]) -> None:
    folder = folders["backtranslation"]
    text = (folder / "text/train.de").read_text().splitlines()
    for count in (40, 50, 30):
        assert back(f"PAIRS={count}", "MODELS=tagged").returncode == 0
        assert (folder / SYNTHETIC / "train.de").read_text().splitlines() == text[count:]


def test_a_model_that_the_report_does_not_show_is_not_trained(back: Make) -> None:
    """The reverse model has the other direction."""
    refused = back("MODELS=genuine reverse")
    assert refused.returncode == 2
    assert "no model reverse: the report compares genuine tagged all" in refused.stderr


def test_a_number_of_pairs_that_leaves_no_monolingual_text_repeats_no_step_of_the_number_before(back: Make) -> None:
    back()
    refused = back("PAIRS=60")
    assert refused.returncode == 2
    assert "PAIRS=60: no pair is left as monolingual text: give fewer\n" in refused.stderr
    assert called(back()) == []


def test_an_interrupted_back_translation_is_resumed(back: Make, folders: dict[str, Path]) -> None:
    folder = folders["backtranslation"]
    back("MODELS=genuine")
    (folder / "fault").touch()
    assert called(back())[-1] == f"{SYNTHETIC}/1-of-2.en"
    (folder / "fault").unlink()
    assert called(back())[:2] == [f"{SYNTHETIC}/1-of-2.en", f"{SYNTHETIC}/2-of-2.en"]


def test_a_part_of_the_synthetic_sources_that_lost_lines_is_named(back: Make, folders: dict[str, Path]) -> None:
    assert back().returncode == 0
    part = folders["backtranslation"] / "work/multi30k/seed-1/synthetic/2-of-2.en"
    part.write_text("".join(part.read_text().splitlines(keepends=True)[:-1]))
    done = back()
    assert done.returncode == 2
    assert "2-of-2.en: not as many lines as work/multi30k/seed-1/synthetic/train.de: remove the file" in done.stderr
    part.unlink()
    assert back().returncode == 0


def test_models_are_compared_with_the_one_of_genuine_pairs(tmp_path: Path) -> None:
    runs = []
    for model, values in {"all": (32, 34), "genuine": (30, 32)}.items():
        for seed, bleu in enumerate(values):
            runs.append(tmp_path / "tanaka" / f"seed-{seed}" / model)
            runs[-1].mkdir(parents=True)
            (runs[-1] / "scores.txt").write_text(f"BLEU|nrefs:1|tok:13a = {bleu}.00 60/40\n")
    (genuine, every) = backtranslation.rows(backtranslation.read(runs)["tanaka"])
    assert genuine == ["genuine pairs alone", "2", genuine[2], ""]
    assert genuine[2].startswith("31.00 ± ")
    assert every[3].startswith("+2.00 ± ")
    (runs[0] / "scores.txt").unlink()
    with pytest.raises(UserError, match="has no BLEU"):
        backtranslation.read(runs)


SMALL = ("SEEDS=1", "UPDATES=2", "VALIDATE_EVERY=1", "AVERAGED=1", "VOCAB_SIZE=26")
SMALL_OF = {
    "distillation": (*TEXT, "CORPORA=tanaka"),
    "backtranslation": (*TEXT, "CORPORA=tanaka", "PAIRS=40"),
    "diversification": (*TEXT_GZ, "TEACHER_UPDATES=2"),
}
LAST_MODEL = {
    "distillation": "tanaka/seed-1/student",
    "backtranslation": "tanaka/seed-1/tagged",
    "diversification": "seed-1",
}
TRANSLATIONS = {"distillation": "*/*-of-1.*", "backtranslation": "*/*-of-1.*", "diversification": "*/train.??"}
KILLED_AFTER = (0.1, 0.15, 0.2, 0.25)  # of the time of an undisturbed run: in total less than a run needs


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_killed_several_times_ends_with_the_weights_and_the_text_of_an_undisturbed_run(
    recipe: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    make = make_with(tmp_path / "real", folders[recipe], REAL, *SMALL_OF[recipe], *SMALL)
    results = []
    started, undisturbed = time.monotonic(), 0.0
    for work, kills in (("undisturbed", ()), ("killed", KILLED_AFTER)):
        for share in kills:
            with pytest.raises(subprocess.TimeoutExpired):
                make(f"WORK={work}", timeout=share * undisturbed)
        done = make(f"WORK={work}")
        undisturbed = time.monotonic() - started
        assert done.returncode == 0, done.stderr
        last = folders[recipe] / work / LAST_MODEL[recipe]
        texts = [path.read_bytes() for path in sorted((folders[recipe] / work).rglob(TRANSLATIONS[recipe]))]
        results.append((texts, load_checkpoint(last / "averaged.pt").weights))
        assert texts
    (texts, weights), (again, same) = results
    assert texts == again
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    page = (folders[recipe] / "killed/report.html").read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', page) == []

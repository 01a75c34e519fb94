"""The Multi30k recipes and the root Makefile with stub commands: which steps make repeats, and when."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE
from recipe_commands import DATASET, STUBS, make_with, multi30k_in, unlocked
from repository import PYTHON, ROOT

PREPROCESS, TRAIN, AVERAGE, GENERATE, REPORT = ALL = ["preprocess", "train", "average", "generate", "report"]

# Each stub writes the target of its rule. Training adds a checkpoint, and fails if a file `stop` exists. A file `kill`
# kills all processes once the file that it names, or a .part of that file, is not empty.
KILL = """[ ! -e kill ] || {
    read f < kill; until cat $f $f.*.part 2> /dev/null | grep -q .; do sleep 0.01; done; kill -9 0
}"""
TERMINATE = "[ ! -e terminate ] || { kill $PPID; sleep 9; }"  # make, which then deletes the target
# For locked.py: another make records its command before the second process of a step begins, or make is terminated when
# a command has been recorded. Or another make completes `begun` while this one is refused; or it runs to its end first.
MEDDLE = f"""[[ ! -e overtake || "$*" != *"work/begun" ]] || {{ rm overtake; make > /dev/null; }}
[[ ! -e refuse || "$*" != *"work/begun" ]] || {{ touch work/begun; exit 2; }}
[ ! -e meddle ] || [[ "$*" != *"$(cat meddle)"* ]] || echo other > $(cat meddled)
[[ $2 != --record || ! -e terminate-record ]] || {{ {PYTHON} "$@"; kill $PPID; sleep 9; }}"""
COMMANDS = {
    PREPROCESS: f"mkdir -p work/data-bin; {DATASET} > work/data-bin/dataset.json; {TERMINATE}",
    TRAIN: "[ ! -e refused ] || exit 2; mkdir -p $(after --save-dir); mktemp $(after --save-dir)/XXXXXX >/dev/null; "
    "[ ! -e stop ]",
    AVERAGE: "touch $(after --output)",
    GENERATE: f"echo translating; {KILL}; echo BLEU = 36 | tee $(after --output)",
    REPORT: "touch $(after --output); echo the mean",
}
NAMES = {name: f"nmt-{name}" for name in COMMANDS} | {REPORT: "python"}
AFTER = (
    """after() { sed "s/.* $1 \\([^ ]*\\).*/\\1/" <<< "$arguments"; }; arguments=" $*"\n"""  # the value of an option
)
RECIPES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/Makefile"))

Make = Callable[..., list[str]]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The folder of a copy of the Multi30k recipe, with its text in `text`."""
    return multi30k_in(tmp_path / "a checkout")


@pytest.fixture
def make(recipe: Path, tmp_path: Path) -> Make:
    """Run make with variables such as BEAM=4; return the commands it called. Its output is in `stdout` and `stderr`."""
    (tmp_path / "bin").mkdir()
    for name, body in COMMANDS.items():
        script = tmp_path / "bin" / NAMES[name]
        script.write_text(f"#!/bin/bash\necho {name} >> '{tmp_path / 'called'}'\n{AFTER}{body}\n")
        script.chmod(0o755)
    python = tmp_path / "bin/python"  # for a script of the recipe itself
    real = f'{MEDDLE}; exec {PYTHON} "$@"'
    python.write_text(
        f"#!/bin/bash\n[[ $1 != @(-c|../@(locked|fetch_text|dates).py) ]] || {{ {real}; }}\n{python.read_text()}"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"PATH": f"{tmp_path / 'bin'}:{environment['PATH']}", "MULTI30K_DIR": "text"}
    environment |= {"MULTI30K_BPE_DIR": "text"}

    def run(*variables: str, code: int = 0, folder: Path = recipe) -> list[str]:
        (tmp_path / "called").write_text("")
        done = subprocess.run(
            ["make", *variables],
            cwd=folder,
            env=environment,
            capture_output=True,
            timeout=PATIENCE,
            start_new_session=True,
        )
        assert done.returncode == code, done.stderr.decode()
        (recipe / "stdout").write_bytes(done.stdout)
        (recipe / "stderr").write_bytes(done.stderr)
        return (tmp_path / "called").read_text().split()

    return run


def checkpoints(recipe: Path) -> set[str]:
    return {path.name for path in (recipe / "work/checkpoints").iterdir()}


def test_a_python_without_nmtkit_is_refused_before_the_first_step(make: Make, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "bin/python").write_text(f'#!/bin/bash\nexec {PYTHON} -S "$@"\n')  # without installed packages
    assert make(code=2) == []
    said = (recipe / "stderr").read_text()
    assert "there is no python with nmtkit on the PATH: call make in the project's root" in said


def test_a_second_run_repeats_no_step(make: Make) -> None:
    assert make() == ALL
    assert make() == []


def test_every_run_prints_the_scores_once(make: Make, recipe: Path) -> None:
    for _ in range(2):
        make()
        assert (recipe / "stdout").read_text().count("BLEU = 36") == 1


@pytest.mark.parametrize(
    ("variable", "again"),
    [
        ("VOCAB_SIZE=8000", ALL),
        ("VALID=train", ALL),
        ("DROPOUT=0.25", [TRAIN, AVERAGE, GENERATE, REPORT]),
        ("AVERAGE=--best 3", [AVERAGE, GENERATE, REPORT]),
        ("BEAM=5", [GENERATE, REPORT]),
        ("TITLE=Multi30k", [REPORT]),
    ],
)
def test_a_changed_variable_repeats_the_steps_that_depend_on_it(variable: str, again: list[str], make: Make) -> None:
    make()
    assert make(variable) == again
    assert make(variable) == []
    assert make() == again


@pytest.mark.parametrize("variable", ["VOCAB_SIZE=8000", "UPDATES=6000"])
def test_a_new_dataset_or_training_moves_old_checkpoints_away_and_keeps_them(
    variable: str, make: Make, recipe: Path
) -> None:
    make()
    before = checkpoints(recipe)
    make(variable)
    assert len(checkpoints(recipe)) == len(before) == 1
    assert checkpoints(recipe) != before
    assert {path.name for path in (recipe / "work").glob("until-*/checkpoints/*")} == before


@pytest.mark.parametrize("between", [["UPDATES=6O"], ["UPDATES=6000"], ["UPDATES=6O", "UPDATES=6000", "DROPOUT=x"]])
def test_a_training_that_was_moved_away_goes_on_when_its_options_return(
    between: list[str], make: Make, recipe: Path
) -> None:
    make()
    before = checkpoints(recipe)
    for variable in between:
        is_refused = variable != "UPDATES=6000"
        if is_refused:
            (recipe / "refused").touch()
        make(variable, code=2 if is_refused else 0)
        assert not is_refused or not (recipe / "work/checkpoints").exists()
        (recipe / "refused").unlink(missing_ok=True)
    make()
    assert before < checkpoints(recipe)
    assert make() == []


def test_fewer_checkpoints_are_averaged_without_another_training(make: Make, recipe: Path) -> None:
    make()
    for averaged, again in (("2", [AVERAGE, GENERATE, REPORT]), ("1", [AVERAGE, GENERATE, REPORT]), ("4", ALL[1:])):
        assert make(f"AVERAGED={averaged}") == again
        assert f"--last {averaged} " in (recipe / "work/average.command").read_text()
    assert "--keep-last 4" in (recipe / "work/begun").read_text()
    assert make("AVERAGED=9", "work/train.command") == []  # an interrupted make that has not begun
    assert make() == ALL[1:]  # the training that was complete goes on
    assert len(list((recipe / "work").glob("until-*"))) == 1


@pytest.mark.parametrize("meanwhile", ["nothing", "another dataset"])
def test_a_training_goes_on_when_its_command_returns_before_another_has_begun(
    meanwhile: str, make: Make, recipe: Path
) -> None:
    make()
    assert make("UPDATES=6000", "work/train.command") == []
    if meanwhile == "another dataset":
        make("VOCAB_SIZE=8000", "work/data-bin/dataset.json")
    assert TRAIN in make()
    assert not list((recipe / "work").glob("until-*"))


@pytest.mark.parametrize(
    "removed", ["text/test_2016_flickr.de.gz", "text/train.en.gz", "data-bin/dataset.json", "data-bin"]
)
def test_a_training_goes_on_when_a_removed_file_is_made_again_as_before(removed: str, make: Make, recipe: Path) -> None:
    make()
    before = checkpoints(recipe)
    path = recipe / "work" / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert make() == ALL
    assert before < checkpoints(recipe)
    assert make() == []


def test_a_work_folder_that_is_moved_repeats_only_its_report(make: Make, recipe: Path, tmp_path: Path) -> None:
    make()
    shutil.move(recipe / "work", tmp_path / "moved")
    assert make(f"WORK={tmp_path}/moved") == [REPORT]
    assert make(f"WORK={tmp_path}/moved") == []
    assert make(f"WORK={tmp_path}/moved", "BEAM=5") == [GENERATE, REPORT]


def test_another_text_starts_a_new_training(make: Make, recipe: Path) -> None:
    make()
    before = checkpoints(recipe)
    (recipe / "work/text/train.en.gz").unlink()
    (recipe / "text/train.en.gz").write_text("more of it")
    assert make() == ALL
    assert not before & checkpoints(recipe)
    (aside,) = (recipe / "work").glob("until-*")
    assert {path.name for path in aside.glob("checkpoints/*")} == before


def test_checkpoints_in_which_a_training_runs_are_not_moved(make: Make, recipe: Path) -> None:
    make()
    before = checkpoints(recipe)
    handle = os.open(recipe / "work/checkpoints", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert make("UPDATES=6000", code=2) == []
    finally:
        os.close(handle)
    assert (recipe / "stderr").read_text().startswith("a training runs in work/checkpoints: wait for it, or stop it\n")
    assert checkpoints(recipe) == before
    assert not list((recipe / "work").glob("until-*"))
    assert make() == []  # the refused command has left nothing that begins another training


def test_a_dataset_that_is_complete_at_a_signal_is_kept(make: Make, recipe: Path) -> None:
    (recipe / "terminate").touch()
    assert make(code=-signal.SIGTERM) == [PREPROCESS]
    (recipe / "terminate").unlink()
    assert (recipe / "work/data-bin/dataset.json").exists()
    assert make() == ALL[1:]


def test_a_refused_make_leaves_the_training_of_another_one(make: Make, recipe: Path) -> None:
    (recipe / "refuse").touch()
    assert make(code=2) == [PREPROCESS]
    (recipe / "refuse").unlink()
    (recipe / "work/checkpoints").mkdir()  # of the other one
    assert make() == ALL[1:]
    assert not list((recipe / "work").glob("until-*"))


def test_removed_checkpoints_are_missed_only_by_the_average_and_train_again_if_that_is_wanted(
    make: Make, recipe: Path
) -> None:
    make()
    shutil.rmtree(recipe / "work/checkpoints")
    assert TRAIN not in make("BEAM=3")
    (recipe / "work/averaged.pt").unlink()
    make(code=2)
    assert "work/checkpoints is missing: remove work/trained, and call make" in (recipe / "stderr").read_text()
    (recipe / "work/trained").unlink()
    assert TRAIN in make()


def test_a_deleted_translation_is_made_again(make: Make, recipe: Path) -> None:
    make()
    (recipe / "work/translation.de").unlink()
    assert make() == [GENERATE, REPORT]
    assert make() == []


def test_a_make_that_another_one_overtakes_keeps_its_training(make: Make, recipe: Path) -> None:
    make()
    before = checkpoints(recipe)
    (recipe / "overtake").touch()
    called = make("UPDATES=6000")
    assert called[:4] == [TRAIN, AVERAGE, GENERATE, REPORT]  # of the other one
    assert not (recipe / "overtake").exists()
    (aside,) = (recipe / "work").glob("until-*")
    assert {path.name for path in aside.glob("checkpoints/*")} == before
    assert not before & checkpoints(recipe)
    assert make("UPDATES=6000") == []


def test_an_interrupted_training_is_resumed(make: Make, recipe: Path) -> None:
    (recipe / "stop").touch()
    assert make(code=2) == [PREPROCESS, TRAIN]
    before = checkpoints(recipe)
    (recipe / "stop").unlink()
    assert make() == [TRAIN, AVERAGE, GENERATE, REPORT]
    assert checkpoints(recipe) > before


@pytest.mark.parametrize(
    ("name", "step", "command"),
    [
        ("begun", "work/begun", "train"),
        ("trained", "-- touch work/trained", "train"),
        ("averaged.pt", "-- nmt-average", "fetch"),
        ("scores.txt", "nmt-generate", "fetch"),
    ],
)
def test_a_step_does_not_count_for_a_command_that_another_make_records_meanwhile(
    name: str, step: str, command: str, make: Make, recipe: Path
) -> None:
    (recipe / "meddle").write_text(step)
    (recipe / "meddled").write_text(f"work/{command}.command")
    make(code=2)
    assert not list((recipe / "work").glob(f"{name}*"))
    assert b"another make has begun this step with other variables: call make again" in (recipe / "stderr").read_bytes()


def test_a_recorded_command_is_kept_at_a_signal(make: Make, recipe: Path) -> None:
    (recipe / "terminate-record").touch()
    make("work/preprocess.command", code=-signal.SIGTERM)
    assert (recipe / "work/preprocess.command").read_text().startswith("nmt-preprocess ")


def test_a_recipe_without_its_text_stops_before_preprocessing(make: Make, recipe: Path) -> None:
    assert make("MULTI30K_DIR=", "URL=", "HOW_TO_GET=ask", code=2) == []
    assert not (recipe / "work" / "data-bin").exists()


def test_quotes_in_a_command_are_recorded(make: Make, recipe: Path) -> None:
    (recipe / "text").rename(recipe / "o'brien's `$\\\\")
    asked = ("MULTI30K_DIR=o'brien's `$$\\\\", "DROPOUT='0.2' --max-updates 9")
    assert make(*asked) == ALL
    assert make(*asked) == []
    assert make(asked[0], "DROPOUT='0.2' --max-updates 8") == ALL[1:]


def test_a_folder_that_lacks_a_text_is_refused_and_replaces_none(make: Make, recipe: Path) -> None:
    make()
    (shutil.copytree(recipe / "text", recipe / "other") / "train.de.gz").unlink()
    for text in (recipe / "other").iterdir():
        text.write_text("other lines")
    assert make("MULTI30K_DIR=other", code=2) == []
    assert "other/train.de.gz" in (recipe / "stderr").read_text()
    assert make() == []


def test_text_of_another_folder_replaces_that_of_the_first(make: Make, recipe: Path) -> None:
    make()
    other = shutil.copytree(recipe / "text", recipe / "other")
    assert make("MULTI30K_DIR=other") == []  # the same text
    (other / "val.de.gz").write_text("other lines")
    assert make("MULTI30K_DIR=other", code=2) == []
    refused = "other/val.de.gz differs from its copy work/text/val.de.gz: remove the copy to use the folder again\n"
    assert refused in (recipe / "stderr").read_text()
    assert make("MULTI30K_DIR=./other") == ALL
    assert (recipe / "work/text/val.de.gz").read_text() == "other lines"
    assert make("MULTI30K_DIR=", "URL=", "HOW_TO_GET=ask") == []
    assert make() == ALL
    assert (recipe / "work/text/val.de.gz").read_text() == "all of it"


def test_no_step_runs_while_its_text_can_be_replaced(make: Make, recipe: Path, tmp_path: Path) -> None:
    for name in NAMES.values():
        with (tmp_path / "bin" / name).open("a") as script:
            print(unlocked("work/fetch.command"), file=script)
    assert make() == ALL
    assert not (recipe / "unlocked").exists()


def test_text_that_a_step_uses_is_not_replaced(make: Make, recipe: Path) -> None:
    make()
    other = shutil.copytree(recipe / "text", recipe / "other")
    (other / "val.de.gz").write_text("other lines")
    with (recipe / "work/fetch.command").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert make("MULTI30K_DIR=other", code=2) == []
    assert "a step that needs work/fetch.command runs: wait for it, or stop it\n" in (recipe / "stderr").read_text()
    assert (recipe / "work/text/val.de.gz").read_text() == "all of it"
    assert make() == []


def test_a_dataset_that_a_training_reads_is_not_replaced(make: Make, recipe: Path, tmp_path: Path) -> None:
    with (tmp_path / "bin/nmt-train").open("a") as script:
        print(unlocked("work/data-bin/dataset.json"), file=script)
    make()
    assert not (recipe / "unlocked").exists()
    recorded = (recipe / "work/preprocess.command").read_bytes()
    with (recipe / "work/data-bin/dataset.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert make("VOCAB_SIZE=410", code=2) == []
    assert "a step that needs work/data-bin/dataset.json runs" in (recipe / "stderr").read_text()
    assert (recipe / "work/preprocess.command").read_bytes() == recorded
    assert make() == []


def test_a_work_folder_may_end_in_a_slash(make: Make) -> None:
    assert make("WORK=work/") == ALL
    assert make() == []


@pytest.mark.parametrize(
    "name", ["{folder}/work", "../{folder.name}/work", "./work/", "work/../work", "{folder}/../x/work"]
)
def test_a_work_folder_has_one_name_however_it_is_given(name: str, tmp_path: Path) -> None:
    for file in ("work.mk", "dates.py"):
        shutil.copy(ROOT / "examples" / file, tmp_path)
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "Makefile").write_text("include ../work.mk\nshow:\n\t@echo $(WORK)\n")
    command = ["make", "--no-print-directory", f"WORK={name.format(folder=folder)}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "work\n"


def test_scores_that_a_kill_left_incomplete_are_written_again(make: Make, recipe: Path) -> None:
    make("work/averaged.pt")
    (recipe / "kill").write_text("work/scores.txt\n")
    make("work/scores.txt", code=-signal.SIGKILL)
    (recipe / "kill").unlink()
    make()
    assert (recipe / "work/scores.txt").read_text().endswith("BLEU = 36\n")


# --- several seeds


@pytest.fixture
def seeds(recipe: Path) -> Path:
    """The folder of the recipe that trains a model for each seed, with its text in `text`."""
    folder = recipe.parent / "multi30k-bpe"
    (folder / "text").mkdir()
    for split in ("train", "valid", "test.2016"):
        for language in ("en", "de"):
            (folder / "text" / f"{split}.{language}.gz").write_text("all of it")
    return folder


EACH = [TRAIN, AVERAGE, GENERATE]


def test_each_seed_has_a_training_of_its_own_on_one_dataset(make: Make, seeds: Path, recipe: Path) -> None:
    assert make("SEEDS=1 2", folder=seeds) == [PREPROCESS, *EACH, *EACH, REPORT]
    for seed in (1, 2):
        assert f" --seed {seed} " in (seeds / f"work/seed-{seed}/train.command").read_text()
        assert (seeds / f"work/seed-{seed}/scores.txt").exists()
    assert "the mean" in (recipe / "stdout").read_text().splitlines()


def test_the_place_of_a_report_is_printed_whatever_the_name_of_its_folder(
    make: Make, seeds: Path, recipe: Path
) -> None:
    folder = recipe.parent / """my "old" `touch made` $x 'text'\nhere"""
    shutil.copytree(recipe.parent, folder)
    make("SEEDS=1", folder=folder / seeds.name)
    assert f"report: {folder / seeds.name / 'work/report.html'}" in (recipe / "stdout").read_text()
    assert not list(folder.rglob("made"))


def test_a_further_seed_repeats_no_step_of_the_others(make: Make, seeds: Path, recipe: Path) -> None:
    make("SEEDS=1 2", folder=seeds)
    assert make("SEEDS=1 2 3", folder=seeds) == [*EACH, REPORT]
    assert make("SEEDS=1 2 3", folder=seeds) == []
    assert "the mean" in (recipe / "stdout").read_text().splitlines()


@pytest.mark.parametrize("left", ["nothing", "the summary of earlier seeds"])
def test_a_kill_after_the_page_of_a_report_does_not_count_for_its_summary(left: str, make: Make, seeds: Path) -> None:
    make("SEEDS=1 2", folder=seeds)
    summary = seeds / "work/summary.txt"
    if left == "nothing":
        summary.unlink()
    else:
        os.utime(summary, ns=(0, 0))
    assert make("SEEDS=1 2", folder=seeds) == [REPORT]
    assert make("SEEDS=1 2", folder=seeds) == []


def test_a_report_that_was_removed_is_made_again(make: Make, seeds: Path) -> None:
    make("SEEDS=1 2", folder=seeds)
    (seeds / "work/report.html").unlink()
    assert make("SEEDS=1 2", folder=seeds) == [REPORT]
    assert (seeds / "work/report.html").exists()


def test_the_seeds_after_an_interrupted_one_follow_when_it_is_resumed(make: Make, seeds: Path) -> None:
    (seeds / "stop").touch()
    assert make("SEEDS=1 2", folder=seeds, code=2) == [PREPROCESS, TRAIN]
    (seeds / "stop").unlink()
    assert make("SEEDS=1 2", folder=seeds) == [*EACH, *EACH, REPORT]


def test_a_changed_recipe_moves_the_old_checkpoints_of_every_seed_away(make: Make, seeds: Path) -> None:
    make("SEEDS=1 2", folder=seeds)
    assert make("SEEDS=1 2", "DROPOUT=0.2", folder=seeds) == [*EACH, *EACH, REPORT]
    for seed in (1, 2):
        assert len(list((seeds / f"work/seed-{seed}").glob("until-*/checkpoints/*"))) == 1


# --- the Makefile of the project


@pytest.fixture
def checkout(recipe: Path, tmp_path: Path) -> Path:
    """A folder with the project's Makefile and two stub Pythons, whose environments have only a stub python."""
    folder = recipe.parent.parent
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("setup.py", "constraints.txt"):
        (folder / name).touch()
    installing = (
        '#!/bin/bash\nif [ $2 = pip ]; then [ ! -e fault ]; else exec "$(type -ap python | sed -n 2p)" "$@"; fi\n'
    )
    (folder / "installing").write_text(installing)
    (folder / "installing").chmod(0o755)
    for name in ("python-one", "python-other"):
        (folder / name).write_text(
            "#!/bin/bash\n[ $1 = -m ] || exit 0\n"
            f"mkdir -p .venv/bin; cp installing .venv/bin/python; touch .venv/of-{name}\n"
        )
        (folder / name).chmod(0o755)
    return folder


def test_folders_may_have_any_characters_in_their_names(make: Make, recipe: Path, checkout: Path) -> None:
    (recipe / "text").rename(checkout / """my "old" text | o'brien's $x""")
    variables = ("PYTHON=./python-one", """MULTI30K_DIR=my "old" text | o'brien's $$x""")
    assert make("multi30k-en-de", *variables, folder=checkout) == ALL
    assert (recipe / "work/text/val.de.gz").read_text() == "all of it"


def test_the_environment_is_made_with_the_requested_python(make: Make, checkout: Path) -> None:
    def made() -> list[str]:
        return sorted(path.name for path in (checkout / ".venv").glob("of-*"))

    for name in ("python-one", "python-other", "python-one"):
        make("install", f"PYTHON=./{name}", folder=checkout)
        assert made() == [f"of-{name}"]
    (checkout / ".venv/of-python-one").unlink()
    make("install", "PYTHON=./python-one", folder=checkout)
    assert made() == []


def test_an_environment_that_could_not_be_completed_is_replaced_by_that_of_another_python(
    make: Make, checkout: Path
) -> None:
    (checkout / "fault").touch()
    make("install", "PYTHON=./python-one", folder=checkout, code=2)
    (checkout / "fault").unlink()
    make("install", "PYTHON=./python-other", folder=checkout)
    assert [path.name for path in (checkout / ".venv").glob("of-*")] == ["of-python-other"]


def test_the_environment_of_a_checkout_that_was_copied_or_moved_is_refused(make: Make, checkout: Path) -> None:
    make("install", "PYTHON=./python-one", folder=checkout)
    copy = shutil.copytree(checkout, checkout.with_name("copied to $here"))
    for _ in range(2):
        said = errors_of("install", copy)
        assert f".venv runs the code in {checkout}: remove it with rm -rf .venv, and call make again" in said
    shutil.rmtree(copy / ".venv")
    for folder in (copy, checkout):
        make("install", "PYTHON=./python-one", folder=folder)
        assert (folder / ".venv/of-python-one").exists()


@pytest.mark.parametrize("script", [None, "exit 1"], ids=["gone", "without its packages"])
def test_an_environment_whose_python_is_gone_or_another_version_is_refused(
    script: str | None, make: Make, checkout: Path
) -> None:
    make("install", "PYTHON=./python-one", folder=checkout)
    python = checkout / ".venv/bin/python"
    if script is None:
        python.unlink()
        python.symlink_to("/no/such/python3.9")
    else:
        python.write_text(f"#!/bin/bash\n{script}\n")
    said = errors_of("install", checkout)
    assert "the Python of .venv is gone, or another version: remove it with rm -rf .venv, and call make again" in said


def test_a_python_that_does_not_exist_replaces_no_environment(make: Make, checkout: Path) -> None:
    make("install", "PYTHON=./python-one", folder=checkout)
    for missing in ("./python3.99", "./a python", "./python-other -E"):
        make("install", f"PYTHON={missing}", folder=checkout, code=2)
    assert (checkout / ".venv/of-python-one").exists()


def test_a_python_that_is_too_old_is_refused(checkout: Path) -> None:
    (checkout / "setup.py").write_text('    python_requires=">=4.0",\n')
    (checkout / "python-one").write_text(f'#!/bin/bash\nexec {PYTHON} "$@"\n')
    said = errors_of("install", checkout)
    assert re.search(r"\./python-one is Python 3\.\d+, which is too old: give another as PYTHON=", said)
    assert not (checkout / ".venv").exists()


def test_an_empty_python_is_the_default(make: Make, checkout: Path, tmp_path: Path) -> None:
    shutil.copy(checkout / "python-one", tmp_path / "bin/python3")
    make("install", "PYTHON=", folder=checkout)
    assert (checkout / ".venv/installed-by-python3").exists()


def test_trees_beside_a_checkout_whose_name_has_spaces_are_found(make: Make, checkout: Path) -> None:
    (checkout / "examples/parsing/Makefile").write_text("files:\n\t@ls $(EXTRA)\n")
    (checkout / "extra.mrg").touch()
    make("parsing", "PYTHON=./python-one", "EXTRA=extra.mrg", folder=checkout)
    assert (checkout / "examples/multi30k/stdout").read_text().endswith("../../extra.mrg\n")


def errors_of(target: str, folder: Path) -> str:
    """What a make that fails says on stderr."""
    done = subprocess.run(
        ["make", target, "PYTHON=./python-one"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    return done.stderr


def test_an_environment_that_make_did_not_create_is_kept(make: Make, checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv/theirs").touch()
    make("install", "PYTHON=./python-one", folder=checkout)
    assert (checkout / ".venv/theirs").exists()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    "work",
    [
        "a folder",
        "a:b",
        "100%",
        "a#b",
        "a'b",
        "a(b",
        "a?b",
        "a\\b",
        "a{1,2}",
        "~a",
        "-x",
        "",
        ".",
        "./",
        ".//a",
        "././a",
        "a//b",
    ],
)
def test_a_work_folder_that_make_or_the_shell_cannot_handle_is_refused(name: str, work: str) -> None:
    command = ["make", "-n", f"WORK={work}"]
    done = subprocess.run(
        command, cwd=ROOT / "examples" / name, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 2
    assert (
        f"WORK={work}: use a folder whose name is not empty or ., has no spaces, no // and no characters" in done.stderr
    )


@pytest.mark.parametrize("asked", ["SEEDS=3 1 3", "CORPORA=a a", "MODELS=a b b", "DIRECTIONS=a-b a-b", "ROWS=a b a"])
@pytest.mark.parametrize("name", RECIPES)
def test_what_is_given_twice_in_a_list_is_refused(name: str, asked: str) -> None:
    """Its trainings would count twice in means and spreads."""
    assert f"{asked}: give each once" in refusal_of(name, asked)


@pytest.mark.parametrize("asked", ["SEEDS=1 01", "SEEDS=x'y", "SEEDS=1,2", "SEEDS=../1", "SEEDS=-1", "SEEDS=00"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_seed_that_is_no_whole_number_is_refused(name: str, asked: str) -> None:
    assert f"{asked}: give whole numbers without leading zeros" in refusal_of(name, asked)


@pytest.mark.parametrize("asked", ["SEEDS=", "CORPORA= ", "MODELS=", "DIRECTIONS=", "ROWS="])
@pytest.mark.parametrize("name", RECIPES)
def test_an_empty_list_is_refused(name: str, asked: str) -> None:
    assert f"{asked.strip()}: give at least" in refusal_of(name, asked)


def refusal_of(recipe: str, asked: str) -> str:
    """What make prints when it refuses a variable."""
    command = ["make", "-n", asked]
    done = subprocess.run(
        command, cwd=ROOT / "examples" / recipe, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 2
    return done.stderr


def settings_of(recipe: Path) -> set[str]:
    """The variables that a README names, or that have a default at the top of the Makefile."""
    readmes = (recipe / "README.md").read_text() + (ROOT / "README.md").read_text()
    defaults = re.findall(r"^([A-Z_]+) \?=", (recipe / "Makefile").read_text(), re.MULTILINE)
    return {"ON_CORES", "ON_DEVICE", "PARTS", "VOCAB_SIZE", *defaults, *re.findall(r"\b[A-Z][A-Z_0-9]+\b", readmes)}


@pytest.mark.parametrize("name", RECIPES)
def test_only_settings_are_read_from_the_environment(name: str) -> None:
    recipe = ROOT / "examples" / name
    makefiles = "".join(path.read_text() for path in (*(ROOT / "examples").glob("*.mk"), recipe / "Makefile"))
    used = {*re.findall(r"\$\(([A-Z_]+)[):]", makefiles), *re.findall(r"(?:ifdef|ifndef) ([A-Z_]+)", makefiles)}
    others = (used | {"CORPUS"}) - settings_of(recipe) - {"MAKE", "SHELL", "MAKECMDGOALS", "CURDIR", "FIRST_MAKE"}
    others |= {"WORK", "RUN", "DATASET"}
    folders = [f"{folder}=/elsewhere" for folder in ("MULTI30K_DIR", "TANAKA_DIR", "MULTI30K_BPE_DIR", "TREEBANK_DIR")]

    def commands(**environment: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if name not in others and "MAKE" not in name}
        inherited["FIRST_MAKE"] = "4711"
        done = subprocess.run(
            ["make", "-n", *folders],
            cwd=recipe,
            env=inherited | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        return re.sub(r"-\d+\.part", ".part", done.stdout)

    mine = {name: "7" if name == "SEEDS" else "mine" for name in others}  # a list of seeds is checked by every recipe
    assert commands(**mine) == commands()


def test_the_text_of_table_3_can_be_set_in_the_environment() -> None:
    done = subprocess.run(
        ["make", "-n"],
        cwd=ROOT / "examples/table3",
        env=os.environ | {"CORPUS": "/elsewhere"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert "--folder '/elsewhere'" in done.stdout


@pytest.mark.parametrize("arguments", [["multi30k-en-de"], ["-C", "examples/multi30k"]], ids=["root", "recipe"])
def test_a_folder_that_is_set_in_the_environment_keeps_its_name(arguments: list[str]) -> None:
    done = subprocess.run(
        ["make", "-n", *arguments],
        cwd=ROOT,
        env=os.environ | {"MULTI30K_DIR": "/else $where"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert "--folder '/else $where'" in done.stdout


def test_the_demo_makes_a_deleted_text_again(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    recipe = tmp_path / "examples/demo"
    make = make_with(tmp_path / "bin", recipe, STUBS, "work/data-bin/dataset.json")
    assert make().returncode == 0
    text = (recipe / "work/text/test.en").read_bytes()
    for name in ("train.en", "test.en"):
        (recipe / "work/text" / name).unlink()
    assert make("-j4").returncode == 0
    assert (recipe / "work/text/test.en").read_bytes() == text
    assert "make_corpus" not in make().stdout


def test_the_demo_says_what_to_do_if_its_scores_are_empty(tmp_path: Path) -> None:
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    make = make_with(tmp_path / "bin", examples / "demo", STUBS)
    assert "below 95 BLEU" in make().stderr  # those of the stubs
    (examples / "demo/work/scores.txt").write_text("")
    assert "work/scores.txt has no scores: remove it, and call make again" in make().stderr


def test_the_demo_uses_the_work_folder_of_the_command_line() -> None:
    command = ["make", "-n", "WORK=elsewhere"]
    done = subprocess.run(
        command, cwd=ROOT / "examples/demo", capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert " work/" not in done.stdout

"""The architecture: levels of imports, modules that import torch, flags and commands in documents."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import click
import pytest
from patience import PATIENCE
from reference import rooms
from repository import ROOT

from nmtkit.cli.start import COMMANDS, load_command, module_of

TESTS = {path.stem for path in (ROOT / "tests").rglob("*.py") if path.name.startswith(("test_", "conftest"))}
COMMAND = rf"\bnmt-({'|'.join(COMMANDS)})"


def module_name(path: Path) -> str:
    """The name without nmtkit: data.corpus for nmtkit/data/corpus.py, data for its package, __init__ for the root."""
    parts = path.relative_to(ROOT / "nmtkit").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of nmtkit that a file imports: at its top, inside functions, or for types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.split(".")[0] == "nmtkit":
                yield existing(name)


def existing(name: str) -> str:
    """The module that has a name: data.corpus for nmtkit.data.corpus.Dataset, __init__ for names of the root."""
    parts = name.split(".")[1:]
    ends = (".py", ".pyi", "")
    while parts and not any((ROOT / "nmtkit" / "/".join(parts)).with_suffix(end).exists() for end in ends):
        parts.pop()
    return ".".join(parts) or "__init__"


@cache
def imports() -> dict[str, set[str]]:
    files = [path for end in ("py", "pyi") for path in sorted((ROOT / "nmtkit").rglob(f"*.{end}"))]
    return {module_name(path): set(imported(path)) for path in files}


def room(module: str) -> str:
    """The room of a module: data for data.corpus."""
    return module.partition(".")[0]


@pytest.mark.parametrize("name", ["generate", "serve", "score", "export"])
def test_every_option_of_a_command_has_an_example_in_the_guides(name: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs/how-to").glob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"^```bash\n(.*?)^```$", page, re.M | re.S)]
    commands = re.findall(rf"\bnmt-{name} [^\n|]*", "".join(blocks).replace("\\\n", " "))
    anywhere = {
        "--config",
        "--log-format",
        "--quiet",
        "--debug",
        "--version",
        "--help-all",
    }  # the same for every command
    shown = anywhere | {flag for command in commands for flag in re.findall(r"--[a-z0-9-]+", command)}
    parameters = load_command(name).params
    assert [
        p.opts for p in parameters if isinstance(p, click.Option) and not shown & {*p.opts, *p.secondary_opts}
    ] == []


def test_imports_follow_the_levels() -> None:
    upward = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in sorted(others)
        if room(module) != room(other) and rooms()[room(module)] <= rooms()[room(other)]
    ]
    assert upward == []


def test_commands_do_not_import_each_other() -> None:
    commands = {module_of(name).removeprefix("nmtkit.") for name in COMMANDS}
    assert {module for module in commands if imports()[module] & commands} == set()


def test_imports_have_no_cycle_even_with_deferred_ones() -> None:
    tuple(TopologicalSorter(imports()).static_order())  # raises CycleError, which names the modules


def test_the_architecture_page_lists_exactly_the_existing_rooms() -> None:
    assert set(rooms()) == {room(module) for module in imports()}


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        module_name(path)
        for path in (ROOT / "nmtkit").rglob("*.py")
        if path.name != "__init__.py" and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


DEFERRING = {  # modules of a translation on a CPU, which needs no torch
    *("checkpoint", "decoding.engine", "inference.backends", "machine.device", "model.architectures"),
    "decoding.evaluation",  # of sacreBLEU
    *("decoding.generation", "decoding.translator", "serving.files", "serving.markup"),  # of the formats of documents
}


def test_only_commands_the_package_root_and_modules_of_a_translation_defer_imports_of_nmtkit() -> None:
    """Commands import their engine inside the body, so that --help is fast."""
    deferring = {
        module_name(path)
        for path in (ROOT / "nmtkit").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "nmtkit"
    }
    assert deferring <= {"__init__", *DEFERRING, *(module_of(name).removeprefix("nmtkit.") for name in COMMANDS)}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_body_of_a_command_has_at_most_40_lines(command: str) -> None:
    tree = ast.parse((ROOT / f"{module_of(command).replace('.', '/')}.py").read_text(encoding="utf-8"))
    (main,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    assert main.end_lineno is not None
    assert main.end_lineno - main.body[0].lineno < 40


# --- torch


def torch_after(code: str, *arguments: str, cwd: Path = ROOT) -> tuple[bool, "subprocess.CompletedProcess[str]"]:
    """Whether torch has been imported when Python exits after `code`, and the finished process."""
    at_exit = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr));"
    command = [sys.executable, "-c", f"{at_exit} sys.path.insert(0, {str(ROOT)!r}); {code}", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE)
    return done.stderr.splitlines()[-1] == "True", done


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["--no-such-flag"], 2)])
def test_help_and_a_bad_option_do_not_import_torch(command: str, arguments: list[str], code: int) -> None:
    has_torch, done = torch_after(f"from {module_of(command)} import main; main()", *arguments)
    assert done.returncode == code
    assert not has_torch


def test_preprocessing_a_corpus_does_not_import_torch(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        for language in ("en", "de"):
            (tmp_path / f"{split}.{language}").write_text(f"a small text\nin {language}\nand a third line\n" * 20)
    arguments = shlex.split("-s en -t de --trainpref train --validpref valid --destdir data --vocab-size 40")
    has_torch, done = torch_after("from nmtkit.cli.preprocess import main; main()", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data/dataset.json").exists()
    assert not has_torch


def test_only_log_and_the_signal_handler_write_to_stderr() -> None:
    """`log` escapes control characters; `terminal` prints into strings."""
    writing = re.compile(r"\bprint\(|err=True|file=sys\.stderr|stderr\.write|print_exc|os\.write\(")
    found = {
        module_name(path): writing.findall(path.read_text(encoding="utf-8")) for path in (ROOT / "nmtkit").rglob("*.py")
    }
    del found["console.log"], found["console.terminal"]
    assert {module: calls for module, calls in found.items() if calls} == {
        "training.interruption": ["os.write("],  # in a signal handler, with a constant text
    }


# --- options and documents


@cache
def flags(command: str) -> set[str]:
    main = load_command(command)
    assert isinstance(main, click.Command)
    parameters = main.get_params(click.Context(main))
    return {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_two_options_of_a_command_share_a_name(command: str) -> None:
    main = load_command(command)
    parameters = main.get_params(click.Context(main))
    spellings = [flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)]
    names = [parameter.name for parameter in parameters]
    assert len(set(names)) == len(names)
    assert len(set(spellings)) == len(spellings)


def documents() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/README.md")]
    return sorted([*found, *(ROOT / "examples").glob("*/Makefile"), *(ROOT / "examples").glob("*.mk")])


def commands_and_flags(document: Path) -> str:
    """The text of a document, without the left column of tables that map options of other toolkits to ours."""
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE) if document.name.startswith("from-") else text


FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]+)\b")


@cache
def flags_of_scripts() -> set[str]:
    """The options that the scripts of the recipes and the benchmarks quote: some read them without a parser."""
    scripts = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    return set().union(
        *(re.findall(r'"(--[a-z][a-z0-9-]+)"', script.read_text(encoding="utf-8")) for script in scripts)
    )


OTHERS = {  # of torchrun, SLURM, curl, hf, make, tar, fairseq, Marian, systemd, pip, docker, tensorboard
    *("--no-python", "--standalone", "--nproc-per-node", "--nnodes", "--max-restarts"),
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
    *("--nodes", "--ntasks-per-node", "--gpus-per-node", "--cpus-per-task", "--time", "--signal", "--requeue"),
    *("--retry", "--no-print-directory", "--remove-bpe", "--update-freq", "--now", "--follow", "--unit"),
    *(
        "--no-cache-dir",
        "--force-reinstall",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        "--rm",
        "--cpus",
        "--local-dir",
    ),
    *("--cpu-threads", "--allow-unk", "--directory", "--strip-components"),
    *("--logdir", "--gpus"),  # the second of the plan of examples/wmt14
}


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_flags_that_exist(document: Path) -> None:
    text, _, _ = commands_and_flags(document).partition("### Upgrading")  # names former options
    known = set().union(*(flags(command) for command in COMMANDS)) | flags_of_scripts() | OTHERS
    assert set(FLAG.findall(text)) - known == set()
    for command, arguments in re.findall(rf"{COMMAND}\b([^\n|;`&]*)", text):
        assert set(FLAG.findall(arguments)) - flags(command) == set(), f"nmt-{command}{arguments}"


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_documents_have_valid_options(document: Path) -> None:
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for name, words in re.findall(rf'{COMMAND} ((?:"[^"\n]*"|[^"\n|<>])*)', block):
            main = load_command(name)
            arguments = re.sub(r"--config \S+", "", words)  # the file does not exist here
            main.make_context(f"nmt-{name}", shlex.split(arguments))


@pytest.mark.parametrize(
    "document",
    [*documents(), *sorted((ROOT / "benchmarks").rglob("*.md"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_links_in_documents_have_existing_targets(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            name, _, anchor = link.partition("#")
            target = document.parent / name if name else document
            assert target.exists(), link
            assert not anchor or anchor in headings(target), link


def headings(document: Path) -> set[str]:
    """The anchors of the headings of a document."""
    found = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_table_of_faults_names_existing_tests() -> None:
    ours = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    named = set(re.findall(r"\btest_\w+", (ROOT / "docs/how-to/resume.md").read_text()))
    assert named
    assert named - ours == set()


def test_every_command_has_an_entry_point_and_an_executable_script() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    for command in COMMANDS:
        function = "import_" if command == "import" else command
        assert f'"nmt-{command} = nmtkit.cli.start:{function}"' in setup
        assert (ROOT / f"bin/nmt-{command}").stat().st_mode & 0o111


def test_no_file_contains_a_machine_specific_absolute_path() -> None:
    ours = ("nmtkit", "bin", "tests", "benchmarks", "docs", "examples", ".ci", ".github")
    files = [path for folder in ours for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # a file in a worktree
    machine = re.compile(rf"(?<![\w.*])(/work/|/root/|/home/\w|/Users/\w|{re.escape(str(Path.home()))}/)")
    named = {
        str(path.relative_to(ROOT))
        for path in files
        if not {"__pycache__", "work"} & set(path.parts[len(ROOT.parts) :]) and path != Path(__file__)
        if path.suffix != ".so"  # compiled on this machine
        if machine.search(path.read_text(encoding="utf-8", errors="ignore"))
    }
    assert named == set()


def test_no_test_imports_from_another() -> None:
    """Shared code is in tests/helpers."""
    imported = {
        f"{path.name}: {node.module}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in TESTS
    }
    assert imported == set()

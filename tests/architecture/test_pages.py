"""The commands of tutorials, guides and the reference work, on a text and a model small enough for a test.

A block after the line `<!-- not run: REASON -->` is left out.
"""

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from make_corpus import english, make, ravic
from pages import FROM_MODEL, FROM_TEXT, GUIDES
from patience import PATIENCE
from repository import PYTHON, ROOT

DOCS = ROOT / "docs"
SIZES = {"train": 300, "val": 8, "test_2016_flickr": 5}
# Options that the commands get in addition, unless one of the words after them is given: small sizes, and what they
# follow from.
SMALLER = {
    "nmt-preprocess": {"--vocab-size 200": "--vocab-from"},
    "nmt-train": {
        "--encoder-layers 1 --decoder-layers 1 --d-model 16 --d-ff 32 --heads 2": "lstm_small conv_small",
        "--batch-tokens 300 --threads 1 --max-updates 5 --validate-every 1 --device cpu --precision fp32": "",
        "--max-tokens 200": "auto",
    },
}
NUMBERS = {
    "--alignment-layer 3": "--alignment-layer 1",
    "--nproc-per-node 8": "--nproc-per-node 2",
    "vocab_size=6000": "vocab_size=200",
    "max_updates=1900": "max_updates=4",
}
BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^\n]+ -->\n)?^```(?P<language>bash|python)\n(?P<code>.*?)^```$", re.M | re.S
)
COMMAND = """\
import sys

sys.path.insert(0, {root!r})
from nmtkit.cli.{module} import main

if __name__ == "__main__":
    for options, unless in {smaller!r}.items():
        sys.argv += options.split() if not {{*unless.split()}} & {{*sys.argv}} else []
    main()
"""


def scripts(page: str) -> list[tuple[str, str]]:
    """The language and the code of each block of a page that is to be run."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for number, smaller in NUMBERS.items():
        text = text.replace(number, smaller)
    return [(block["language"], block["code"]) for block in BLOCK.finditer(text) if not block["skip"]]


def run(page: str, folder: Path) -> None:
    """Run the blocks of a page in a folder, one after the other."""
    path = [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    commands = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    for language, code in scripts(page):
        done = subprocess.run(
            [*commands[language], code], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{page}:\n{code}\n{done.stderr}"


@pytest.fixture(scope="module")
def with_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, and with commands that use small sizes."""
    folder = tmp_path_factory.mktemp("text")
    for place in ("data", "news", "bin"):
        (folder / place).mkdir()
    for name, sentences in make(SIZES).items():
        for language, say in (("en", english), ("de", ravic)):
            text = "".join(f"{say(sentence)}\n" for sentence in sentences)
            with gzip.open(folder / f"data/{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write(text)
            (folder / f"news/{name}.{language}").write_text(text, encoding="utf-8")
    for script in (ROOT / "bin").glob("nmt-*"):
        module = script.name.removeprefix("nmt-")
        smaller = SMALLER.get(script.name, {})
        command = folder / "bin" / script.name
        command.with_suffix(".py").write_text(COMMAND.format(root=str(ROOT), module=module, smaller=smaller))
        command.write_text(f'#!/bin/bash\nexec {PYTHON} {shlex.quote(f"{command}.py")} "$@"\n')
        command.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def with_model(with_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder after the commands of index.md."""
    folder = shutil.copytree(with_text, tmp_path_factory.mktemp("model") / "folder")
    run("index.md", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", FROM_TEXT)
def test_commands_of_a_page_that_starts_from_text_run(page: str, with_text: Path, tmp_path: Path) -> None:
    run(page, shutil.copytree(with_text, tmp_path / "folder"))


@pytest.mark.slow
@pytest.mark.parametrize("page", FROM_MODEL)
def test_commands_of_a_page_that_starts_from_a_model_run(page: str, with_model: Path, tmp_path: Path) -> None:
    run(page, shutil.copytree(with_model, tmp_path / "folder"))


def test_every_documentation_page_with_commands_is_tested() -> None:
    with_commands = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if scripts(str(page))}
    guides = {f"how-to/{guide}.md" for guide in (*GUIDES, "python")}  # the code of the last: tests/decoding
    assert with_commands == {"index.md", *FROM_TEXT, *FROM_MODEL} | guides

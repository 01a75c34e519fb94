"""The commands of the how-to guides run, on a tiny model and a small text.

A block after the line `<!-- not run: REASON -->` is left out.
"""

import gzip
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Run
from make_corpus import english, make, ravic
from pages import GUIDES
from patience import PATIENCE
from repository import BIN, ROOT
from sample_documents import SAMPLES

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.cli.serve import main as serve
from nmtkit.data.corpus import Dataset
from nmtkit.machine.native_build import available
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import as_arrays, collect_weights

# Lines that do not run, by a part of them, and why. Lines with int8 need the compiled search.
NOT_RUN = {
    "--device cuda": "needs GPUs",
    "pip install": "needs a network",
    "systemctl": "changes the machine",
    "systemd-socket-activate": "a package of the system",
    "journalctl": "reads the log of the machine",
    "--host ::": "needs IPv6",
}

# Replaces commands: the server gets a free port; trainings get a tiny model, one process and few updates.
PRELUDE = r"""
set -euo pipefail
stop_server() { if [ -n "${server:-}" ]; then kill $server; wait $server || [ $? = 143 ]; server=; fi; }
nmt-serve() {
    stop_server
    command nmt-serve "$@" --port $FREE_PORT & server=$!
    until command curl --silent --fail localhost:$FREE_PORT/health; do kill -0 $server; sleep 0.1; done
}
curl() { command curl --silent --fail "${@//localhost:8080/localhost:$FREE_PORT}"; }
nmt-preprocess() { command nmt-preprocess "${@/#32000/330}" --workers 1; }
nmt-train() {
    command nmt-train "$@" --arch transformer_tiny --encoder-layers 1 --decoder-layers 1 --d-model 16 --d-ff 32 \
        --heads 2 --max-tokens 400 --batch-tokens 400 --max-updates 10 --save-every 1 --validate-every 10
}
torchrun() { while [ $1 != nmt-train ]; do shift; done; shift; nmt-train "$@"; }
"""


@pytest.fixture(scope="session")
def prepared(run_command: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the guides take as given."""
    folder = tmp_path_factory.mktemp("guides")
    (folder / "text").mkdir()
    sizes = {"train": 200, "valid": 6, "test": 4, "europarl": 20, "crawl": 20, "balanced": 200}
    for name, sentences in make(sizes).items():
        for language, say in (("en", english), ("de", ravic)):
            text = "".join(f"{say(sentence)}\n" for sentence in sentences)
            (folder / f"text/{name}.{language}").write_text(text, encoding="utf-8")
    for name, kind in (("en-de", ("--vocab-size", 330, "--byte-fallback")), ("segmented", ("--tokenizer", "space"))):
        files = [f"--{split}pref={folder}/text/{split}" for split in ("train", "valid", "test")]
        done = run_command(
            "nmt-preprocess", "-s", "en", "-t", "de", *files, "--destdir", folder / "data-bin" / name, *kind
        )
        assert done.returncode == 0, done.stderr.decode()
    save_checkpoint(folder / "averaged.pt", untrained(folder / "data-bin/en-de"))
    save_checkpoint(folder / "segmented.pt", untrained(folder / "data-bin/segmented"))
    for name in ("a", "b", "c", "checkpoint_best", "clean", "de-en"):
        shutil.copy(folder / "averaged.pt", folder / f"{name}.pt")
    shutil.copy(folder / "data-bin/en-de/spm.model", folder)
    write_inputs(folder)
    return folder


def untrained(dataset: Path) -> Checkpoint:
    data = Dataset.open(dataset)
    config = TransformerConfig(encoder_layers=1, decoder_layers=3, d_model=16, d_ff=24, heads=2)
    model = Transformer(config, len(data.source.vocab), len(data.target.vocab))
    return Checkpoint(config, as_arrays(collect_weights(model)), "en", "de", data.source, data.target, {})


def write_inputs(folder: Path) -> None:
    english_text, german_text = ((folder / f"text/test.{language}").read_text() for language in ("en", "de"))
    for name in ("input", "input.bpe", "book", "crawl", "few", "letter", "questions", "test"):
        (folder / f"{name}.en").write_text(english_text)
    for name in ("test", "baseline", "begun", "candidates", "few", "mono", "output"):
        (folder / f"{name}.de").write_text(german_text)
    for name in ("crawl.en", "mono.de"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    (folder / "terms.de").write_text("tis\tma\n\n\ntis\n")
    (folder / "glossary.tsv").write_text("this\ttis\n")
    (folder / "report.docx").write_bytes(SAMPLES["docx"][0])
    (folder / "page.html").write_bytes(SAMPLES["html"][0])
    (folder / "products.csv").write_text("id,title,text\n1,this,we see it\n")
    (folder / "strings.json").write_text('{"title": "this", "menu": [{"text": "we"}]}')
    for name in ("letter.txt", "lines.html", "lines.xml", "messages.en"):
        (folder / name).write_text(english_text)
    (folder / "search.toml").write_text("length-penalty = 1.0\n")
    (folder / "server.toml").write_text("beam = 2\n")


def blocks(guide: str, language: str) -> str:
    text = (ROOT / f"docs/how-to/{guide}.md").read_text(encoding="utf-8")
    return "".join(re.findall(rf"(?<!-->\n)^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def script_of(guide: str) -> str:
    """The commands of a guide that run here, then its Python code."""
    lines = re.sub(r"\\\n\s*", "", blocks(guide, "bash")).splitlines()
    left_out = [*NOT_RUN, *([] if available("int8") else ["int8"])]
    kept = [line for line in lines if not any(part in line for part in left_out)]
    assert kept
    return "\n".join([PRELUDE, *kept, f"python -c {shlex.quote(blocks(guide, 'python'))}", "stop_server"])


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_the_commands_of_a_guide_run(guide: str, prepared: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = {
        "PATH": os.pathsep.join([str(BIN), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "SLURM_ARRAY_TASK_ID": "7",
        "FREE_PORT": str(port),
    }
    done = subprocess.run(
        ["bash", "-xc", script_of(guide)],
        cwd=shutil.copytree(prepared, tmp_path / "guide"),
        env=os.environ | here,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


def test_the_server_accepts_the_configuration_of_the_guide(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text(blocks("deploy", "toml"))
    context = serve.make_context("nmt-serve", ["--config", str(config)])
    assert context.default_map is not None
    assert set(context.default_map) == {"checkpoint", "precision", "max_request_chars", "log_format"}

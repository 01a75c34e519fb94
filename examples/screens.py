"""Makes docs/training.svg and docs/translation.svg: pictures of a real training and a real translation.

    python examples/screens.py --updates 700

Both commands run on the demo corpus, on a pseudo-terminal of 100 columns. With --updates 700 the model is that of
`make demo`, which takes about 3 minutes.
"""

import argparse
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
TRAINING = (
    "nmt-train data-bin --save-dir checkpoints --arch transformer_tiny --encoder-layers 2 --decoder-layers 2 "
    "--norm pre --batch-tokens 1500 --lr-schedule cosine --lr 3e-3 --warmup-updates 100 --clip-norm 1 --dropout 0.05"
)
PREPARED = (
    "nmt-preprocess -s en -t rv --trainpref text/train --validpref text/valid --testpref text/test --destdir data-bin "
    "--vocab-size 500 --character-coverage 1"
)
TRANSLATION = (
    "nmt-generate --checkpoint checkpoints/checkpoint_best.pt --input text/test.en --output test.rv --sacrebleu "
    "--reference text/test.rv"
)
_CONTROL = re.compile(r"(\r|\n|\x1b\[A)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=700, help="updates of the training")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of the pictures")
    arguments = parser.parse_args()
    every = max(1, arguments.updates // 2)
    limits = f"--max-updates {arguments.updates} --validate-every {every} --save-every {every} --log-every {every}"
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        subprocess.run([sys.executable, str(ROOT / "examples/demo/make_corpus.py"), "text"], cwd=folder, check=True)
        shown_by(PREPARED, folder)
        for command, name in ((f"{TRAINING} {limits}", "training"), (TRANSLATION, "translation")):
            picture(command, shown_by(command, folder), arguments.docs / f"{name}.svg")


def shown_by(command: str, folder: Path) -> str:
    """What a command of nmtkit writes to its terminal; raises CalledProcessError if it fails."""
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    name, *words = shlex.split(command)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "bin" / name), *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stderr=its_end,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(its_end)
    shown = bytearray()
    try:
        while block := os.read(terminal, 65_536):
            shown.extend(block)
    except OSError:  # Linux: the command has ended
        pass
    os.close(terminal)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command, stderr=shown.decode())
    return shown.decode()


def final_rows(shown: str) -> list[str]:
    """The rows of a terminal at the end. Whatever is written at the beginning of a row replaces it."""
    rows, row, replaces = [""], 0, False
    for part in _CONTROL.split(shown):
        if part == "\n":
            row, replaces = row + 1, True
            rows += [""] * (row == len(rows))
        elif part == "\x1b[A":
            row -= 1
        elif part == "\r":
            replaces = True
        elif part:
            rows[row] = part if replaces else rows[row] + part
            replaces = False
    return [line.rstrip() for line in rows]


def picture(command: str, shown: str, path: Path) -> None:
    """Write the picture of a command and of what it has shown."""
    rows = [line for line in final_rows(shown) if line]
    console = Console(record=True, width=COLUMNS, force_terminal=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    for line in rows:
        console.print(Text.from_ansi(line), soft_wrap=True)
    console.save_svg(str(path), title=command.split()[0])


if __name__ == "__main__":
    main()

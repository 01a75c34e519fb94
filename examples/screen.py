"""Draws docs/training.svg: nmt-train on a terminal, learning the language pair of the demonstration.

    python examples/screen.py

The run takes about two minutes of processor time; draw on an idle machine, since the picture shows the speed.
"""

import fcntl
import itertools
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from html import escape
from pathlib import Path

from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 64
PREPARE = (
    f"{sys.executable} {ROOT}/examples/demo/make_corpus.py text",
    "nmt-preprocess -s en -t rv --trainpref text/train --validpref text/valid --destdir data-bin --vocab-size 500",
)
TRAIN = """\
nmt-train data-bin --save-dir checkpoints \\
  --arch transformer_tiny --encoder-layers 2 \\
  --decoder-layers 2 --norm pre --batch-tokens 1500 \\
  --lr-schedule cosine --lr 3e-3 --warmup-updates 200 \\
  --max-updates 700 --validate-every 350 --log-every 1000 \\
  --valid-bleu"""
CHARACTER, ROW, FONT = 8.4, 19, 14  # pixels
STYLES = {
    "bold": "font-weight='700'",
    "dim": "opacity='.6'",
    "color(6)": "fill='#6cc7e0'",  # cyan
    "color(2)": "fill='#9fd36a'",  # green
}


def shown_by(command: str, folder: Path) -> str:
    """The output of a command on a terminal of `COLUMNS` columns."""
    terminal, end_of_command = pty.openpty()
    fcntl.ioctl(end_of_command, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    words = shlex.split(command)
    process = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stderr=end_of_command, env=environment)
    os.close(end_of_command)
    shown = bytearray()
    try:
        while block := os.read(terminal, 65_536):
            shown += block
    except OSError:  # Linux reports the end of the command as an error
        pass
    os.close(terminal)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command, stderr=shown.decode())
    return shown.decode()


def final_rows(shown: str) -> list[str]:
    """The rows on the screen at the end. Text after a carriage return replaces its row."""
    rows, row, replaces = [""], 0, False
    for part in re.split(r"(\r|\n|\x1b\[A)", shown):
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


def svg(rows: list[Text]) -> str:
    """A picture of the rows. Each word has a fixed position and width, so columns are aligned in every font."""
    lines = []
    for y, row in enumerate(rows):
        edges = sorted({0, len(row), *(edge for span in row.spans for edge in (span.start, span.end))})
        for start, end in itertools.pairwise(edges):
            named = " ".join(str(span.style) for span in row.spans if span.start <= start and end <= span.end)
            style = " ".join(attribute for name, attribute in STYLES.items() if name in named)
            for words in re.finditer(r"\S+( \S+)*", row.plain[start:end]):
                x, length = 12 + (start + words.start()) * CHARACTER, len(words[0]) * CHARACTER
                place = f"x='{x:.1f}' y='{24 + y * ROW}' textLength='{length:.1f}'"
                lines.append(f"<text {place} {style}>{escape(words[0])}</text>")
    width, height = 24 + round(COLUMNS * CHARACTER), 18 + len(rows) * ROW
    font = f"font-family='ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace' font-size='{FONT}' fill='#e6e6e6'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' role='img' {font}>"
    return "\n".join([head, f"<rect width='{width}' height='{height}' rx='8' fill='#1d2126'/>", *lines, "</svg>\n"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for command in PREPARE:
            subprocess.run(shlex.split(command), cwd=folder, check=True)
        shown = final_rows(shown_by(TRAIN.replace("\\\n", ""), Path(folder)))
    rows = [Text(line, "bold") for line in f"$ {TRAIN}".splitlines()]
    rows += [Text.from_ansi(line) for line in shown if line]
    (ROOT / "docs/training.svg").write_text(svg(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

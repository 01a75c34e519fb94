"""Writes tiny archives with the names, layout and formats of WMT 2014's, for SMOKE=1 and for the tests.

    python -m smoke_archives FOLDER

writes FOLDER/archives.txt and the archives that it lists. The text is the demo's, with its constructed language in
place of German and French. Like the real text, it contains pairs that must be dropped, and characters that .sgm
files escape.
"""

import gzip
import hashlib
import html
import io
import sys
import tarfile
from pathlib import Path

from corpus import CORPORA, LIST, known_archives

sys.path.append(str(Path(__file__).parent.parent / "demo"))
from make_corpus import english, make, ravic

PAIRS = 400  # of each training corpus
DROPPED = [("", "Leer."), ("Same.", "Same."), ("\udcff broken", "Kaputt.")]  # of Common Crawl
Pairs = list[tuple[str, str]]


def texts() -> dict[str, Pairs]:
    """The pairs of each corpus."""
    training = [name for name in CORPORA if not name.startswith("newstest")]
    splits = make({"train": PAIRS * len(training), "valid": 20, "test": 20})
    pairs = {split: [(english(one), ravic(one)) for one in sentences] for split, sentences in splits.items()}
    found = {name: pairs["train"][i * PAIRS : (i + 1) * PAIRS] for i, name in enumerate(training)}
    found["commoncrawl"] += DROPPED
    special = [("R&D <today>", "R&D <today>")]
    return found | {"newstest2013": pairs["valid"] + special, "newstest2014": pairs["test"] + special}


def content(member: str, lines: list[str]) -> bytes:
    """A file of an archive, in the format of its name."""
    if member.endswith(".sgm"):
        parts = [f'<srcset setid="{member}" srclang="any">']
        for start in range(0, len(lines), 10):
            parts.append(f'<doc docid="{start}" genre="news" origlang="en">\n<p>')
            parts += [f'<seg id="1">{html.escape(line, quote=False)}</seg>' for line in lines[start : start + 10]]
            parts.append("</p>\n</doc>")
        lines = [*parts, "</srcset>"]
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", errors="surrogateescape")
    return gzip.compress(text, mtime=0) if member.endswith(".gz") else text


def pack(path: Path, members: dict[str, bytes]) -> None:
    """Write an archive with reproducible bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, member in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(member)
            archive.addfile(entry, io.BytesIO(member))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0) if path.suffix == ".tgz" else packed.getvalue())


def main(folder: Path) -> None:
    """Write the archives and their list."""
    archives: dict[str, dict[str, bytes]] = {}
    for corpus, pairs in texts().items():
        name, pattern = CORPORA[corpus]
        for target in ("de", "fr"):
            for number, (side, kind) in enumerate((("en", "src"), (target, "ref"))):
                member = pattern.format(target=target, side=side, kind=kind)
                archives.setdefault(name, {})[member] = content(member, [pair[number] for pair in pairs])
    listed = []
    for name, known in known_archives().items():
        pack(folder / known.path, archives[name])
        packed = (folder / known.path).read_bytes()
        listed.append(f"sha256:{hashlib.sha256(packed).hexdigest()} {len(packed)} {known.path}\n")
    (folder / LIST.name).write_text("".join(listed), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

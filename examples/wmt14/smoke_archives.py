"""Writes tiny archives with the names, layout and formats of WMT 2014's, for SMOKE=1 and for the tests.

    python smoke_archives.py FOLDER

writes FOLDER/archives.txt and the archives that it lists, in the folders of the server.

The text is the demo's: English, and its constructed language in place of German and French. Like the real text, it
has pairs that are to be dropped, and characters that are escaped in .sgm files.
"""

import gzip
import hashlib
import html
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import RunError

FOREIGN = ("de", "fr")
PAIRS = 400  # per training corpus
CORPUS = Path(__file__).parent.parent / "demo/make_corpus.py"
BAD = {"en": ["", "Same.", "\udcff broken"], "other": ["Leer.", "Same.", "Kaputt."]}

Text = dict[str, list[str]]  # lines of "en" and of "other", which stands for German or French


def demo_splits() -> dict[str, Text]:
    """The splits of the demo's corpus, by name."""
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run([sys.executable, CORPUS, folder], check=False).returncode:
            raise RunError(f"{CORPUS} failed: call make again")
        return {
            split: {
                side: (Path(folder) / f"{split}.{ending}").read_text(encoding="utf-8").splitlines()
                for side, ending in (("en", "en"), ("other", "rv"))
            }
            for split in ("train", "valid", "test")
        }


def side(text: Text, language: str) -> list[str]:
    return text["en" if language == "en" else "other"]


def plain(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", errors="surrogateescape")


def sgm(lines: list[str], kind: str, name: str) -> bytes:
    """A source set or reference set in SGML, in documents of ten segments."""
    parts = [f'<{kind} setid="{name}" srclang="any">']
    for start in range(0, len(lines), 10):
        parts.append(f'<doc sysid="ref" docid="{name}.{start}" genre="news" origlang="en">\n<p>')
        for number, line in enumerate(lines[start : start + 10], 1):
            parts.append(f'<seg id="{number}">{html.escape(line, quote=False)}</seg>')
        parts.append("</p>\n</doc>")
    return plain([*parts, f"</{kind}>"])


def training(texts: list[Text]) -> dict[str, dict[str, bytes]]:
    """The members of each archive of training text; each text becomes one corpus."""
    europarl, crawl, news, nations, giga = texts
    members: dict[str, dict[str, bytes]] = {
        name: {}
        for name in (
            *("wmt13/training-parallel-europarl-v7.tgz", "wmt13/training-parallel-commoncrawl.tgz"),
            *("wmt14/training-parallel-nc-v9.tgz", "wmt13/training-parallel-un.tgz", "wmt10/training-giga-fren.tar"),
        )
    }
    for foreign in FOREIGN:
        for language in (foreign, "en"):
            pair = f"{foreign}-en.{language}"
            members["wmt13/training-parallel-europarl-v7.tgz"][f"training/europarl-v7.{pair}"] = plain(
                side(europarl, language)
            )
            members["wmt13/training-parallel-commoncrawl.tgz"][f"commoncrawl.{pair}"] = plain(
                side(crawl, language) + side(BAD, language)
            )
            members["wmt14/training-parallel-nc-v9.tgz"][f"training/news-commentary-v9.{pair}"] = plain(
                side(news, language)
            )
    for language in ("fr", "en"):
        members["wmt13/training-parallel-un.tgz"][f"un/undoc.2000.fr-en.{language}"] = plain(side(nations, language))
        members["wmt10/training-giga-fren.tar"][f"giga-fren.release2.fixed.{language}.gz"] = gzip.compress(
            plain(side(giga, language)), mtime=0
        )
    return members


def held_out(valid: Text, test: Text) -> dict[str, dict[str, bytes]]:
    """The members of the archives of newstest2013 and newstest2014."""
    dev = {
        f"test/newstest2013-src.{language}.sgm": sgm(side(valid, language), "srcset", "newstest2013")
        for language in ("en", *FOREIGN)
    }
    full = {}
    for foreign in FOREIGN:
        name = f"test-full/newstest2014-{foreign}en"
        full[f"{name}-src.en.sgm"] = sgm(test["en"], "srcset", "newstest2014")
        full[f"{name}-ref.{foreign}.sgm"] = sgm(test["other"], "refset", "newstest2014")
    return {"wmt13/test.tgz": dev, "wmt14/test-full.tgz": full}


def pack(path: Path, members: dict[str, bytes]) -> None:
    """Write an archive; its bytes are reproducible."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, member in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(member)
            archive.addfile(entry, io.BytesIO(member))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.getvalue(), mtime=0) if path.suffix == ".tgz" else content.getvalue())


@command("smoke_archives.py")
@click.argument("folder", type=PathName())
def main(folder: Path) -> None:
    """Write FOLDER/archives.txt and the archives that it lists."""
    splits = demo_splits()
    train = splits["train"]
    texts = [
        {name: lines[start : start + PAIRS] for name, lines in train.items()} for start in range(0, 5 * PAIRS, PAIRS)
    ]
    few = [{name: [*lines[:20], "R&D <today>"] for name, lines in splits[split].items()} for split in ("valid", "test")]
    for name, members in (training(texts) | held_out(*few)).items():
        pack(folder / name, members)
    listed = [
        f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_size} {path.relative_to(folder)}\n"
        for path in sorted(folder.glob("wmt*/*"))
    ]
    (folder / "archives.txt").write_text("".join(listed), encoding="utf-8")


if __name__ == "__main__":
    main()

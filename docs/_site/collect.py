"""Collects the pages of the site in build/pages: docs/, and the repository's other pages that belong to the site."""

import re
import shutil
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build/pages"
_OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/**/*.md", "examples/**/README.md", "examples/*/*.png")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def site_files() -> dict[str, str]:
    """The address in the site of each file of the repository that belongs to it."""
    paths = [path for path in ROOT.glob("docs/**/*.*") if path.suffix != ".py"]
    paths += (path for pattern in _OTHERS for path in ROOT.glob(pattern))
    files = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    return {file: file.removeprefix("docs/") for file in files}


def rewrite_links(markdown: str, file: str, addresses: dict[str, str]) -> str:
    """Point the relative links of a file to addresses in the site. Links to files outside the site become text."""

    def rewritten(match: re.Match[str]) -> str:
        mark, text, link = match.groups()
        target, hash, anchor = link.partition("#")
        if not target or ":" in target:
            return match[0]
        path = normpath(join(dirname(file), target))
        found = addresses.get(path) or addresses.get(f"{path}/README.md")
        return f"{mark}[{text}]({relpath(found, dirname(addresses[file]) or '.')}{hash}{anchor})" if found else text

    return _LINK.sub(rewritten, markdown)


if __name__ == "__main__":
    shutil.rmtree(PAGES, ignore_errors=True)
    addresses = site_files()
    for file, address in addresses.items():
        (PAGES / address).parent.mkdir(parents=True, exist_ok=True)
        if file.endswith(".md"):
            text = rewrite_links((ROOT / file).read_text(encoding="utf-8"), file, addresses)
            (PAGES / address).write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(ROOT / file, PAGES / address)

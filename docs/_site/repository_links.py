"""Links between pages of the repository, as links between pages of the site."""

import posixpath
import re
from pathlib import Path

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}


def other_pages(root: Path) -> dict[str, Path]:
    """The pages outside docs/ that belong to the site: path of the file by its address in the site."""
    pages = {uri: root / name for name, uri in _ROOT_PAGES.items()}
    pages |= {f"benchmark-log/{path.name}": path for path in sorted(root.glob("benchmarks/log/*.md"))}
    return pages | {f"examples/{path.parent.name}.md": path for path in sorted(root.glob("examples/*/README.md"))}


def pictures(root: Path) -> dict[str, Path]:
    """The pictures of those pages: path of the file by its address in the site."""
    return {path.relative_to(root).as_posix(): path for path in sorted(root.glob("examples/*/*.png"))}


def rewrite_links(markdown: str, source: str, uri: str) -> str:
    """Rewrite the relative links of the repository's file `source`, whose address in the site is `uri`.

    A link to a file without a page in the site becomes plain text.
    """

    def rewritten(match: re.Match[str]) -> str:
        mark, text, link = match.groups()
        target, _, anchor = link.partition("#")
        if not target or ":" in target:
            return match[0]
        address = _address(posixpath.normpath(posixpath.join(posixpath.dirname(source), target)))
        if address is None:
            return text
        relative = posixpath.relpath(address, posixpath.dirname(uri) or ".")
        return f"{mark}[{text}]({relative}{'#' * bool(anchor)}{anchor})"

    return _LINK.sub(rewritten, markdown)


def _address(path: str) -> str | None:
    """The address in the site of a file or folder of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    for page in (path, f"{path}/README.md"):
        if page in _ROOT_PAGES:
            return _ROOT_PAGES[page]
        if match := re.fullmatch(r"examples/([\w-]+)/README\.md", page):
            return f"examples/{match[1]}.md"
        if match := re.fullmatch(r"benchmarks/log/([\w-]+\.md)", page):
            return f"benchmark-log/{match[1]}"
    return path if re.fullmatch(r"examples/[\w-]+/[\w-]+\.png", path) else None

"""Markdown: the text of paragraphs, headings, list items and table cells, found by markdown-it-py."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot, plain, text_source
from nmtkit.errors import UserError
from nmtkit.text.segment import Kind, Part, Segment, Tag, balanced

if TYPE_CHECKING:
    from markdown_it.token import Token

_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n.*?\n(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_LABEL = r"\[(?:[^\[\]\\]|\\.|\[[^\[\]]*\])*\]"
_DESTINATION = r"""\((?:[^()\\"']|\\.|\([^()]*\)|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*\)"""
_LINK_END = re.compile(rf"\](?:{_DESTINATION}|{_LABEL})?")
_IMAGE = re.compile(rf"!{_LABEL}(?:{_DESTINATION}|{_LABEL})?")
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_SPECIAL_START = re.compile(r"^([-+*#>]|\d+[.)])(?=\s)")


def read_markdown(content: bytes, options: Options) -> Document:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise UserError("Markdown needs markdown-it-py: pip install 'nmtkit[documents]'") from None
    source = text_source(content)
    matter = _FRONT_MATTER.match(source.text)
    body = matter.end() if matter else int(source.text.startswith("\ufeff"))
    starts = [body, *(body + line.end() for line in re.finditer(r"\r\n|\r|\n", source.text[body:]))]
    parser = MarkdownIt().enable(["table", "strikethrough"]).disable("text_join")
    slots: list[Slot] = []
    for token in parser.parse(source.text[body:]):
        if token.type == "inline" and token.map and token.content:
            least = slots[-1].end if slots else body
            slots += _slot(source.text, token, max(starts[token.map[0]], least), starts[token.map[1] :][:1])
    return SlicedDocument(source, slots)


def _slot(text: str, token: "Token", start: int, after: list[int]) -> Iterator[Slot]:
    """Yield the slot of an inline token, if its lines are found in the source after the block marks."""
    lines = token.content.split("\n")
    pattern = r"(?:\r\n|\r|\n)[ \t>]*".join(map(re.escape, lines))
    found = re.compile(pattern).search(text, start, after[0] if after else len(text))
    segment = balanced(_parts(token.content, token.children or []))
    if found:
        escaped = {child.content for child in token.children or () if child.type == "text_special"}
        yield Slot(*found.span(), segment, partial(_render, escaped=escaped))


def _parts(content: str, children: Sequence["Token"]) -> Iterator[Part]:
    """Yield text and tags of an inline token. Markup that is not at its expected position is text."""
    at = 0
    for child in children:
        raw, kind, name = child.markup, Kind.ALONE, ""
        if child.type in ("text", "softbreak"):
            raw = child.content if child.type == "text" else "\n"
            at = max(content.find(raw, at) + len(raw), at)
            yield raw.replace("\n", " ")
            continue
        if child.type == "text_special":
            at += len(raw)
            yield child.content
            continue
        if child.type in ("code_inline", "image", "html_inline", "hardbreak"):
            patterns = {"code_inline": _CODE, "image": _IMAGE, "hardbreak": re.compile(r"(?: +|\\)\n\s*")}
            match = patterns[child.type].match(content, at) if child.type in patterns else None
            raw = match.group() if match else child.content
        elif child.type.endswith(("_open", "_close")):
            kind = Kind.OPEN if child.type.endswith("_open") else Kind.CLOSE
            name = child.type.rpartition("_")[0]
            if name == "link" and child.info == "auto":
                raw = "<" if kind is Kind.OPEN else ">"
            elif name == "link":
                match = _LINK_END.match(content, at)
                raw = "[" if kind is Kind.OPEN else match.group() if match else "]"
        at += len(raw)
        yield Tag(kind, raw, name, " " if child.type == "hardbreak" else "")


def _render(segment: Segment, escaped: set[str]) -> str:
    """Render a segment as Markdown. Marks that are escaped in the source stay escaped."""

    def escape(text: str) -> str:
        return re.sub(r"[!-/:-@\[-`{-~]", lambda match: "\\" * (match.group() in escaped) + match.group(), text)

    return _SPECIAL_START.sub(r"\\\1", plain(segment, escape), count=1)

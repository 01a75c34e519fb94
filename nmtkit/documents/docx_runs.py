"""Converts Word's runs, texts with formatting, to tags and back."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from nmtkit.text.markup import escape
from nmtkit.text.segment import Kind, Part, Segment, Tag

#: A part of a paragraph, or the parts of an element in it; the formatting of its run.
Item: TypeAlias = tuple[Part | list[Part], str]


def formatted(items: Sequence[Item]) -> tuple[list[Part], str]:
    """Return the parts of runs and their usual formatting. Text in other formatting is in pairs; fields are tags."""
    weights: Counter[str] = Counter()
    for part, style in items:
        weights[style] += len(part) if isinstance(part, str) else 0
    base = max(weights, key=lambda style: weights[style], default="")
    parts: list[Part] = []
    current, level = base, 0  # formatting of the text; open fields, while the code of the outermost is read
    code = Tag(Kind.OPEN, "", "field")
    for part, style in items:
        tag = part if isinstance(part, Tag) else None
        if tag and tag.name == "field":
            level += tag.kind is Kind.OPEN
        if level:
            raw = "".join(_raw(inner, style) for inner in (part if isinstance(part, list) else [part]))
            code = replace(code, raw=code.raw + raw)
            level -= bool(tag and tag.name == "field" and tag.kind is Kind.CLOSE)
            if level == 0 or (level == 1 and tag and tag.name == "separate"):
                parts += [Tag(Kind.CLOSE, "", "format")] if current != base else []
                parts.append(code if level else replace(code, kind=Kind.ALONE))
                current, level, code = base, 0, replace(code, raw="")
            continue
        if isinstance(part, list):
            parts += [Tag(Kind.CLOSE, "", "format"), *part] if current != base else part
            current = base
            continue
        wanted = style if isinstance(part, str) else current if part.kind is Kind.ALONE else base
        if wanted != current:
            parts += [Tag(Kind.CLOSE, "", "format")] if current != base else []
            parts += [Tag(Kind.OPEN, "", "format", style=wanted)] if wanted != base else []
            current = wanted
        parts.append(part)
    if code.raw:  # of a field that ends in a later paragraph
        parts.append(replace(code, kind=Kind.ALONE))
    parts += [Tag(Kind.CLOSE, "", "format")] if current != base else []
    return parts, base


def render_runs(segment: Segment, base: str) -> str:
    """Render the texts of a segment as runs, each with the formatting of the pair around it."""
    styles, result = [base], []
    for part in segment.parts:
        result.append(_raw(part, styles[-1]))
        if isinstance(part, Tag) and part.kind is Kind.OPEN:
            has_style = part.name == "format" or part.name.isdigit()
            styles.append(part.style if has_style else styles[-1])
        elif isinstance(part, Tag) and part.kind is Kind.CLOSE:
            styles.pop()
    return "".join(result)


def _raw(part: Part, style: str) -> str:
    if isinstance(part, Tag):
        return part.raw
    return f'<w:r>{style}<w:t xml:space="preserve">{escape(part, is_html=False)}</w:t></w:r>'

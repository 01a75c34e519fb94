"""Converts Word's runs, texts with formatting, to tags and back."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    base = current = max(weights, key=lambda style: weights[style], default="")
    parts: list[Part] = []
    for part, style in [*_with_codes(items), ("", base)]:
        is_alone = isinstance(part, Tag) and part.kind is Kind.ALONE
        wanted = style if isinstance(part, str) else current if is_alone else base
        if wanted != current:
            parts += [Tag(Kind.CLOSE, "", "format")] if current != base else []
            parts += [Tag(Kind.OPEN, "", "format", style=wanted)] if wanted != base else []
            current = wanted
        parts += part if isinstance(part, list) else [part]
    return parts, base


def _with_codes(items: Iterable[Item]) -> Iterator[Item]:
    """Join the code of each field, up to its separator, to an opening tag; without a separator, to a standalone tag."""
    code, level = "", 0  # and how many fields are open in it
    for part, style in items:
        field = part if isinstance(part, Tag) and part.name in ("field", "separate") else None
        level += field is not None and field.kind is Kind.OPEN
        if not level:
            yield part, style
            continue
        code += "".join(_raw(inner, style) for inner in (part if isinstance(part, list) else [part]))
        level -= field is not None and field.kind is Kind.CLOSE
        if level == 0 or (level == 1 and field and field.name == "separate"):
            yield [Tag(Kind.OPEN if level else Kind.ALONE, code, "field")], ""
            code, level = "", 0
    if code:  # of a field that ends in a later paragraph
        yield [Tag(Kind.ALONE, code)], ""


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

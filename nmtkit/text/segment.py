"""Text with inline tags, and the placement of the tags in a translation based on word alignments.

A pair covers the target words aligned to its words. Pairs nest in the target as in the source. Positions
are characters of the text without tags.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

_WORD = re.compile(r"\w+|[^\w\s]")
WHITE_SPACE = " \t\r\n\f"  #: white space that collapses next to a tag; a no-break space does not
MAX_TAGS = 1_000  #: of a segment, because the time to place them is quadratic
Span: TypeAlias = tuple[int, int]

#: Text that documents protect by default: URLs, e-mail addresses, placeholders such as {name}, {{ name }}, ${name}, %s.
PLACEHOLDERS = re.compile(
    r"https?://[^\s<>\"']*[\w/]|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\{\{[^{}]*\}\}|[$%]?\{[^{}\s]*\}"
    r"|%(?:\(\w+\)|\d+\$)?[-+#0]*\d*(?:\.\d+)?l*[sdifgxXuc@](?!\w)"
)


class Kind(Enum):
    OPEN = "opens a pair"
    CLOSE = "closes a pair"
    ALONE = "standalone"


@dataclass(frozen=True)
class Tag:
    """An inline tag with its own bytes (`raw`).

    A standalone tag with `text` is a protected span, which the plain text contains as `text`. If this text is a space,
    the tag separates words. A protected span without `raw` is ordinary text in the translation. `name` pairs opening
    and closing tags, `style` is the formatting inside a pair for formats that repeat it, and `offset` is the position
    of `raw` in the file. The model may be given a stand-in (`sent`) for a protected span.
    """

    kind: Kind
    raw: str
    name: str = ""
    text: str = ""
    sent: str = field(default="", compare=False)
    style: str = ""
    offset: int = -1

    @property
    def is_protected(self) -> bool:
        return bool(self.text.strip())

    @property
    def written(self) -> "Part":
        """The part of a translation for this tag: the tag, or the text of a protected span without `raw`."""
        return self if self.raw or not self.text else self.text


Part: TypeAlias = str | Tag


@dataclass(frozen=True)
class Segment:
    """A unit of translation: text and tags in their order, pairs balanced. Tags keep their order unless `movable`."""

    parts: tuple[Part, ...]
    movable: bool = True

    @property
    def text(self) -> str:
        """The text without tags. White space is removed at both ends, and collapsed next to a tag."""
        return _outline(self.parts)[0]

    @property
    def plain(self) -> str:
        """The text of a translation, including its protected spans."""
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    @property
    def protected(self) -> list[Span]:
        """The protected spans of the text."""
        nodes = _outline(self.parts)[1]
        return [(node.start, node.end) for node in nodes if node.tag and node.tag.is_protected]

    @property
    def is_translatable(self) -> bool:
        return any(has_letters(part) for part in self.parts if isinstance(part, str))

    @property
    def has_tags(self) -> bool:
        return any(isinstance(part, Tag) for part in self.parts)


def words(text: str) -> list[Span]:
    """Return the spans of the words of a text. A word is a run of word characters, or a single mark."""
    return [match.span() for match in _WORD.finditer(text)]


def words_around(text: str, spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the words that contain one of the spans of a text."""
    return [word for word in words(text) if any(word[0] <= start and end <= word[1] for start, end in spans)]


def has_letters(text: str) -> bool:
    """Whether a text has letters, so that there is something to translate. Numbers, marks and emoji have none."""
    return any(map(str.isalpha, text))


def is_apart(text: str, start: int, end: int) -> bool:
    """Whether a span is not part of a longer word. In scripts without spaces, it may touch other letters."""
    borders = [text[max(start - 1, 0) : start + 1], text[end - 1 : end + 1]]
    return not any(len(pair) == 2 and all(c.isalnum() and ord(c) < 0x0E00 for c in pair) for pair in borders)


def balanced(parts: Iterable[Part], movable: bool = True) -> Segment:
    """Create a segment from parts: join texts, and make tags without a counterpart standalone.

    If such tags are not at an edge of the text, all tags of the segment keep their order.
    """
    parts = list(parts)
    texts = [index for index, part in enumerate(parts) if (part if isinstance(part, str) else part.text).strip()]
    paired = pairs([(part.kind, part.name) if isinstance(part, Tag) else (Kind.ALONE, "") for part in parts])
    result: list[Part] = []
    for index, part in enumerate(parts):
        if isinstance(part, Tag) and part.kind is not Kind.ALONE and index not in paired:
            part = replace(part, kind=Kind.ALONE)
            movable = movable and not (texts and texts[0] < index < texts[-1])
        last = result[-1] if result else None
        if isinstance(part, str) and isinstance(last, str):
            result[-1] = last + part
        elif part:
            result.append(part)
    return Segment(tuple(result), movable)


def pairs(tags: Sequence[tuple[Kind, str]]) -> dict[int, int]:
    """Match opening and closing tags by name so that pairs nest. Maps the index of each tag to its counterpart."""
    result: dict[int, int] = {}
    opened: list[int] = []
    waiting: dict[str, int] = {}  # how many tags of a name are in `opened`
    for index, (kind, name) in enumerate(tags):
        if kind is Kind.OPEN:
            opened.append(index)
            waiting[name] = waiting.get(name, 0) + 1
        elif kind is Kind.CLOSE and waiting.get(name):
            while True:
                start = opened.pop()
                waiting[tags[start][1]] -= 1
                if tags[start][1] == name:
                    break
            result[start], result[index] = index, start
    return result


def protect(segment: Segment, *patterns: re.Pattern[str]) -> Segment:
    """Protect the matches of patterns in the text parts of a segment. If matches overlap, the first pattern wins."""
    if not patterns:
        return segment
    *before, pattern = patterns
    segment, result = protect(segment, *before), list[Part]()
    for part in segment.parts:
        at = 0
        for match in pattern.finditer(part) if isinstance(part, str) else ():
            if match.group():
                result += [match.string[at : match.start()], Tag(Kind.ALONE, "", text=match.group())]
                at = match.end()
        result.append(part[at:] if isinstance(part, str) else part)
    return balanced(result, segment.movable)


@dataclass(eq=False)
class _Node:
    """A pair, a standalone tag or a protected span, first in the source, then (`place`) in the target."""

    tag: Tag | None = None
    close: Tag | None = None
    start: int = 0
    end: int = 0
    spaces: tuple[str, str] = ("", "")  # white space on both sides, if the tag touches no word
    touches: bool = False  # a word ends where it begins
    parent: "_Node | None" = None
    children: list["_Node"] = field(default_factory=list)
    rank: int = 0  # order at one position


def _outline(parts: Sequence[Part]) -> tuple[str, list[_Node]]:
    """Return the plain text of a segment and its nodes in document order."""
    text = ""
    nodes: list[_Node] = []
    opened: list[tuple[_Node, int]] = []
    follows = [False] * len(parts)  # whether a word begins after a part
    for index in range(len(parts) - 1, 0, -1):
        after = parts[index]
        begins = after[0] not in WHITE_SPACE if isinstance(after, str) else bool(after.text.strip())
        follows[index - 1] = begins or (isinstance(after, Tag) and not after.text and follows[index])
    for index, part in enumerate(parts):
        if isinstance(part, str):
            text += part if text and text[-1] not in WHITE_SPACE else part.lstrip(WHITE_SPACE)
            continue
        if part.kind is Kind.CLOSE:
            node, first = opened.pop()
            node.close, node.end = part, len(text)
        else:
            node, first = _Node(part, start=len(text), parent=opened[-1][0] if opened else None), index
            nodes.append(node)
            if not part.text.isspace():
                text += part.sent or part.text
            elif text and text[-1] not in WHITE_SPACE:
                text += " "
            node.start, node.end = (node.start if part.is_protected else len(text)), len(text)
            if part.kind is Kind.OPEN:
                opened.append((node, index))
                continue
        node.touches = node.start > 0 and text[node.start - 1] not in WHITE_SPACE
        if not node.touches and not follows[index]:
            node.spaces = _space(parts, first - 1, -1), _space(parts, index + 1, 0)
    text = text.rstrip(WHITE_SPACE)
    for node in nodes:
        node.start, node.end = min(node.start, len(text)), min(node.end, len(text))
    return text, nodes


def _space(parts: Sequence[Part], index: int, edge: int) -> str:
    part = parts[index] if 0 <= index < len(parts) else ""
    return " " if isinstance(part, str) and part and part[edge] in WHITE_SPACE else ""


def place(
    segment: Segment,
    target: str,
    alignment: Iterable[tuple[int, int]],
    source_words: Sequence[Span] | None = None,
    target_words: Sequence[Span] | None = None,
) -> Segment:
    """Place the tags of a segment in the translation of its text.

    `alignment` has pairs of source and target word numbers; words are those of `words` unless spans are given. Each
    tag occurs once, and the text of the result is `target` except for protected spans. Without an alignment, pairs
    enclose everything and standalone tags move to the end. Tags that keep their order are put after the text if the
    alignment allows nothing else. If there are more than 1,000 tags, they stay at the beginning.
    """
    text, nodes = _outline(segment.parts)
    tags = [part for part in segment.parts if isinstance(part, Tag)]
    if not nodes or len(nodes) > MAX_TAGS:
        return balanced([*(tag.written for tag in tags), target], segment.movable)
    source_words = words(text) if source_words is None else source_words
    target_words = words(target) if target_words is None else target_words
    placement = _Placement(text, source_words, target_words, target, segment.movable)
    placement.align(alignment)
    for node in nodes:
        placement.restore(node)
    placement.keep_order()
    placement.put_pairs([node for node in nodes if node.close])
    placement.put_others(nodes)
    result = balanced(placement.parts(), segment.movable)
    tags = [tag for tag in tags if tag.written is tag]
    if segment.movable or [part for part in result.parts if isinstance(part, Tag)] == tags:
        return result
    return balanced([*(part for part in result.parts if isinstance(part, str)), *tags], False)


class _Placement:
    """The target and the nodes placed in it, as a tree. Children of a node are nested or disjoint."""

    def __init__(
        self, text: str, source: Sequence[Span], target_words: Sequence[Span], target: str, movable: bool
    ) -> None:
        self.text = text
        self.movable = movable
        self.source = source
        self.words = list(target_words)
        self.target = target
        self.whole = (self.words[0][0], self.words[-1][1]) if self.words else (0, len(target))
        self.links: list[set[int]] = [set() for _ in source]
        self.root = _Node(start=0, end=len(target))
        self.placed: dict[_Node, _Node] = {}
        self.protected: list[Span] = []

    def align(self, alignment: Iterable[tuple[int, int]]) -> None:
        for source, target in alignment:
            if 0 <= source < len(self.source) and 0 <= target < len(self.words):
                self.links[source].add(target)
        self.is_aligned = any(self.links)

    def keep_order(self) -> None:
        """Drop alignment links that cross earlier links, unless tags are movable."""
        floor = 0
        for linked in self.links if not self.movable else ():
            linked -= set(range(floor))
            floor = max(linked, default=floor - 1) + 1

    def restore(self, node: _Node) -> None:
        """Find a protected span in the target by its text, or else by words that are aligned to nothing else."""
        if not node.tag or not node.tag.is_protected:
            return
        inside, text = self.covered(node), node.tag.sent or node.tag.text
        linked = set().union(*(self.links[word] for word in inside))
        others = set().union(*(links for word, links in enumerate(self.links) if word not in inside))
        near = self.words[min(linked)][0] if linked else 0
        spans = [match.span() for match in re.finditer(re.escape(text), self.target, re.IGNORECASE)]
        if is_apart(self.text, node.start, node.end):
            apart = [span for span in spans if is_apart(self.target, *span)]
            spans = apart or (words_around(self.target, spans) if node.tag.sent else [])
            if not spans and linked and not linked & others and max(linked) - min(linked) < len(linked):
                spans = [(self.words[min(linked)][0], self.words[max(linked)][1])]
        spans = [span for span in spans if not any(a < span[1] and span[0] < b for a, b in self.protected)]
        if not spans:
            return
        start, end = min(spans, key=lambda span: (self.target[slice(*span)] != text, abs(span[0] - near)))
        self.protected.append((start, end))
        hit = [word for word, (a, b) in enumerate(self.words) if a < end and start < b]
        for word in range(len(self.links)):
            self.links[word] = set(hit) if word in inside else self.links[word] - set(hit)
        span = min([start, *(self.words[word][0] for word in hit)]), max([end, *(self.words[word][1] for word in hit)])
        for word in hit:  # no tag goes between words of the span
            self.words[word] = span
        self.placed[node] = _Node(node.tag, start=start, end=end, rank=3)

    def covered(self, node: _Node) -> range:
        """Return the source words that a node overlaps."""
        if node.start == node.end:
            return range(0)
        first = bisect_right(self.source, node.start, key=lambda word: word[1])
        return range(first, max(first, bisect_left(self.source, node.end, key=lambda word: word[0])))

    def parent(self, node: _Node) -> _Node:
        return self.placed[node.parent] if node.parent else self.root

    def put_pairs(self, nodes: Iterable[_Node]) -> None:
        """Put each pair around the words aligned to its words, inside its parent.

        If two pairs cross, the later is clipped. Pairs without remaining words are not placed.
        """
        for node in nodes:
            covered = self.covered(node)
            linked = set().union(*(self.links[word] for word in covered))
            new = _Node(node.tag, node.close, rank=3)
            is_whole = node.start <= self.source[0][0] and node.end >= self.source[-1][1] if covered else False
            if is_whole or (covered and self.movable and not self.is_aligned):
                new.start, new.end = self.whole
            elif linked:
                new.start = min(self.words[word][0] for word in linked)
                new.end = max(self.words[word][1] for word in linked)
            if new.start < new.end and (node.parent is None or node.parent in self.placed):
                parent = self.parent(node)
                new.start, new.end = max(new.start, parent.start), min(new.end, parent.end)
                parent = self.deepest(parent, new.start, new.end)
                if self.clip(new, parent):
                    new.children = [n for n in parent.children if new.start <= n.start and n.end <= new.end]
                    parent.children = [n for n in parent.children if n not in new.children] + [new]
                    self.placed[node] = new

    def clip(self, new: _Node, parent: _Node) -> bool:
        """Clip a pair to whole words that no other pair in `parent` crosses. Returns whether any word remains."""
        for other in parent.children:
            if other.start < new.start < other.end:
                new.start = other.end
            if other.start < new.end < other.end:
                new.end = other.start
        inside = [word for word in self.words if new.start <= word[0] and word[1] <= new.end]
        if inside:
            new.start, new.end = inside[0][0], inside[-1][1]
        return bool(inside)

    def put_others(self, nodes: Iterable[_Node]) -> None:
        """Insert restored spans into the innermost pair around them, then all nodes without target words."""
        for placed in (self.placed[node] for node in nodes if node in self.placed and not node.close):
            self.deepest(self.root, placed.start, placed.end).children.append(placed)
        for node in nodes:
            if node not in self.placed:
                self.placed[node] = self.put_empty(node, self.parent(node))

    def put_empty(self, node: _Node, parent: _Node) -> _Node:
        """Place a node without target words at the same edge as in the source, or else next to the word it touches."""
        is_untranslated_pair = bool(node.close and self.covered(node))
        new = _Node(node.tag, node.close, spaces=("", "") if is_untranslated_pair else node.spaces)
        before = [word for word, (start, _) in enumerate(self.source) if start < node.end]
        after = [word for word, (_, end) in enumerate(self.source) if end > node.start]
        ends = [max(self.words[t][1] for t in self.links[word]) for word in reversed(before) if self.links[word]][:1]
        starts = [min(self.words[t][0] for t in self.links[word]) for word in after if self.links[word]][:1]
        if not after or (self.movable and not self.is_aligned):
            new.start, new.rank = self.whole[1], 1
            new.spaces = new.spaces[0] or new.spaces[1], ""
        elif not before:
            new.start, new.rank = self.whole[0], 2
        elif ends and (node.touches or is_untranslated_pair or not starts):
            new.start, new.rank = ends[0], 1
        else:
            new.start, new.rank = starts[0] if starts else self.whole[0], 2
        if parent.start == parent.end:
            new.rank = 1
        at = min(max(new.start, parent.start), parent.end)
        new.start = new.end = at = next((end for start, end in self.protected if start < at < end), at)
        if node.tag and node.tag.is_protected:  # a word of its own
            left, right = self.target[max(at - 1, 0) : at].isalnum(), self.target[at : at + 1].isalnum()
            new.spaces = new.spaces[0] or " " * left, new.spaces[1] or " " * right
        self.deepest(parent, new.start, new.end).children.append(new)
        return new

    @staticmethod
    def deepest(parent: _Node, start: int, end: int) -> _Node:
        """Return the deepest pair around a span. A pair around an empty span must not begin or end at its position."""
        while inner := [
            node
            for node in parent.children
            if node.close
            and (node.start <= start and end <= node.end if start < end else node.start < start < node.end)
        ]:
            parent = inner[-1]
        return parent

    def parts(self) -> Iterable[Part]:
        """Return the target with its tags. White space is outside pairs, and around tags that touch no word."""
        out: list[Part] = []
        at, pending = 0, ""

        def spaced() -> bool:
            last = next((p for p in reversed(out) if isinstance(p, str) or p.kind is not Kind.OPEN), " ")
            return isinstance(last, str) and last[-1].isspace()

        def write(end: int) -> None:
            nonlocal at, pending
            if text := self.target[at:end]:
                if pending and not text[0].isspace() and not spaced():
                    out.append(pending)
                out.append(text)
                at, pending = end, ""

        todo: list[_Node | Tag | int] = [self.root]  # a stack: trees can be deeper than the stack of Python
        while todo:
            step = todo.pop()
            if isinstance(step, int):
                write(step)
            elif isinstance(step, Tag):
                out.append(step)
            else:
                if step.tag:
                    write(step.start)
                    before = pending or step.spaces[0]
                    if before and (step.start == step.end or pending) and not spaced():
                        out.append(before)
                    pending = step.spaces[1] if step.start == step.end else ""
                    out.append(step.tag.written)
                    if step.tag.is_protected:
                        at = step.end
                todo += [part for part in (step.close, step.end) if part is not None]
                todo += sorted(step.children, key=lambda node: (node.start, node.rank))[::-1]
        return out

"""The options of documents, markup and protected text."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nmtkit.config import Config, option
from nmtkit.documents import FORMATS, format_of
from nmtkit.errors import UserError


@dataclass(frozen=True)
class DocumentConfig(Config):
    heading: ClassVar[str] = "Documents and markup"

    document: str | None = option(
        None,
        choices=FORMATS,
        metavar="FORMAT",
        unset="by the ending of --input",
        help=f"Translate the input as a document: {', '.join(FORMATS)}. Its layout is kept. Files ending in .docx, "
        ".odt, .html, .srt, .vtt, .po, .xliff or .tmx are documents without this option.",
    )
    columns: str = option(
        "", metavar="LIST", help="With csv and tsv: columns to translate, as names or numbers. Default: all."
    )
    keys: str = option(
        "", metavar="LIST", help="With json: keys to translate, such as 'title,items.*.text'. Default: all strings."
    )
    markup: str | None = option(
        None,
        choices=("html", "xml"),
        help="Each line is a piece of HTML or XML: tags are kept, and placed by word alignment.",
    )
    ignore_tags: str = option("", metavar="LIST", help="Elements whose content is not translated, such as code,kbd.")
    protect: str | None = option(
        None,
        metavar="REGEX",
        help="Keep text that matches this regular expression. Default in documents: URLs, e-mail addresses and "
        "placeholders such as {name} and %s.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            re.compile(self.protect or "")
        except re.error as error:
            raise UserError(f"--protect {self.protect}: not a regular expression: {error}") from error
        if self.document is not None and self.markup is not None:
            raise UserError("--document and --markup are mutually exclusive: --markup is for lines")

    def format(self, path: Path | None) -> str | None:
        """The format of the document in a file, or on stdin; None for lines."""
        if self.document is not None or self.markup is not None or path is None:
            return self.document
        return format_of(path)

    @property
    def has_marked_lines(self) -> bool:
        """Whether lines have markup or protected text."""
        return self.markup is not None or self.protect is not None


def listed(names: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(name.strip() for name in names.split(",") if name.strip())

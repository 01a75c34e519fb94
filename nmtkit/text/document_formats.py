"""The formats of documents, their file extensions, and guesses from the beginning of a text."""

import re
from collections.abc import Sequence
from pathlib import PurePath

DOCUMENTS = ("csv", "docx", "html", "json", "md", "odt", "po", "srt", "tmx", "tsv", "txt", "vtt", "xliff")
ZIPPED = ("docx", "odt")
#: The formats of files by their ending. Files of the other formats are lines, unless the format is given.
ENDINGS = {f".{format}": format for format in ("docx", "html", "odt", "po", "srt", "tmx", "vtt", "xliff")} | {
    ".htm": "html",
    ".xhtml": "html",
    ".xlf": "xliff",
}
#: Endings of documents that cannot be translated, and the way out.
REMEDIES = {
    **dict.fromkeys((".doc", ".dot", ".rtf", ".pages", ".wpd", ".docm"), "save it as .docx or .odt"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as .csv and use --document csv"),
    **dict.fromkeys((".pptx", ".ppt", ".odp"), "save its text as .odt or .txt"),
    ".epub": "unpack it and translate its .xhtml files",
    ".pdf": "convert it to .docx or .html, or extract its text with pdftotext",
}


def format_of(path: PurePath) -> str | None:
    """Return the format of a document by its file extension; None for files of lines."""
    return ENDINGS.get(path.suffix.lower())


def chosen_format(document: str | None, markup: str | None, path: PurePath | None) -> str | None:
    """Return the format of the document to translate, from --document or the extension of --input; None for lines."""
    return document or (format_of(path) if path and markup is None else None)


_PAGE = re.compile(r"<!doctype html|<html\b", re.IGNORECASE)
_TAGS = re.compile(r"</?(?:a|b|br|div|em|h[1-6]|i|li|p|span|strong|td|tr|u|ul)\b[^<>]*>", re.IGNORECASE)
_TIMES = re.compile(r"\d\d:\d\d[.,]\d{3} --> ")


def guess(lines: Sequence[str]) -> tuple[str, str] | None:
    """Guess the format of lines that do not look like plain text. Returns its name and the option for it, or None."""
    import csv  # imported late, as `--help` needs only the names

    lines = [line for line in lines if line.strip()]
    if any(map(_PAGE.search, lines)):
        return "HTML", "--document html"
    if any(map(_TIMES.search, lines)):
        return "subtitles", "--document srt (or vtt)"
    if lines and 2 * sum(map(bool, map(_TAGS.search, lines))) >= len(lines):
        return "HTML", "--markup html"
    for delimiter, format in (("\t", "tsv"), (",", "csv"), (";", "csv")):
        rows = [*csv.reader(lines, delimiter=delimiter)] if len(lines) > 2 and delimiter in lines[0] else []
        if len({len(row) for row in rows}) == 1 and not any(field[:1] == " " for row in rows for field in row):
            return f"a table ({format.upper()})", f"--document {format}"
    return None

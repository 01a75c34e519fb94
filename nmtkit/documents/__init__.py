"""Documents: what is translated is found in the bytes of a file, all else is kept.

Each format is a function from the bytes of a file to a `Document`: its `segments` in the order of the file, and
`write`, which takes their translations. A command or a server calls one function of `nmtkit.documents.formats`:

    format = format_of(Path("report.docx"))  # None: lines
    output = translate_document(content, format, translator.translate_segments, Options(target_language="de"))

An unchanged segment keeps its bytes. Errors of the input are UserErrors without the file's name.
"""

from pathlib import PurePath

FORMATS = ("csv", "docx", "html", "json", "md", "odt", "po", "srt", "tmx", "tsv", "txt", "vtt", "xliff")

#: The formats of files by their ending. Files of the other formats are lines, unless the format is given.
ENDINGS = {f".{format}": format for format in ("docx", "html", "odt", "po", "srt", "tmx", "vtt", "xliff")} | {
    ".htm": "html",
    ".xhtml": "html",
    ".xlf": "xliff",
}


def format_of(path: PurePath) -> str | None:
    """The format of a document by its ending; None for files of lines."""
    return ENDINGS.get(path.suffix.lower())

"""Files that clients translate: POST /translate_file and GET /download_file, as in LibreTranslate."""

import secrets
import time
from collections.abc import AsyncGenerator
from http import HTTPStatus
from pathlib import PurePath
from urllib.parse import quote

from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from nmtkit.errors import UserError
from nmtkit.serving.config import ServeConfig
from nmtkit.serving.json_fields import TranslationRequest, bad_request
from nmtkit.serving.markup import documents_request
from nmtkit.text.document_formats import format_of

_SECONDS = 600  # to download a file
_MAX_BYTES = 1 << 26  # of all files that wait


def read_file(name: str, content: bytes, limits: ServeConfig, language: str) -> tuple[str, TranslationRequest]:
    """Parse a file by its extension for translation to `language`. Returns its name without folders, and its request.
    Raises HTTPException: 400 for a damaged file or an unsupported extension, 413 if it is too large."""
    from nmtkit.documents import FORMATS
    from nmtkit.documents.document import Options

    path = PurePath(name.replace("\\", "/"))
    format = format_of(path) or path.suffix.lower().removeprefix(".")
    if format not in FORMATS:
        kind = f"ending in {path.suffix}" if path.suffix else "without an extension"
        raise bad_request(f"files {kind} are not supported: send {', '.join(FORMATS)}")
    try:
        document = FORMATS[format](content, Options(target_language=language))
    except UserError as error:
        raise bad_request(str(error)) from error
    return path.name, documents_request([document], limits, lambda contents: contents[0])


async def uploaded_file(headers: Headers, body: bytes) -> tuple[str, bytes, dict[str, str]]:
    """Return the name and content of the file in a form, and its other fields. Raises HTTPException 400 or 415."""
    if not headers.get("content-type", "").startswith("multipart/form-data"):
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send a form (multipart/form-data) with a file")

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await MultiPartParser(headers, stream()).parse()
    except (MultiPartException, KeyError) as error:
        raise bad_request(f"the form is malformed: {error}") from error
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile) or not file.filename:
            raise bad_request('the form has no file with the name "file"')
        values = {name: value for name, value in form.items() if isinstance(value, str)}
        return file.filename, await file.read(), values
    finally:
        await form.close()


class Downloads:
    """Keeps translated files in memory for download, for ten minutes unless newer files need the space."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[float, bytes]] = {}  # oldest first

    def add(self, name: str, content: bytes) -> str:
        """Keep a file, and return the path to download it from."""
        path = f"download_file/{secrets.token_urlsafe(16)}/{quote(name)}"
        self._files[path] = time.monotonic(), content
        while len(self._files) > 1 and sum(len(content) for _, content in self._files.values()) > _MAX_BYTES:
            del self._files[next(iter(self._files))]
        return path

    def get(self, path: str) -> bytes | None:
        """Return the file at a path; None if it no longer exists."""
        for old in [old for old, (added, _) in self._files.items() if time.monotonic() - added > _SECONDS]:
            del self._files[old]
        return self._files[path][1] if path in self._files else None

"""Documents that are zip files. Translated members change, and all others are copied."""

import io
import zipfile
import zlib
from collections.abc import Callable, Sequence

from nmtkit.documents.document import Document
from nmtkit.errors import UserError
from nmtkit.text.segment import Segment

_MAX_UNPACKED = 256 << 20  #: bytes of all members together
_OLE = b"\xd0\xcf\x11\xe0"  #: begins encrypted files and those of old versions of Office


class ZippedDocument:
    """A zip file with a required member. `read` parses a member, or returns None for a member that is copied."""

    def __init__(self, content: bytes, required: str, read: Callable[[str, bytes], Document | None]) -> None:
        if content.startswith(_OLE):
            raise UserError(
                "the document is encrypted or in an old format: save it without a password, in the new format"
            )
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                infos = archive.infolist()
                if sum(info.file_size for info in infos) > _MAX_UNPACKED:
                    raise UserError(f"the document is larger than {_MAX_UNPACKED >> 20} MiB when unpacked: split it")
                self.members = [(info, archive.read(info)) for info in infos]
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError) as error:
            raise UserError(f"the document is a damaged zip file: {error}") from None
        self.documents = {info.filename: read(info.filename, data) for info, data in self.members}
        if required not in self.documents:
            raise UserError(f"the document is in a different format: it has no {required}")

    @property
    def segments(self) -> Sequence[Segment]:
        return [segment for document in self.documents.values() if document for segment in document.segments]

    def write(self, translations: Sequence[Segment]) -> bytes:
        output, rest = io.BytesIO(), iter(translations)
        with zipfile.ZipFile(output, "w") as archive:
            for info, data in self.members:
                if document := self.documents[info.filename]:
                    data = document.write([next(rest) for _ in document.segments])
                archive.writestr(info, data)
        return output.getvalue()

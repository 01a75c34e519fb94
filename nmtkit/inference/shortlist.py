"""The lexical shortlist of a model, with the most probable translations of each source piece.

With it, the translation of a sentence contains only the translations of its pieces and the most frequent pieces of the
target language, so the search computes few logits (Jean et al. 2015, §3.3). `docs/how-to/export.md` describes the
file byte by byte.
"""

import hashlib
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import UserError
from nmtkit.inference.arrays import Ints
from nmtkit.text.reading import check_readable, is_regular_file
from nmtkit.text.vocabulary import EOS, UNK, Vocabulary

MAGIC, VERSION = b"NMTKLEXS", 1
_HEADER = struct.Struct("<8sIIIQ32s")  # magic, version, source pieces, frequent pieces, translations, vocabularies
_OFFSET, _ID = np.dtype("<u8"), np.dtype("<u4")
_CHECKSUM_BYTES = 32

Ids = NDArray[np.int32]


class Shortlist:
    """The tokens that a translation may contain, given the tokens of its source.

    UNK and EOS are always included, PAD and BOS never.
    """

    def __init__(self, offsets: Ints, translations: Ids, frequent: Ids, size: int, vocabularies: bytes) -> None:
        """The translations of source piece i are `translations[offsets[i] : offsets[i + 1]]`.

        `frequent` ids are in the list of every sentence. All ids are below `size`, the size of the target vocabulary;
        `vocabularies` is the `fingerprint` of both vocabularies.
        """
        self.offsets, self.translations, self.frequent = offsets, translations, frequent
        self.size, self.vocabularies = size, vocabularies
        self._rows = np.split(translations, offsets[1:-1])

    def tokens(self, source: Iterable[int], required: Iterable[int] = ()) -> Ids:
        """Return the ids that the translation of a sentence may contain, including `required` ids, in ascending order.

        The ids depend only on this sentence.
        """
        likely = np.zeros(self.size, np.bool_)
        likely[np.concatenate([self.frequent, *(self._rows[piece] for piece in source)])] = True
        likely[[UNK, EOS, *required]] = True
        return np.flatnonzero(likely).astype(np.int32)

    def write(self, file: BinaryIO) -> None:
        """Write the shortlist with its checksum."""
        header = _HEADER.pack(
            MAGIC, VERSION, len(self.offsets) - 1, len(self.frequent), len(self.translations), self.vocabularies
        )
        parts = (self.offsets.astype(_OFFSET), self.translations.astype(_ID), self.frequent.astype(_ID))
        content = header + b"".join(part.tobytes() for part in parts)
        file.write(content + hashlib.sha256(content).digest())

    @classmethod
    def read(cls, path: Path, source: Vocabulary, target: Vocabulary) -> "Shortlist":
        """Read a shortlist. Raises UserError if it is missing or damaged, or belongs to different vocabularies."""
        check_readable(path)
        if not is_regular_file(path):  # a device may be endless
            raise UserError(f"{path} is not a regular file: use a shortlist of nmt-export")
        try:
            return cls._parse(path.read_bytes(), source, target)
        except UserError as error:
            raise UserError(f"{path}: {error}; make it with nmt-export --to shortlist") from error

    @classmethod
    def _parse(cls, content: bytes, source: Vocabulary, target: Vocabulary) -> "Shortlist":
        if len(content) < _HEADER.size + _CHECKSUM_BYTES or not content.startswith(MAGIC):
            raise UserError("not a shortlist")
        _, version, pieces, frequent, translations, vocabularies = _HEADER.unpack_from(content)
        if version != VERSION:
            raise UserError(f"version {version}, this nmtkit reads version {VERSION}")
        if vocabularies != fingerprint(source, target) or pieces != len(source):
            raise UserError("its vocabulary is not the model's")
        body = (pieces + 1) * _OFFSET.itemsize + (translations + frequent) * _ID.itemsize
        checksum = hashlib.sha256(content[:-_CHECKSUM_BYTES]).digest()
        if len(content) != _HEADER.size + body + _CHECKSUM_BYTES or checksum != content[-_CHECKSUM_BYTES:]:
            raise UserError("damaged")
        offsets = np.frombuffer(content, _OFFSET, pieces + 1, _HEADER.size).astype(np.int64)
        ids = np.frombuffer(content, _ID, translations + frequent, _HEADER.size + offsets.nbytes).astype(np.int64)
        if (ids >= len(target)).any():
            raise UserError("damaged")
        own, frequent_ids = np.split(ids.astype(np.int32), [translations])
        return cls(offsets, own, frequent_ids, len(target), vocabularies)


def fingerprint(source: Vocabulary, target: Vocabulary) -> bytes:
    """Return a checksum of both vocabularies, to which the ids of a shortlist belong."""
    digest = hashlib.sha256(struct.pack("<QQ", len(source), len(target)))
    for vocabulary in (source, target):
        digest.update(vocabulary.to_bytes())
    return digest.digest()

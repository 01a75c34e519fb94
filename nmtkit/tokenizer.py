"""Tokenizers: SentencePiece, or text that is already segmented."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from nmtkit.config import flag
from nmtkit.errors import UserError
from nmtkit.vocab import SPECIALS, UNK, Vocabulary

SENTENCEPIECE, SPACE = "sentencepiece", "space"
KINDS = (SENTENCEPIECE, SPACE)
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
# nmt-preprocess has options of the same names.
_SENTENCEPIECE_OPTION = re.compile(r"(?:--)?\b(vocab_size|model_type|character_coverage|byte_fallback)\b")


class Tokenizer(Protocol):
    """Converts text of one language to ids and back. The ids never include PAD, BOS or EOS."""

    kind: str
    vocab: Vocabulary
    model: bytes  #: the SentencePiece model file, or empty

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Encode each line as ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a sequence of ids to text without line breaks."""

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        """The text that each id adds, with spaces before words. The last byte piece of a character adds all of it."""


class SentencePieceTokenizer:
    """Tokenizes raw text by a SentencePiece model. The ids of the model are mapped to those of the vocabulary."""

    kind = SENTENCEPIECE

    def __init__(self, model: bytes) -> None:
        from sentencepiece import SentencePieceProcessor  # deferred: it would double the time of `--help`

        self.model = model
        self._processor: Any = SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(model)
        except RuntimeError as error:
            raise UserError("not a SentencePiece model") from error
        size, unknown = self._processor.get_piece_size(), self._processor.unk_id()
        model_ids = [i for i in range(size) if not (self._processor.is_control(i) or self._processor.is_unknown(i))]
        try:
            pieces = [self._processor.id_to_piece(i) for i in model_ids]
        except UnicodeDecodeError as error:
            raise UserError("a SentencePiece model with a piece that is not UTF-8") from error
        for name in SPECIALS:
            if name in pieces:
                raise UserError(f"its piece {name!r} is ordinary text, but nmtkit needs that name for a special symbol")
        self.vocab = Vocabulary([*SPECIALS, *pieces])
        self._to_model = [unknown] * len(SPECIALS) + model_ids
        self._to_vocab = [UNK] * size
        for number, i in enumerate(model_ids, len(SPECIALS)):
            self._to_vocab[i] = number
        self._same_ids = all(self._to_vocab[i] == i for i in (unknown, *model_ids))  # text has no control pieces

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        try:
            encoded: list[list[int]] = self._processor.encode(list(lines), out_type=int, num_threads=1)
        except TypeError as error:
            if not all(isinstance(line, str) for line in lines):
                raise
            raise UserError("the text has a lone surrogate, which is not a character") from error
        if self._same_ids:
            return encoded
        return [[self._to_vocab[i] for i in sentence] for sentence in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode([self._to_model[i] for i in ids])
        return text.replace("\n", " ").replace("\r", " ")  # byte pieces can spell a line break

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        added, pending = [], b""
        for piece in self.vocab.to_pieces(ids):
            byte = _BYTE_PIECE.fullmatch(piece)
            pending = pending + bytes.fromhex(byte[1]) if byte else b""
            try:
                added.append(pending.decode() if byte else piece.replace("▁", " "))
                pending = b""
            except UnicodeDecodeError:
                added.append("")
        return added


class SpaceTokenizer:
    """Tokenizes segmented text at spaces. On decoding, pieces that end with subword-nmt's `@@` are joined."""

    kind = SPACE
    model = b""

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.vocab.to_ids(line.split()) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        return join_subwords(" ".join(self.vocab.to_pieces(ids)))

    def surfaces(self, ids: Sequence[int]) -> list[str]:
        pieces = self.vocab.to_pieces(ids)
        inside = [False, *(piece.endswith("@@") for piece in pieces)]
        return [" " * (not joined) + piece.removesuffix("@@") for piece, joined in zip(pieces, inside, strict=False)]


def join_subwords(segmented: str) -> str:
    """Join the subwords of subword-nmt into words."""
    return f"{segmented} ".replace("@@ ", "").rstrip(" ")


def count_segmented(lines: Iterable[str]) -> int:
    """Count the lines with subword markers: subword-nmt's @@ or SentencePiece's ▁."""
    return sum("@@ " in line or "▁" in line for line in lines)


def check_kind(kind: object) -> None:
    """Raise UserError for a kind of tokenizer that this version does not know."""
    if kind not in KINDS:
        raise UserError(f"unknown tokenizer {kind!r}, only {', '.join(KINDS)} are known")


def make_tokenizer(kind: str, vocab: Vocabulary, model: bytes) -> Tokenizer:
    """Restore the tokenizer of a dataset or a checkpoint from its kind, vocabulary and model.

    Raises UserError for an unknown kind, or if the SentencePiece model does not match the vocabulary.
    """
    check_kind(kind)
    if kind == SPACE:
        return SpaceTokenizer(vocab)
    tokenizer = SentencePieceTokenizer(model)
    if tokenizer.vocab != vocab:
        raise UserError("the SentencePiece model and the vocabulary beside it do not belong together")
    return tokenizer


def tokenizer_differences(side: str, a: Tokenizer, b: Tokenizer) -> Iterator[str]:
    """Describe each difference of `b` from `a`, the tokenizers of one `side` (source or target)."""
    if len(a.vocab) != len(b.vocab):
        yield f"its {side} vocabulary has {len(b.vocab)} pieces, not {len(a.vocab)}"
    for number, (ours, theirs) in enumerate(zip(a.vocab.pieces, b.vocab.pieces, strict=False)):
        if ours != theirs:
            yield f"piece {number} of its {side} vocabulary is {theirs!r}, not {ours!r}"
    if (a.kind, a.model) != (b.kind, b.model):
        yield f"its {side} text is split into pieces by another tokenizer"


def train_sentencepiece(
    sentences: Iterable[str],
    *,
    vocab_size: int,
    model_type: str,
    character_coverage: float,
    byte_fallback: bool,
    threads: int,
) -> bytes:
    """Train a SentencePiece model on `sentences`, and return the content of its file.

    Its ids are those of the vocabulary, with PAD, UNK, BOS and EOS first. Raises UserError if SentencePiece fails, most
    often because the text is too small for `vocab_size`.
    """
    import io

    from sentencepiece import SentencePieceTrainer

    pad, unk, bos, eos = SPECIALS
    content = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=content,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            byte_fallback=byte_fallback,
            num_threads=threads,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=pad,
            unk_piece=unk,
            bos_piece=bos,
            eos_piece=eos,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2]  # after the position in SentencePiece's source code
        reason = reason or str(error)
        reason = _SENTENCEPIECE_OPTION.sub(lambda option: flag(option[1]), reason)
        raise UserError(f"--vocab-size {vocab_size}: SentencePiece failed: {reason}") from error
    return content.getvalue()

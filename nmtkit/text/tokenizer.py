"""Tokenizers: for raw text with SentencePiece or `nmtkit.text.moses_bpe`, and for segmented text.

nmt-preprocess learns the kinds in `LEARNED_KINDS`. Imported models use the other kinds.
"""

import codecs
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple, Protocol

from nmtkit.errors import UserError
from nmtkit.text.invisible import without_invisible
from nmtkit.text.moses_bpe import FINAL_MARK, INNER_MARK, MOSES_BPE, MosesBpeTokenizer
from nmtkit.text.spm_model import INVISIBLE_KEPT, LANGUAGE_CODE, SPLIT_SYMBOL, PieceType, read_model, read_symbols
from nmtkit.text.vocabulary import SPECIALS, UNK, Vocabulary, symbol_pattern
from nmtkit.wording import quoted

SENTENCEPIECE, SENTENCEPIECE_VOCAB, SPACE = "sentencepiece", "sentencepiece-vocab", "space"
LEARNED_KINDS = (SENTENCEPIECE, SPACE)
_LOOKUP_KINDS = (SENTENCEPIECE_VOCAB, MOSES_BPE)  # look up pieces in a vocabulary that both sides may share
KINDS = (*LEARNED_KINDS, *_LOOKUP_KINDS)
SENTENCEPIECE_KINDS = (SENTENCEPIECE, SENTENCEPIECE_VOCAB)  # their model is a SentencePiece model
_TAG = re.compile(r">>.*?<<", re.DOTALL)  # a Marian language tag at the beginning of a line
_TAG_WORD = re.compile(r"<[^<>]+>|>>[^<>]+<<|\[[^][]+\]|__\w+__")
_SPACE = "▁"  # spells a space in SentencePiece
_MARKS = (_SPACE, INNER_MARK, FINAL_MARK)  # mark subwords
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer(Protocol):
    """Converts text to ids and back. The ids never include PAD, BOS or EOS."""

    kind: str
    vocab: Vocabulary
    model: bytes  #: the SentencePiece model file, the settings of moses-bpe, or empty
    language_codes: Sequence[str]  #: pieces that begin each source, and each output unseen, as in NLLB; empty without

    def symbols(self) -> Collection[str]:
        """Return the pieces that are found in text before segmentation, such as tags. If words are pieces, these are
        the words that look like tags: `<2de>`, `[de]`, `>>de<<`, `__de__`."""

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Encode each line as ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a sequence of ids to text without line breaks."""

    def surfaces(self, ids: Sequence[int], text: str = "") -> list[str]:
        """Return the text that each id adds, with spaces before words. The last byte piece of a character adds all the
        bytes, and invalid bytes add U+FFFD. UNK belongs to its word, although `decode` may write it as a separate
        word or omit it. Some tokenizers need the encoded `text` to find that word."""


def without_space(ids: Sequence[int], vocab: Vocabulary) -> tuple[int, ...] | None:
    """Return ids of the same text directly after other text, without a space; None if there are no such pieces.

    Only SentencePiece includes spaces in pieces, so other ids stay unchanged.
    """
    first = vocab.pieces[ids[0]]
    if not first.startswith(_SPACE):
        return tuple(ids)
    spelled = (*vocab.to_ids([first.removeprefix(_SPACE)] if first != _SPACE else []), *ids[1:])
    return spelled if spelled and UNK not in spelled else None


def pieces_with(text: str, vocab: Vocabulary) -> list[int]:
    """Find the ids of pieces that contain a text, except special tokens and byte pieces."""
    pieces = enumerate(vocab.pieces[len(SPECIALS) :], len(SPECIALS))
    return [number for number, piece in pieces if text in piece and not _BYTE_PIECE.fullmatch(piece)]


def is_byte_piece(piece: str) -> bool:
    """Whether a piece spells a byte, such as `<0xE3>`."""
    return bool(_BYTE_PIECE.fullmatch(piece))


def is_character_piece(piece: str) -> bool:
    """Whether a piece spells a single character or byte, even if it also begins a word."""
    return len(piece.removeprefix(_SPACE)) <= 1 or is_byte_piece(piece)


def symbol_fault(symbol: str) -> str:
    """Explain why a text cannot be a symbol; empty if it can."""
    if not symbol or " " in symbol or not symbol.isprintable():
        return "a symbol needs printable characters without spaces"
    if any(mark in symbol for mark in _MARKS):
        return f"{', '.join(_MARKS)} mark subwords"
    if _BYTE_PIECE.fullmatch(symbol):
        return "the name of a byte"
    return "the name of a special token" if symbol in SPECIALS else ""


def decode_reference(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode a stored reference for scoring, with U+FFFD for unknown pieces, so that they match nothing in outputs."""
    text = tokenizer.decode(ids)
    if UNK not in ids:
        return text
    shown = tokenizer.decode([UNK]).strip()
    return text.replace(shown, "\ufffd") if shown else text


class SentencePieceTokenizer:
    """Tokenizes raw text by a SentencePiece model, and maps the model's ids to ids of the vocabulary.

    Removes invisible characters first, unless the model records that it keeps them.
    """

    kind = SENTENCEPIECE
    language_codes: Sequence[str] = ()

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor, texts = _load_processor(model)
        self._keeps_invisible = INVISIBLE_KEPT in model  # parsing all fields would take 0.1 seconds
        ids, unknown = list(range(len(texts))), self._processor.unk_id()
        is_control, is_unused = self._processor.is_control(ids), self._processor.is_unused(ids)  # of all: much faster
        model_ids = [i for i in ids if not (is_control[i] or i == unknown or is_unused[i])]
        pieces = [texts[i] for i in model_ids]
        for name in SPECIALS:
            if name in pieces:
                raise UserError(f"its piece {name!r} is ordinary text, but nmtkit needs that name for a special symbol")
        self.vocab = Vocabulary([*SPECIALS, *pieces])
        self._to_model = array("i", [unknown] * len(SPECIALS) + model_ids)  # a list takes ten times the memory
        self._to_vocab = array("i", [UNK] * len(ids))
        for number, i in enumerate(model_ids, len(SPECIALS)):
            self._to_vocab[i] = number
        self._unknown = self._processor.decode([unknown]).strip()
        # text contains no control pieces
        self._same_ids = [unknown, *model_ids] == [UNK, *range(len(SPECIALS), len(self.vocab))]

    def symbols(self) -> Collection[str]:
        return _user_defined(self.model)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        if not self._keeps_invisible:
            lines = list(map(without_invisible, lines))
        encoded: list[list[int]] = _encode(self._processor, lines, int)
        if self._same_ids:
            return encoded
        return [[self._to_vocab[i] for i in sentence] for sentence in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        text = self._processor.decode([self._to_model[i] for i in ids])
        if "\ufffd" in text:
            text = self._processor.decode([self._to_model[i] for i in _without_broken_characters(ids, self.vocab)])
        return _on_one_line(text)

    def surfaces(self, ids: Sequence[int], text: str = "") -> list[str]:
        added = _surfaces(self.vocab.to_pieces(ids))
        return [self._unknown or piece if number == UNK else piece for number, piece in zip(ids, added, strict=True)]


class SentencePieceVocabTokenizer:
    """Segments raw text by a SentencePiece model, and looks up the pieces in a vocabulary as strings.

    Hugging Face's Marian models work in this way: both sides share a vocabulary, and each has a model. Text is first
    split at the model's split symbols and language codes. Without codes, a tag like `>>de<<` at the beginning of a part
    is a piece. Pieces that the vocabulary lacks become UNK.
    """

    kind = SENTENCEPIECE_VOCAB

    def __init__(self, vocab: Vocabulary, model: bytes) -> None:
        self.vocab, self.model = vocab, model
        self._processor, _ = _load_processor(model)
        self.language_codes: Sequence[str] = read_symbols(model, LANGUAGE_CODE)
        self._split_symbols = [*read_symbols(model, SPLIT_SYMBOL), *self.language_codes]
        if UNK in vocab.to_ids(self._split_symbols):
            raise UserError("the SentencePiece model has a split symbol that is not in the vocabulary")
        self._symbol = symbol_pattern(self._split_symbols)
        self._common = "".join(set.intersection(*map(set, self._split_symbols or [""])))[:1]  # in each symbol
        self._without_text = {*range(len(SPECIALS)), *vocab.to_ids(self.language_codes)}

    def symbols(self) -> Collection[str]:
        return {*self._split_symbols, *_user_defined(self.model), *filter(is_marian_tag, self.vocab.pieces)}

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return list(map(self.vocab.to_ids, self._segmented(lines)))

    def _segmented(self, lines: Sequence[str]) -> Iterator[list[str]]:
        split_lines = [self._parts(line) for line in lines]
        texts = [text for parts in split_lines for text in parts[::2]]
        segmented: Iterator[list[str]] = iter(_encode(self._processor, texts, str))
        for parts in split_lines:
            pieces = next(segmented)
            for symbol in parts[1::2]:
                pieces += [symbol, *next(segmented)]
            yield pieces

    def _parts(self, line: str) -> list[str]:
        """Split a line into texts, at even positions, and the unsegmented pieces between them."""
        if self.language_codes and self._common not in line:  # hundreds of symbols take long to search for
            return [line]
        parts = []
        for number, part in enumerate(self._symbol.split(line)):
            tag = None if number % 2 or self.language_codes else _TAG.match(part)
            parts += ["", tag[0], part[tag.end() :]] if tag else [part]
        return parts

    def decode(self, ids: Sequence[int]) -> str:
        """Join pieces with the SentencePiece model. Special ids, including UNK, and language codes are omitted."""
        pieces = self.vocab.to_pieces([number for number in ids if number not in self._without_text])
        return _on_one_line(self._processor.decode(pieces).replace(_SPACE, " ").strip())

    def surfaces(self, ids: Sequence[int], text: str = "") -> list[str]:
        return _surfaces(self.vocab.to_pieces(ids, chain.from_iterable(self._segmented([text]))))


def is_marian_tag(piece: str) -> bool:
    """Whether a piece is a Marian language tag, such as `>>de<<`."""
    return len(piece) > 3 and piece.startswith(">>") and piece.endswith("<<")


def _user_defined(model: bytes) -> list[str]:
    return [piece.text for piece in read_model(model)[1] if piece.type == PieceType.USER_DEFINED]


def _load_processor(model: bytes) -> tuple[Any, list[str]]:
    """Load a SentencePiece model. Returns it with all its pieces. Raises UserError if it is malformed."""
    from sentencepiece import SentencePieceProcessor  # imported late, since it would double the time of `--help`

    processor = SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
        pieces = processor.id_to_piece(list(range(processor.get_piece_size())))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise UserError("not a SentencePiece model, or a damaged one") from error
    return processor, pieces


def _encode(processor: Any, lines: Sequence[str], out_type: type) -> Any:
    """Encode each line as model ids (`out_type` int) or as pieces (str)."""
    if len(lines) < 8:  # a list starts a thread, which takes longer than a few lines
        return [processor.encode(line, out_type=out_type) for line in lines]
    return processor.encode(list(lines), out_type=out_type, num_threads=1)


def _without_broken_characters(ids: Sequence[int], vocab: Vocabulary) -> Iterator[int]:
    """Yield the ids without byte pieces that do not spell a character."""
    for is_byte, group in groupby(ids, lambda number: bool(_BYTE_PIECE.fullmatch(vocab.pieces[number]))):
        if is_byte:
            spelled = bytes(int(vocab.pieces[number][3:5], 16) for number in group).decode(errors="ignore")
            group = iter(vocab.to_ids(f"<0x{byte:02X}>" for byte in spelled.encode()))
        yield from group


def _on_one_line(text: str) -> str:
    """Replace line breaks, which byte pieces can spell, with spaces."""
    return text.replace("\n", " ").replace("\r", " ")


def _surfaces(pieces: Iterable[str]) -> list[str]:
    """Return the text that each piece of a SentencePiece model adds, see `Tokenizer.surfaces`."""
    characters = codecs.getincrementaldecoder("utf-8")("replace")
    added: list[str] = []
    for piece in [*pieces, ""]:
        if byte := _BYTE_PIECE.fullmatch(piece):
            added.append(characters.decode(bytes.fromhex(byte[1])))
            continue
        if unfinished := characters.decode(b"", final=True):
            added[-1] += unfinished
        added.append(piece.replace(_SPACE, " "))
    return added[:-1]


class SpaceTokenizer:
    """Tokenizes segmented text at spaces. Decoding joins pieces that end with subword-nmt's `@@`."""

    kind = SPACE
    language_codes: Sequence[str] = ()
    model = b""

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab

    def symbols(self) -> Collection[str]:
        return list(filter(_TAG_WORD.fullmatch, self.vocab.pieces[len(SPECIALS) :]))

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [self.vocab.to_ids(line.split()) for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        return join_subwords(" ".join(self.vocab.to_pieces(ids)))

    def surfaces(self, ids: Sequence[int], text: str = "") -> list[str]:
        pieces = self.vocab.to_pieces(ids, text.split())
        inside = [False, *(piece.endswith("@@") for piece in pieces)]
        return [" " * (not joined) + piece.removesuffix("@@") for piece, joined in zip(pieces, inside, strict=False)]


def join_subwords(segmented: str) -> str:
    """Join subword-nmt's subwords into words."""
    return f"{segmented} ".replace("@@ ", "").rstrip(" ")


def count_segmented(text: str) -> int:
    """Count the lines of a text that have a subword marker: subword-nmt's @@ or SentencePiece's ▁."""

    def has_marker(text: str) -> bool:
        return _SPACE in text or ("@" in text and "@@ " in text)  # searching for one character is much faster

    return sum(map(has_marker, text.split("\n"))) if has_marker(text) else 0


def check_kind(kind: object) -> None:
    """Raise UserError for an unknown kind of tokenizer."""
    if kind not in KINDS:
        raise UserError(f"unknown tokenizer {quoted(kind)}: known kinds are {', '.join(KINDS)}")


def make_tokenizer(kind: str, vocab: Vocabulary | bytes, model: bytes) -> Tokenizer:
    """Restore the tokenizer of a dataset or a checkpoint from its kind, vocabulary (perhaps serialized) and model.

    Raises UserError for an unknown kind, a malformed model, or a model that does not match the vocabulary.
    """
    check_kind(kind)
    if kind == SENTENCEPIECE:  # the model contains the vocabulary, and a second one would take time and memory
        tokenizer = SentencePieceTokenizer(model)
        if tokenizer.vocab.to_bytes() != (vocab if isinstance(vocab, bytes) else vocab.to_bytes()):
            raise UserError("the SentencePiece model does not match the vocabulary")
        return tokenizer
    vocab = Vocabulary.from_bytes(vocab) if isinstance(vocab, bytes) else vocab
    if kind == SPACE:
        return SpaceTokenizer(vocab)
    return (MosesBpeTokenizer if kind == MOSES_BPE else SentencePieceVocabTokenizer)(vocab, model)


class StoredParts(NamedTuple):
    """The names under which the vocabulary and the model of one side are stored."""

    vocabulary: str
    model: str | None  #: None if no model is stored


def shares_vocabulary(source: Tokenizer, target: Tokenizer) -> bool:
    """Whether both sides use the same vocabulary, so that they can share embeddings."""
    return source.vocab is target.vocab


def shares_model(kind: str, joined: bool) -> bool:
    """Whether both sides use the same model; `joined` is whether they use the same vocabulary."""
    return joined and kind not in _LOOKUP_KINDS


def restore_tokenizers(
    kinds: tuple[str, str], parts: tuple[StoredParts, StoredParts], read: Callable[[str], bytes]
) -> tuple[Tokenizer, Tokenizer]:
    """Restore the tokenizers of both sides. `read` returns the content of a stored part by name.

    They are the same object if both sides have the same vocabulary and model. Raises UserError if a part is malformed.
    """

    first, second = parts
    is_joined = first.vocabulary == second.vocabulary
    if is_joined and kinds[1] != kinds[0]:
        raise UserError("both sides share a vocabulary, but have different kinds of tokenizers")
    source = make_tokenizer(kinds[0], read(first.vocabulary), read(first.model) if first.model else b"")
    model = read(second.model) if second.model else b""
    if is_joined and model == source.model:
        return source, source
    return source, make_tokenizer(kinds[1], source.vocab if is_joined else read(second.vocabulary), model)


def tokenizer_differences(first: tuple[Tokenizer, Tokenizer], other: tuple[Tokenizer, Tokenizer]) -> Iterator[str]:
    """Describe each difference of the `other` tokenizers of source and target from the `first` ones."""
    for side, a, b in zip(("source", "target"), first, other, strict=True):
        if len(a.vocab) != len(b.vocab):
            yield f"its {side} vocabulary has {len(b.vocab)} pieces, not {len(a.vocab)}"
        for number, (ours, theirs) in enumerate(zip(a.vocab.pieces, b.vocab.pieces, strict=False)):
            if ours != theirs:
                yield f"piece {number} of its {side} vocabulary is {theirs!r}, not {ours!r}"
        if (a.kind, a.model) != (b.kind, b.model):
            yield f"its {side} text is split into pieces by a different tokenizer"

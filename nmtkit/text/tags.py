"""Source tags: pieces such as `<2de>` at the beginning of a source line, from --source-tag or in the line itself."""

import shlex
from collections.abc import Collection, Iterable, Sequence

from nmtkit.errors import UserError
from nmtkit.text.languages import SEVERAL
from nmtkit.text.tokenizer import Tokenizer, is_marian_tag, symbol_fault
from nmtkit.text.vocabulary import UNK


def tag_ids(tag: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a tag: its piece, perhaps after a piece for the beginning of a word. An empty tag has none.

    Raises UserError if the tag is not one piece of the vocabulary.
    """
    if not tag:
        return []
    (ids,) = tokenizer.encode([tag])
    texts = [text.strip() for text in tokenizer.surfaces(ids)]
    if UNK in ids or [text for text in texts if text] != [tag]:
        raise not_a_piece(tag, tokenizer.vocab.pieces)
    return ids


def check_tag_apart(tag: str, tokenizer: Tokenizer) -> None:
    """Raise UserError if a tag is not one piece, or if text has different ids after a tag than without it.

    In the second case, text that contains the tag would differ from text to which `--source-tag` adds it. It depends on
    the normalization of a SentencePiece model: some add no space before a text.
    """
    if not tag:
        return
    ids = tag_ids(tag, tokenizer)
    for text in ("a", " a", ""):
        together, alone = tokenizer.encode([f"{tag} {text}", text])
        if together != ids + alone:
            raise UserError(
                f"--source-tag {tag!r}: this SentencePiece model segments a text differently after a tag: "
                "write the tag at the beginning of the lines instead"
            )


def tags_in_lines(tokenizer: Tokenizer, target_language: str) -> frozenset[int]:
    """Return the ids that are tags at the beginning of a line.

    These are language codes, the symbols of a multilingual model, and Marian tags such as `>>de<<`. In other models a
    symbol is text, such as a placeholder for a name.
    """
    symbols: Iterable[str] = tokenizer.language_codes
    if not symbols:
        symbols = tokenizer.symbols() if target_language == SEVERAL else filter(is_marian_tag, tokenizer.vocab.pieces)
    return frozenset(tokenizer.vocab.to_ids(symbols)) - {UNK}


def count_tag(ids: Sequence[int], tags: frozenset[int], tokenizer: Tokenizer) -> int:
    """Count the ids of a tag at the beginning of a line (one of `tags`, perhaps after a space); 0 without a tag."""
    for number, id in enumerate(ids[:2] if tags else (), 1):
        if id in tags:
            return number
        if tokenizer.surfaces([id])[0].strip():
            break
    return 0


def not_a_piece(tag: str, pieces: Collection[str] = ()) -> UserError:
    """Create the error for a tag that is not one piece. Its advice depends on the `pieces` of the vocabulary."""
    if reason := symbol_fault(tag):
        return UserError(f"--source-tag {tag!r}: {reason}: use a different tag")
    if tag in pieces:
        return UserError(f"--source-tag {tag!r}: the tokenizer splits it, although it is a piece: use a different tag")
    return UserError(
        f"--source-tag {tag!r} is not one piece of the vocabulary: preprocess with --user-symbol {shlex.quote(tag)}"
    )

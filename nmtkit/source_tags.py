"""Source tags (--source-tag): a piece such as `<2de>` before the text of every source line."""

import shlex

from nmtkit.errors import UserError
from nmtkit.tokenizer import Tokenizer
from nmtkit.vocab import UNK


def tag_ids(tag: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a tag: its piece, after a piece for the beginning of a word if the tokenizer has one. None if empty.

    Raises UserError for a tag that is not one piece of the vocabulary.
    """
    if not tag:
        return []
    (ids,) = tokenizer.encode([tag])
    texts = [text.strip() for text in tokenizer.surfaces(ids)]
    if UNK in ids or [text for text in texts if text] != [tag]:
        raise not_a_piece(tag)
    return ids


def not_a_piece(tag: str) -> UserError:
    """The error for a tag that is not one piece of the vocabulary."""
    return UserError(
        f"--source-tag {tag!r}: not one piece of the vocabulary: preprocess with --user-symbol {shlex.quote(tag)}"
    )

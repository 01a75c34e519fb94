"""Changes the vocabularies of a trained model: fewer pieces, new characters, a new symbol."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from nmtkit.errors import UserError
from nmtkit.text.spm_model import append_characters, mark_unused
from nmtkit.text.tokenizer import (
    SENTENCEPIECE_KINDS,
    SPACE,
    Tokenizer,
    is_byte_piece,
    is_character_piece,
    make_tokenizer,
)
from nmtkit.text.user_symbols import add_symbols
from nmtkit.text.vocabulary import SPECIALS, UNK, Vocabulary
from nmtkit.wording import quoted

Rows = list[list[int]]
Tokenizers = tuple[Tokenizer, Tokenizer]


class Changed(NamedTuple):
    """New tokenizers of both sides and, for each id, the former ids whose rows are averaged to its row."""

    tokenizers: Tokenizers
    rows: tuple[Rows, Rows]


def trimmed(tokenizers: Tokenizers, texts: Iterable[Sequence[str]]) -> Changed:
    """Return vocabularies with only the pieces that texts use, single characters, bytes and symbols.

    Text without dropped pieces is segmented as before, other text into smaller pieces. Raises UserError for a tokenizer
    that cannot do this.
    """
    _check_kinds(tokenizers, (*SENTENCEPIECE_KINDS, SPACE))
    kept = {id(each.vocab): set(range(len(SPECIALS))) for each in tokenizers}
    for each in tokenizers:
        basic = filter(is_character_piece, each.vocab.pieces)
        kept[id(each.vocab)].update(each.vocab.to_ids([*basic, *each.symbols()]))
    for lines in texts:
        for each in set(tokenizers):
            kept[id(each.vocab)].update(*each.encode(lines))
    pieces = {
        id(each.vocab): [(each.vocab.pieces[n], [n]) for n in sorted(kept[id(each.vocab)])] for each in tokenizers
    }

    def model_of(each: Tokenizer) -> bytes:
        dropped = {piece for n, piece in enumerate(each.vocab.pieces) if n not in kept[id(each.vocab)]}
        return each.model if each.kind == SPACE else mark_unused(each.model, dropped)

    return _changed(tokenizers, pieces, model_of)


def with_characters(tokenizers: Tokenizers, texts: Iterable[Sequence[str]]) -> Changed:
    """Return vocabularies with a new piece for each character of the texts that has none.

    Their rows are the mean of the bytes that have spelled them, or else of the pieces next to them. Raises UserError
    for a tokenizer without a SentencePiece model.
    """
    _check_kinds(tokenizers, SENTENCEPIECE_KINDS)
    known: dict[Tokenizer, set[str]] = {each: set() for each in tokenizers}
    found: dict[Tokenizer, dict[str, set[int]]] = {each: {} for each in tokenizers}
    for lines in texts:
        for each, missing in found.items():
            characters = sorted(set("".join(lines)) - known[each])
            known[each].update(characters)
            for character, ids in zip(characters, each.encode(characters), strict=True):
                spelled = {number for number in ids if is_byte_piece(each.vocab.pieces[number])}
                if character.isprintable() and not character.isspace() and (spelled or UNK in ids):
                    missing[character] = spelled
            for line, ids in zip(lines, each.encode(lines), strict=True) if missing else ():
                neighbors = {number for pair in pairwise(ids) if UNK in pair for number in pair} - {UNK}
                for character in set(line) & missing.keys():
                    missing[character] |= neighbors
    pieces = {id(each.vocab): [(piece, [n]) for n, piece in enumerate(each.vocab.pieces)] for each in tokenizers}
    for each, missing in found.items():
        present = {piece for piece, _ in pieces[id(each.vocab)]}
        pieces[id(each.vocab)] += [(new, sorted(ids) or [UNK]) for new, ids in missing.items() if new not in present]
    return _changed(tokenizers, pieces, lambda each: append_characters(each.model, found[each]))


def with_symbol(tokenizers: Tokenizers, symbol: str, like: str) -> Changed:
    """Return vocabularies with a symbol with the rows of `like`. Raises UserError if it exists or `like` does not."""
    source, target = ([*([n] for n in range(len(each.vocab))), each.vocab.to_ids([like])] for each in tokenizers)
    if source[-1] == target[-1] == [UNK]:
        symbols = sorted({each for side in tokenizers for each in side.symbols()})
        known = f"its symbols are {', '.join(symbols[:10])}" if symbols else "it has no symbols"
        raise UserError(f"--like {quoted(like)} is not a piece of the vocabulary: {known}")
    return Changed(add_symbols(tokenizers, [symbol], like), (source, target))


def _check_kinds(tokenizers: Tokenizers, kinds: Collection[str]) -> None:
    if other := {each.kind for each in tokenizers}.difference(kinds):
        supported = ", ".join(kinds)
        raise UserError(
            f"the vocabulary of a {other.pop()} tokenizer cannot be changed; supported tokenizers: {supported}"
        )


def _changed(
    tokenizers: Tokenizers, pieces: Mapping[int, list[tuple[str, list[int]]]], model_of: Callable[[Tokenizer], bytes]
) -> Changed:
    """Make tokenizers of pieces, each with former ids, by the `id` of the former vocabulary."""
    vocabularies = {key: Vocabulary(piece for piece, _ in pairs) for key, pairs in pieces.items()}
    made = {each: make_tokenizer(each.kind, vocabularies[id(each.vocab)], model_of(each)) for each in tokenizers}
    source, target = ([ids for _, ids in pieces[id(each.vocab)]] for each in tokenizers)
    return Changed((made[tokenizers[0]], made[tokenizers[1]]), (source, target))

"""User symbols (--user-symbol): pieces such as `<2de>` that are never split, at the end of a vocabulary."""

from collections.abc import Sequence
from dataclasses import replace

from nmtkit.errors import UserError
from nmtkit.text.moses_bpe import MOSES_BPE, MosesBpe
from nmtkit.text.spm_model import append_user_symbols
from nmtkit.text.tokenizer import SENTENCEPIECE_KINDS, Tokenizer, make_tokenizer, symbol_fault
from nmtkit.text.vocabulary import Vocabulary
from nmtkit.wording import quoted

#: Symbols that `nmt-preprocess --placeholders` adds, and that stand for text in inputs of the model.
PLACEHOLDERS = tuple(f"<ph{number}>" for number in range(1, 10))


def check_symbols(symbols: Sequence[str], name: str = "--user-symbol") -> None:
    """Raise UserError if a symbol is given twice, or cannot be a piece of every kind of tokenizer.

    `name` is the name of a symbol in the message.
    """
    seen: set[str] = set()
    for symbol in symbols:
        if reason := symbol_fault(symbol) or ("given twice" if symbol in seen else ""):
            raise UserError(f"{name} {quoted(symbol)}: {reason}")
        seen.add(symbol)


def add_symbols(
    tokenizers: tuple[Tokenizer, Tokenizer], symbols: Sequence[str], like: str = ""
) -> tuple[Tokenizer, Tokenizer]:
    """Return tokenizers with symbols added at the end of each vocabulary, which split text like the piece `like`.

    Vocabularies and tokenizers that both sides share stay shared. Raises UserError if a symbol is invalid, given twice
    or already a piece.
    """
    check_symbols(symbols)
    vocabularies: dict[int, Vocabulary] = {}
    for each in tokenizers:
        if present := set(symbols).intersection(each.vocab.pieces):
            raise UserError(f"--user-symbol {min(present)!r} is already a piece of the vocabulary: omit it")
        vocabularies[id(each.vocab)] = Vocabulary([*each.vocab.pieces, *symbols])
    made = {each: _with_symbols(each, vocabularies[id(each.vocab)], symbols, like) for each in {*tokenizers}}
    return made[tokenizers[0]], made[tokenizers[1]]


def _with_symbols(tokenizer: Tokenizer, vocabulary: Vocabulary, symbols: Sequence[str], like: str) -> Tokenizer:
    model = tokenizer.model
    if tokenizer.kind in SENTENCEPIECE_KINDS:
        model = append_user_symbols(model, symbols, like)
    elif tokenizer.kind == MOSES_BPE:
        settings = MosesBpe.from_bytes(model)
        model = replace(settings, symbols=(*settings.symbols, *symbols)).to_bytes()
    return make_tokenizer(tokenizer.kind, vocabulary, model)

"""Trains SentencePiece models."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, permutations
from tempfile import NamedTemporaryFile
from typing import Any
from unicodedata import normalize

from nmtkit.config import flag
from nmtkit.errors import UserError
from nmtkit.text.invisible import without_invisible
from nmtkit.text.spm_model import INVISIBLE_KEPT
from nmtkit.text.vocabulary import SPECIALS

NORMALIZATIONS = ("identity", "nfc", "nfkc", "nmt_nfkc")
_LONGEST_SENTENCE = 4192  # bytes; SentencePiece learns nothing from longer ones
_END = 0x30000  # code points from here on have no decomposition
# nmt-preprocess has options with the same names.
_SENTENCEPIECE_OPTION = re.compile(r"(?:--)?\b(vocab_size|model_type|character_coverage|byte_fallback)\b")
_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


def train_sentencepiece(
    sentences: Iterable[str],
    *,
    vocab_size: int,
    threads: int,
    normalization: str = "identity",
    keep_invisible: bool = False,
    user_symbols: Sequence[str] = (),
    **options: Any,
) -> bytes:
    """Train a SentencePiece model on `sentences`, and return the content of its file. Other `options` are those of
    SentencePiece.

    Its ids are the ids of the vocabulary: PAD, UNK, BOS and EOS, then `user_symbols`, then learned pieces. Raises
    UserError if SentencePiece fails, most often because `vocab_size` is too large or too small for the text.
    """
    from sentencepiece import SentencePieceTrainer

    pad, unk, bos, eos = SPECIALS
    content = io.BytesIO()
    texts = sentences if keep_invisible else map(without_invisible, sentences)
    try:
        with _rules_of(normalization) as rules:
            SentencePieceTrainer.train(
                sentence_iterator=chain.from_iterable(map(_cut, texts)),
                model_writer=content,
                vocab_size=vocab_size,
                **rules,
                **options,
                user_defined_symbols=list(user_symbols),
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
        if too_small := _TOO_SMALL.search(str(error)):
            raise UserError(
                f"--vocab-size {vocab_size} is too small for this text: use at least {too_small[1]}"
            ) from error
        reason = str(error).rpartition("] ")[2] or str(error)  # without the position in SentencePiece's source code
        reason = _SENTENCEPIECE_OPTION.sub(lambda option: flag(option[1]), reason)
        raise UserError(f"--vocab-size {vocab_size}: SentencePiece failed: {reason}") from error
    return content.getvalue() + (INVISIBLE_KEPT if keep_invisible else b"")


def _cut(sentence: str) -> Iterator[str]:
    """Split a sentence into parts that are short enough for SentencePiece, before spaces if possible."""
    content = sentence.encode()
    while len(content) > _LONGEST_SENTENCE:
        end = content.rfind(b" ", 1, _LONGEST_SENTENCE + 1)
        if end < 0:
            end = _LONGEST_SENTENCE
            while content[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
        yield content[:end].decode()
        content = content[end:]
    yield content.decode()


@contextmanager
def _rules_of(normalization: str) -> Iterator[dict[str, Any]]:
    if normalization != "nfc":
        yield {"normalization_rule_name": normalization}
        return
    with NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as file:
        file.writelines(f"{rule}\n" for rule in _nfc_rules())
        file.flush()
        yield {"normalization_rule_tsv": file.name}


def _nfc_rules() -> Iterator[str]:
    """Yield lines of a SentencePiece rule file: a decomposed spelling and its composed character, as code points."""
    for character in map(chr, range(0x80, _END)):
        if (decomposed := normalize("NFD", character)) == character:
            continue
        composed, base, *marks = normalize("NFC", character), *decomposed
        if composed != character:  # such as the angstrom sign
            yield _rule(character, composed)
        else:
            orders = map("".join, permutations(marks))
            spellings = {base + order for order in orders if normalize("NFC", base + order) == character}
            spellings |= {normalize("NFC", spelling[:-1]) + spelling[-1] for spelling in spellings}
            yield from (_rule(spelling, character) for spelling in sorted(spellings))


def _rule(spelling: str, character: str) -> str:
    return "\t".join(" ".join(f"{ord(one):X}" for one in text) for text in (spelling, character))

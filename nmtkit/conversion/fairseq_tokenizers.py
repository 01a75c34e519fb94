"""The vocabularies and tokenizers of fairseq models, and of FSMT models, which were converted from fairseq."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.folder import read_part
from nmtkit.conversion.weights import Side
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.moses_bpe import MosesBpe, MosesBpeTokenizer, read_codes
from nmtkit.text.spm_model import read_model
from nmtkit.text.tokenizer import SentencePieceVocabTokenizer, SpaceTokenizer, Tokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.wording import quoted

SPECIAL_PIECES = ("<s>", "<pad>", "</s>", "<unk>")  #: fairseq's ids from 0 on; those of nmtkit have another order
_SPECIAL_ROWS = (1, 3, 2, 2)  # fairseq's ids for PAD, UNK, BOS and EOS; its decoder starts with </s> instead of <s>
T = TypeVar("T")
_OVERWRITE = "#fairseq:overwrite"  # the entry replaces an earlier one with the same name
_CODES, _SENTENCEPIECE = ("bpecodes", "code"), "sentencepiece.bpe.model"
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}|__[a-z]{2,3}__")  # in NLLB and mBART; in M2M-100
_MOST_CODES_AS_WORDS = 20  # such as en_US in text about software; the first mBART has 25 codes


def joint(vocabularies: tuple[Vocabulary, Vocabulary]) -> tuple[Vocabulary, Vocabulary]:
    """Return both vocabularies, as one object if they are equal, so that embeddings can be shared."""
    source, target = vocabularies
    return (source, source) if source == target else (source, target)


def sides_of(tokenizers: Sequence[Tokenizer]) -> tuple[Side, Side]:
    """Return the source and target `Side` of a model whose pieces follow fairseq's four special ids."""
    source, target = (
        Side(tokenizer, [*_SPECIAL_ROWS, *range(len(SPECIAL_PIECES), len(tokenizer.vocab))], len(tokenizer.vocab))
        for tokenizer in tokenizers
    )
    return source, target


def tokenizer_files_beside(folder: Path) -> list[Path]:
    """List the files in the folder of a model that `fairseq_sides` may read."""
    return [*folder.glob("dict.*.txt"), *(folder / name for name in (*_CODES, _SENTENCEPIECE))]


def fairseq_sides(folder: Path, languages: tuple[str, str], options: ImportConfig) -> tuple[Side, Side]:
    """Return the source and target `Side` of a model, from files in `options` or usual files next to the model.

    With BPE codes, text is tokenized by Moses's rules. Without codes and without a SentencePiece model, it must already
    be segmented. Raises UserError if a file is missing or malformed.
    """
    if len(options.dict) not in (0, 2):
        raise UserError("--dict: give two dictionaries, source and target")
    paths = options.dict or tuple(folder / f"dict.{language}.txt" for language in languages)
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} is missing: give both dictionaries with --dict")
    source, target = joint((_read(paths[0], read_dictionary), _read(paths[1], read_dictionary)))
    if options.bpe_codes and options.spm_model:
        raise UserError("--bpe-codes and --spm-model are mutually exclusive: use one of them")
    in_folder = next(filter(Path.exists, [folder / name for name in _CODES]), None)
    codes = None if options.spm_model else options.bpe_codes or in_folder
    models = () if codes else options.spm_model or tuple(filter(Path.exists, [folder / _SENTENCEPIECE]))
    if codes:
        read = _read(codes, read_codes)
        settings = (MosesBpe(language, *read).to_bytes() for language in languages)
        return sides_of([MosesBpeTokenizer(v, each) for v, each in zip((source, target), settings, strict=True)])
    return sides_of(tokenizers_of((source, target), models))


def tokenizers_of(vocabularies: tuple[Vocabulary, Vocabulary], paths: Sequence[Path]) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of both sides: one SentencePiece model for both, one for each, or none for segmented text.

    Raises UserError for a SentencePiece model whose outputs begin with a language code.
    """
    if not paths:
        first = SpaceTokenizer(vocabularies[0])
        return first, first if vocabularies[0] is vocabularies[1] else SpaceTokenizer(vocabularies[1])
    if len(paths) > 2:
        raise UserError("--spm-model: give one SentencePiece model, or one each for source and target")
    models = [_read(path, bytes) for path in (paths[0], paths[-1])]
    source, target = map(SentencePieceVocabTokenizer, vocabularies, models)
    refuse_language_codes(target.vocab, target.model)
    return source, target


def refuse_language_codes(vocabulary: Vocabulary, model: bytes | None) -> None:
    """Raise UserError for the vocabulary of a model whose texts begin with a language code.

    The SentencePiece `model` never segments text into these codes. Without a model, a few may be words of the text.
    """
    codes = list(filter(_LANGUAGE_CODE.fullmatch, vocabulary.pieces))
    if model is not None and codes:
        known = {piece.text for piece in read_model(model)[1]}
        codes = [code for code in codes if code not in known]
    if len(codes) > (_MOST_CODES_AS_WORDS if model is None else 1):
        raise UserError(
            f"the vocabulary has language codes, such as {quoted(codes[0])}, which begin each text of NLLB, "
            "M2M-100 and mBART: these models are not supported"
        )


def read_dictionary(content: bytes) -> Vocabulary:
    """Parse a `dict.LANG.txt`, with a piece and its count in each line, but without special ids.

    An entry that no text can reach, because a later entry or a special id has its name, is renamed to `name#id`.
    Raises UserError for a malformed line.
    """
    pieces: dict[str, int] = {}
    names: list[str] = list(SPECIALS)
    for number, line in enumerate(content.decode().rstrip("\n").split("\n"), 1):
        piece, _, count = line.rstrip().rpartition(" ")
        replaces = count == _OVERWRITE
        if replaces:
            piece, _, count = piece.rpartition(" ")
        if not piece or not count.isdecimal():
            raise UserError(f"line {number} is not a piece and its count: not a fairseq dictionary")
        if (piece in pieces or piece in SPECIALS) and not replaces:
            raise UserError(f"line {number} lists {quoted(piece)} again, without {_OVERWRITE}")
        if piece in pieces:
            names[pieces[piece]] += f"#{pieces[piece]}"
        pieces[piece] = len(names)
        names.append(f"{piece}#{len(names)}" if piece in SPECIALS else piece)
    return Vocabulary(names)


def _read(path: Path, parse: Callable[[bytes], T]) -> T:
    with as_user_errors(path, "a file of a tokenizer"):
        return parse(read_part(path))

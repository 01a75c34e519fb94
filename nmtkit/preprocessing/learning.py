"""Provides the tokenizers, either learned from the training text or reused."""

import functools
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nmtkit.checkpoint import Checkpoint, checkpoint_in, load_checkpoint
from nmtkit.console.log import logger, working
from nmtkit.data.corpus import Dataset
from nmtkit.data.description import DESCRIPTION
from nmtkit.errors import UserError
from nmtkit.machine.workers import WorkerPool
from nmtkit.preprocessing.config import VocabularyConfig, default_vocab_size
from nmtkit.preprocessing.reasons import Marks
from nmtkit.preprocessing.scan import Corpus, Scan, Words, is_usable, read_blocks
from nmtkit.storage.files import map_numbers
from nmtkit.text.casing import capitalize_words
from nmtkit.text.languages import includes, side_names
from nmtkit.text.spm_training import train_sentencepiece
from nmtkit.text.tokenizer import SPACE, SentencePieceTokenizer, SpaceTokenizer, Tokenizer, shares_vocabulary
from nmtkit.text.user_symbols import PLACEHOLDERS, add_symbols
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.wording import counted

TRAINING_THREADS = 8  # fixed, since the model depends on it and --workers must not change the result

Tokenizers = tuple[Tokenizer, Tokenizer]  # source, target; the same object for a joined vocabulary that nmtkit learned


def reuse_tokenizers(config: VocabularyConfig, languages: tuple[str, str]) -> Tokenizers:
    """Take the tokenizers from --spm-model or --vocab-from, and add each --user-symbol. Raises UserError if they do not
    fit the other options."""
    if config.vocab_from is not None:
        reused = _fitting(_open(config.vocab_from), config, languages)
    else:
        assert config.spm_model is not None
        try:
            reused = (SentencePieceTokenizer(config.spm_model.read_bytes()),) * 2
        except (OSError, UserError) as error:
            raise UserError(f"--spm-model {config.spm_model}: {getattr(error, 'strerror', None) or error}") from error
    symbols = config.user_symbol if set(PLACEHOLDERS) <= set(reused[0].symbols()) else config.symbols
    return add_symbols(reused, symbols) if symbols else reused


def _open(path: Path) -> Dataset | Checkpoint:
    if (path / DESCRIPTION).exists():
        return Dataset.open(path)
    if not path.exists():
        raise UserError(f"--vocab-from {path}: no such file or folder: give a dataset or a checkpoint")
    if path.is_dir():
        raise UserError(f"--vocab-from {path} is a folder without {DESCRIPTION}: {checkpoint_in(path)}")
    return load_checkpoint(path)


def _fitting(given: Dataset | Checkpoint, config: VocabularyConfig, languages: tuple[str, str]) -> Tokenizers:
    """Return the tokenizers of `given`. Raises UserError if they do not fit the languages or the kind of text."""
    if given.source is not given.target and not includes(given.languages, languages):
        separate = "tokenizers" if shares_vocabulary(given.source, given.target) else "vocabularies"
        raise UserError(f"--vocab-from {config.vocab_from}: its separate {separate} are for different languages")
    if given.source.kind != given.target.kind:
        raise UserError(f"--vocab-from {config.vocab_from}: its sides have different kinds of tokenizers")
    if config.tokenizer == SPACE != given.source.kind:
        raise UserError(f"--vocab-from {config.vocab_from}: its tokenizer needs raw text: omit --tokenizer")
    return given.source, given.target


def learn_tokenizers(
    config: VocabularyConfig,
    corpora: Sequence[Corpus],
    scan: Scan,
    marks: Path | None,
    languages: tuple[str, str],
    pool: WorkerPool,
) -> Tokenizers:
    """Learn tokenizers from the training pairs that no filter drops, given the result of the first pass and the file
    with the mark of each pair, if there are marks."""
    if config.tokenizer == SPACE:
        counts = [scan.words[0] + scan.words[1]] if config.joined_vocab else scan.words
        tokenizers: list[Tokenizer] = [SpaceTokenizer(_frequent_words(words, config)) for words in counts]
    else:
        sides = [(0, 1)] if config.joined_vocab else [(0,), (1,)]
        logger.info("training %s", counted(len(sides), "SentencePiece model"))
        if config.byte_fallback is None and not config.has_byte_pieces:
            logger.info("small vocabulary: unseen characters become unknown tokens (use --byte-fallback to spell them)")
        text = TrainingText(corpora, scan.usable, marks)
        if config.vocab_size is None:
            size = default_vocab_size(text.pairs)
            logger.info("vocabulary of %d subwords, chosen for %s: see --vocab-size", size, counted(text.pairs, "pair"))
        train = functools.partial(_train, config=config, text=text, languages=languages)
        with working("training SentencePiece"):
            tokenizers = [SentencePieceTokenizer(model) for model in pool.map(train, sides)]
    return tokenizers[0], tokenizers[-1]


def _frequent_words(words: Words, config: VocabularyConfig) -> Vocabulary:
    """Create a vocabulary from user symbols and the most frequent words, by decreasing count, then by code points."""
    never = {*SPECIALS, *config.symbols}
    kept = [word for word, count in words.items() if count >= config.min_count and word not in never]
    if not kept:
        raise UserError(f"--min-count {config.min_count}: no word occurs that often: lower it")
    kept.sort(key=lambda word: (-words[word], word))
    kept = [*config.symbols, *kept]
    size = len(kept) if config.vocab_size is None else config.vocab_size - len(SPECIALS)
    return Vocabulary([*SPECIALS, *kept[:size]])


class TrainingText(NamedTuple):
    """The text to learn a vocabulary from."""

    corpora: Sequence[Corpus]
    pairs: int  #: kept by all filters
    marks: Path | None  #: file with the mark of each pair, if they have marks

    def blocks(self) -> Iterator[list[list[str]]]:
        """Yield the lines of both sides of each block, without pairs that a filter drops."""
        marks: Marks | None = None if self.marks is None else map_numbers(self.marks, np.uint8)
        begin = 0
        for blocks in read_blocks(self.corpora):
            end = begin + blocks[0].count
            lines = [block.lines() for block in blocks]
            yield lines if marks is None else [list(compress(side, is_usable(marks[begin:end]))) for side in lines]
            begin = end


def _train(sides: tuple[int, ...], config: VocabularyConfig, text: TrainingText, languages: tuple[str, str]) -> bytes:
    """Train a SentencePiece model on a sample of these sides (0 source, 1 target), in a worker to free its memory."""
    try:
        return train_sentencepiece(
            _with_capitals(_sample(sides, text, config.spm_sample, config.seed), config.vocab_capitals, config.seed),
            vocab_size=config.vocab_size or default_vocab_size(text.pairs),
            model_type=config.model_type,
            character_coverage=config.character_coverage,
            byte_fallback=config.has_byte_pieces,
            normalization=config.normalization,
            split_digits=config.split_digits,
            keep_invisible=config.keep_invisible,
            threads=TRAINING_THREADS,
            user_symbols=config.symbols,
        )
    except UserError as error:
        raise UserError(f"{' and '.join(side_names(languages)[side] for side in sides)}: {error}") from error


def _sample(sides: tuple[int, ...], text: TrainingText, count: int, seed: int) -> Iterator[str]:
    """Sample `count` sentences in order, or all if there are fewer."""
    total = text.pairs * len(sides)
    pairs = (zip(*(lines[side] for side in sides), strict=True) for lines in text.blocks())
    sentences, following = chain.from_iterable(chain.from_iterable(pairs)), 0
    for position in sample_positions(total, min(count, total), seed):
        yield from islice(sentences, position - following, position - following + 1)
        following = position + 1


def _with_capitals(sentences: Iterable[str], share: float, seed: int) -> Iterator[str]:
    """Follow this share of the sentences by a copy in capitals, and as many by a copy with capitalized words."""
    draw = random.Random(seed).random
    for sentence in sentences:
        yield sentence
        if draw() < share:
            yield sentence.upper()
        if draw() < share:
            yield capitalize_words(sentence)


def sample_positions(total: int, count: int, seed: int) -> Iterator[int]:
    """Sample `count` ascending positions below `total`, one in each of `count` equal intervals."""
    draw = random.Random(seed).random
    for number in range(count):
        low, high = number * total // count, (number + 1) * total // count
        yield low + int(draw() * (high - low))

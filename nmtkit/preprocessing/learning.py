"""Where the vocabulary comes from: learned from the training text, or taken over."""

import functools
import random
from collections.abc import Iterator, Sequence

from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.preprocessing.config import PIECES, VocabularyConfig
from nmtkit.preprocessing.scan import Corpus, Scan, Words, read_blocks
from nmtkit.text import read_bytes
from nmtkit.tokenizer import SPACE, SentencePieceTokenizer, SpaceTokenizer, Tokenizer, train_sentencepiece
from nmtkit.vocab import SPECIALS, Vocabulary
from nmtkit.wording import counted
from nmtkit.workers import WorkerPool

_LARGEST_MODEL = 1 << 28  # bytes of a SentencePiece model; those of a million pieces have some 30 MB

TRAINING_THREADS = 8  # not the number of workers: the model's bytes depend on it

Tokenizers = tuple[Tokenizer, Tokenizer]  # source, target; the same object when the vocabulary is joined


def take_over(config: VocabularyConfig, languages: tuple[str, str]) -> Tokenizers:
    """The tokenizers that `--spm-model` or `--vocab-from` names."""
    if config.vocab_from is not None:
        dataset = Dataset.open(config.vocab_from)
        if not dataset.joined and (dataset.source_language, dataset.target_language) != languages:
            raise UserError(f"--vocab-from {config.vocab_from}: its separate vocabularies are for other languages")
        if config.tokenizer == SPACE != dataset.source.kind:
            raise UserError(f"--vocab-from {config.vocab_from}: it splits raw text, not for --tokenizer {SPACE}")
        return dataset.source, dataset.target
    assert config.spm_model is not None
    try:
        tokenizer = SentencePieceTokenizer(read_bytes(config.spm_model, _LARGEST_MODEL))
    except (OSError, UserError) as error:
        raise UserError(f"--spm-model {config.spm_model}: {getattr(error, 'strerror', None) or error}") from error
    return tokenizer, tokenizer


def learn(
    config: VocabularyConfig, corpora: Sequence[Corpus], found: Scan, languages: tuple[str, str], pool: WorkerPool
) -> Tokenizers:
    """Tokenizers learned from the training text; `found` is what the first pass found in it."""
    if config.tokenizer == SPACE:
        counts = [found.words[0] + found.words[1]] if config.joined_vocab else found.words
        made: list[Tokenizer] = [SpaceTokenizer(_frequent(words, config)) for words in counts]
    else:
        sides = [(0, 1)] if config.joined_vocab else [(0,), (1,)]
        logger.info("training %s", counted(len(sides), "SentencePiece model"))
        train = functools.partial(_train, config=config, corpora=corpora, pairs=found.pairs, languages=languages)
        made = [SentencePieceTokenizer(model) for model in pool.map(train, sides)]
    return made[0], made[-1]


def _frequent(words: Words, config: VocabularyConfig) -> Vocabulary:
    """The words seen often enough, the most frequent first; equally frequent ones by their code points."""
    kept = [word for word, count in words.items() if count >= config.min_count and word not in SPECIALS]
    if not kept:
        raise UserError(f"--min-count {config.min_count}: there is no word so often, and so no vocabulary")
    kept.sort(key=lambda word: (-words[word], word))
    size = len(kept) if config.vocab_size is None else config.vocab_size - len(SPECIALS)
    return Vocabulary([*SPECIALS, *kept[:size]])


def _train(
    sides: tuple[int, ...],
    config: VocabularyConfig,
    corpora: Sequence[Corpus],
    pairs: int,
    languages: tuple[str, str],
) -> bytes:
    """Train a SentencePiece model on a sample of these sides (0 source, 1 target); in a worker, to spare the parent."""
    try:
        return train_sentencepiece(
            _sample(sides, corpora, pairs, config.spm_sample, config.seed),
            vocab_size=config.vocab_size or PIECES,
            model_type=config.model_type,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            threads=TRAINING_THREADS,
        )
    except UserError as error:
        raise UserError(f"{' and '.join(languages[side] for side in sides)}: {error}") from error


def _sample(sides: tuple[int, ...], corpora: Sequence[Corpus], pairs: int, wanted: int, seed: int) -> Iterator[str]:
    """`wanted` of the sentences in their order, or all if there are fewer."""
    total = pairs * len(sides)
    picks = sample_places(total, min(wanted, total), seed)
    pick = next(picks, None)
    place = 0
    for blocks in read_blocks(corpora):
        size = blocks[0].count * len(sides)
        sentences: list[str] = []
        while pick is not None and pick < place + size:
            sentences = sentences or _interleave([blocks[side].lines() for side in sides])
            yield sentences[pick - place]
            pick = next(picks, None)
        place += size


def _interleave(columns: Sequence[list[str]]) -> list[str]:
    return [sentence for row in zip(*columns, strict=True) for sentence in row]


def sample_places(total: int, wanted: int, seed: int) -> Iterator[int]:
    """`wanted` places below `total`, ascending: a random one in each of `wanted` equal stretches."""
    draw = random.Random(seed).random
    for number in range(wanted):
        low, high = number * total // wanted, (number + 1) * total // wanted
        yield low + int(draw() * (high - low))

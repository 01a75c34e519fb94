"""Raw text to a dataset folder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit.atomic_io import staged_folder
from nmtkit.data.corpus import Dataset, write_tokenizer
from nmtkit.data.description import SplitSummary, is_dataset_file, may_replace, write_description
from nmtkit.errors import UserError
from nmtkit.log import logger, report
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.dedup import HASHES, REPEATS, mark_repeats
from nmtkit.preprocessing.encoding import Encoder, encode_split
from nmtkit.preprocessing.learning import Tokenizers, learn, take_over
from nmtkit.preprocessing.scan import Corpus, Scan, scan
from nmtkit.text import find_side
from nmtkit.tokenizer import SENTENCEPIECE, SPACE
from nmtkit.vocab import unknown_percent, unknown_warning
from nmtkit.wording import counted
from nmtkit.workers import WorkerPool

TRAIN = "train"
_SEGMENTED = 0.05  # share of lines with marks of subwords, beyond what a text has by chance


def preprocess(files: FilesConfig, vocabulary: VocabularyConfig, cleaning: CleaningConfig) -> Dataset:
    """Make the dataset `files.destdir` from raw text, and open it.

    The text is read through once to check and count it, once for a SentencePiece model to be trained on a sample of
    it, and once to encode it. Raises UserError for text that is not sound, RunError when writing fails.
    """
    corpora = {name: [_find_pair(prefix, files) for prefix in prefixes] for name, prefixes in files.splits.items()}
    if vocabulary.is_learned and TRAIN not in corpora:
        raise UserError("no text to learn a vocabulary from: give --trainpref, --vocab-from or --spm-model")
    taken = None if vocabulary.is_learned else take_over(vocabulary, files.languages)
    with staged_folder(files.destdir, _is_own_file, may_replace) as folder, WorkerPool(files.workers) as pool:
        found, repeats = {}, None
        if TRAIN in corpora:
            count_words = vocabulary.is_learned and vocabulary.tokenizer == SPACE
            found[TRAIN], repeats = _scan_train(corpora[TRAIN], pool, count_words, cleaning.dedup, folder)
        for name in [name for name in corpora if name != TRAIN]:
            found[name] = scan(name, corpora[name], pool)
        if (taken[0].kind if taken else vocabulary.tokenizer) == SENTENCEPIECE:
            _warn_of_subwords(found, files.languages)
        tokenizers = taken or learn(vocabulary, corpora[TRAIN], found[TRAIN], files.languages, pool)
        _write_tokenizers(folder, files.languages, tokenizers)
        rows: list[SplitSummary] = []
        for name, paths in corpora.items():
            encoder = Encoder(*tokenizers, cleaning if name == TRAIN else None)
            marks = repeats if name == TRAIN else None
            row = encode_split(name, paths, found[name].pairs, encoder, marks, files.languages, folder, pool)
            _report(row, doubtful=taken is not None or name != TRAIN)
            if not row.sentences:
                raise UserError(
                    f"nothing of the text for {name} is left; dropped: {_drops(row)}: raise --max-length or --max-ratio"
                )
            rows.append(row)
        write_description(folder, files.languages, *tokenizers, rows)
    return Dataset.open(files.destdir)


def _is_own_file(name: str) -> bool:
    return is_dataset_file(name) or name in (HASHES, REPEATS)


def _find_pair(prefix: str, files: FilesConfig) -> Corpus:
    return Corpus(prefix, find_side(prefix, files.source_lang), find_side(prefix, files.target_lang))


def _scan_train(
    corpora: Sequence[Corpus], pool: WorkerPool, count_words: bool, dedup: bool, folder: Path
) -> tuple[Scan, NDArray[np.bool_] | None]:
    """The first pass over the training text, and which of its pairs are repeats if they are to be left out."""
    if not dedup:
        return scan(TRAIN, corpora, pool, count_words), None
    hashes = folder / HASHES
    with hashes.open("wb") as file:
        found = scan(TRAIN, corpora, pool, count_words, file)
    return found, mark_repeats(hashes)


def _warn_of_subwords(found: dict[str, Scan], languages: tuple[str, str]) -> None:
    """Warn of text that is segmented already, before SentencePiece segments it again."""
    for name, split in found.items():
        for language, marked in zip(languages, split.marked, strict=True):
            if marked > _SEGMENTED * split.pairs:
                logger.warning(
                    "%s.%s: marks of subwords (@@ or ▁) stand in %d of %s: segmented text needs --tokenizer space, "
                    "raw text has none",
                    *(name, language, marked, counted(split.pairs, "line")),
                )


def _write_tokenizers(folder: Path, languages: tuple[str, str], tokenizers: Tokenizers) -> None:
    source, target = tokenizers
    if source is target:
        write_tokenizer(folder, source, None)
    else:
        for language, tokenizer in zip(languages, tokenizers, strict=True):
            write_tokenizer(folder, tokenizer, language)
    sizes = {language: len(side.vocab) for language, side in zip(languages, tokenizers, strict=True)}
    report("vocabulary", {**sizes, "joined": source is target})


def _report(row: SplitSummary, doubtful: bool) -> None:
    """Say what became of a split: sentences, tokens and unknown ones a side, what was dropped.

    That much is unknown is in doubt where the vocabulary was not learned from this very text.
    """
    values: dict[str, object] = {"split": row.name, "sentences": row.sentences}
    for language, tokens in row.tokens.items():
        values[f"{language} tokens"] = tokens
        percent = unknown_percent(row.unknown[language], tokens)
        values[f"{language} unknown %"] = percent
        if doubtful and (doubt := unknown_warning(f"{row.name}.{language}", percent)):
            logger.warning("%s", doubt)
    report("encoded", {**values, "dropped": _drops(row)})


def _drops(row: SplitSummary) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(row.dropped.items())) or "nothing"

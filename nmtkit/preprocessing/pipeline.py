"""The pipeline of nmt-preprocess: from raw text to a dataset folder."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit.atomic_io import staged_folder
from nmtkit.data.corpus import Dataset, write_tokenizers
from nmtkit.data.description import SplitSummary, is_dataset_file, may_replace, write_description
from nmtkit.errors import RunError, UserError
from nmtkit.log import logger, report, write_table
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.dedup import DUPLICATES_FILE, HASHES_FILE, mark_duplicates
from nmtkit.preprocessing.encoding import Encoder, encode_split
from nmtkit.preprocessing.learning import HasTokenizers, Tokenizers, learn_tokenizers, reuse_tokenizers
from nmtkit.preprocessing.line_encoder import make_line_encoders
from nmtkit.preprocessing.scan import Corpus, Scan, scan
from nmtkit.terminal import Table
from nmtkit.text import find_side
from nmtkit.tokenizer import SPACE, shares_vocabulary
from nmtkit.vocab import unknown_percent, unknown_warning
from nmtkit.wording import counted
from nmtkit.workers import WorkerPool

TRAIN = "train"
_SEGMENTED_SHARE = 0.05  # of lines with subword markers: more than raw text has by chance


def preprocess(
    files: FilesConfig, vocabulary: VocabularyConfig, cleaning: CleaningConfig, given: HasTokenizers | None = None
) -> Dataset:
    """Make the dataset `files.destdir` from raw text, and open it.

    `given` is the checkpoint that `vocabulary.vocab_from` names, if it names one; opening that needs torch.
    The text is read once to validate and count it, once to sample sentences for SentencePiece training, and once to
    encode it. Raises UserError for invalid text, and RunError if writing fails or the text changes meanwhile.
    """
    corpora = {name: [_find_corpus(prefix, files) for prefix in prefixes] for name, prefixes in files.splits.items()}
    if vocabulary.is_learned and TRAIN not in corpora:
        raise UserError("no text to learn a vocabulary from: give --trainpref, --vocab-from or --spm-model")
    reused = None if vocabulary.is_learned else reuse_tokenizers(vocabulary, files.languages, given)
    versions = _versions(corpora)
    with (
        staged_folder(files.destdir, _is_dataset_or_temporary, may_replace) as folder,
        WorkerPool(files.workers) as pool,
    ):
        scans, duplicates = {}, None
        if TRAIN in corpora:
            count_words = vocabulary.is_learned and vocabulary.tokenizer == SPACE
            scans[TRAIN], duplicates = _scan_train(corpora[TRAIN], pool, count_words, cleaning.dedup, folder)
        for name in [name for name in corpora if name != TRAIN]:
            scans[name] = scan(name, corpora[name], pool)
        if (reused[0].kind if reused else vocabulary.tokenizer) != SPACE:
            _warn_if_segmented(scans, files.languages)
        tokenizers = reused or learn_tokenizers(vocabulary, corpora[TRAIN], scans[TRAIN], files.languages, pool)
        _write_tokenizers(folder, files.languages, tokenizers)
        line_encoders = make_line_encoders(*tokenizers)
        summaries: list[SplitSummary] = []
        for name, paths in corpora.items():
            encoder = Encoder(*line_encoders, cleaning if name == TRAIN else None)
            marks = duplicates if name == TRAIN else None
            summary = encode_split(name, paths, scans[name].pairs, encoder, marks, files.languages, folder, pool)
            _report(summary, warn_unknown=reused is not None or name != TRAIN)
            if not summary.sentences:
                raise UserError(
                    f"every sentence pair of {name} was dropped ({_format_dropped(summary)}): "
                    "raise --max-length or --max-ratio"
                )
            summaries.append(summary)
        if changed := [str(path) for path, version in _versions(corpora).items() if version != versions[path]]:
            raise RunError(f"{changed[0]} has changed while it was read: run the command again")
        write_description(folder, files.languages, *tokenizers, summaries)
    write_table(_table(summaries, files.destdir))
    return Dataset.open(files.destdir)


def _versions(corpora: Mapping[str, Sequence[Corpus]]) -> dict[Path, tuple[int, int, int]]:
    """The identity, size and time of change of each file of text: each is read several times."""
    paths = [path for split in corpora.values() for corpus in split for path in (corpus.source, corpus.target)]
    return {path: (found.st_ino, found.st_size, found.st_mtime_ns) for path in paths for found in [path.stat()]}


def _is_dataset_or_temporary(name: str) -> bool:
    return is_dataset_file(name) or name in (HASHES_FILE, DUPLICATES_FILE)


def _find_corpus(prefix: str, files: FilesConfig) -> Corpus:
    return Corpus(prefix, find_side(prefix, files.source_lang), find_side(prefix, files.target_lang))


def _scan_train(
    corpora: Sequence[Corpus], pool: WorkerPool, count_words: bool, dedup: bool, folder: Path
) -> tuple[Scan, NDArray[np.bool_] | None]:
    """Run the first pass over the training text, and with `dedup` mark its duplicates."""
    if not dedup:
        return scan(TRAIN, corpora, pool, count_words), None
    hashes = folder / HASHES_FILE
    with hashes.open("wb") as file:
        result = scan(TRAIN, corpora, pool, count_words, file)
    return result, mark_duplicates(hashes)


def _warn_if_segmented(scans: dict[str, Scan], languages: tuple[str, str]) -> None:
    """Warn if text looks segmented already, since SentencePiece would segment it again."""
    for name, found in scans.items():
        for language, segmented in zip(languages, found.segmented, strict=True):
            if segmented > _SEGMENTED_SHARE * found.pairs:
                logger.warning(
                    "%s.%s: %d of %s have subword marks (@@ or ▁): use --tokenizer space for segmented text, "
                    "or give raw text",
                    *(name, language, segmented, counted(found.pairs, "line")),
                )


def _write_tokenizers(folder: Path, languages: tuple[str, str], tokenizers: Tokenizers) -> None:
    write_tokenizers(folder, languages, *tokenizers)
    sizes = {language: len(side.vocab) for language, side in zip(languages, tokenizers, strict=True)}
    report("vocabulary", {**sizes, "joined": shares_vocabulary(*tokenizers)})


def _report(summary: SplitSummary, warn_unknown: bool) -> None:
    """Log the summary of a split: sentences, tokens and unknown tokens of each side, dropped pairs.

    `warn_unknown` adds a warning about many unknown tokens. It is off for the text that the vocabulary was learned
    from.
    """
    values: dict[str, object] = {"split": summary.name, "sentences": summary.sentences}
    for language, tokens in summary.tokens.items():
        values[f"{language} tokens"] = tokens
        percent = unknown_percent(summary.unknown[language], tokens)
        values[f"{language} unknown %"] = percent
        if warn_unknown and (warning := unknown_warning(f"{summary.name}.{language}", percent)):
            logger.warning("%s", warning)
    report("encoded", {**values, "dropped": _format_dropped(summary)})


def _table(summaries: Sequence[SplitSummary], folder: Path) -> Table:
    """All splits in a table: sentence pairs, tokens and unknown tokens of each side, pairs dropped by reason."""
    languages = list(summaries[0].tokens)
    reasons = sorted({reason for summary in summaries for reason in summary.dropped})
    return Table(
        f"dataset {folder}",
        [
            (
                summary.name,
                summary.sentences,
                *(summary.tokens[language] for language in languages),
                *(unknown_percent(summary.unknown[language], summary.tokens[language]) for language in languages),
                *(summary.dropped.get(reason, 0) for reason in reasons),
            )
            for summary in summaries
        ],
        (
            *("split", "pairs"),
            *(f"{language} tokens" for language in languages),
            *(f"{language} unknown %" for language in languages),
            *(f"dropped: {reason}" for reason in reasons),
        ),
        next=f"nmt-train {shlex.quote(str(folder))} --save-dir {shlex.quote(f'checkpoints/{folder.name}')}",
    )


def _format_dropped(summary: SplitSummary) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(summary.dropped.items())) or "nothing"

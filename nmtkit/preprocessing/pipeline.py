"""The pipeline of nmt-preprocess: from raw text to a dataset folder."""

import functools
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nmtkit.console.log import Progress, logger, report, styled, write_table
from nmtkit.console.terminal import Table
from nmtkit.data.corpus import Dataset, read_tokenizers, write_tokenizers
from nmtkit.data.description import is_dataset_file, may_replace, write_description
from nmtkit.errors import RunError, UserError
from nmtkit.machine.workers import WorkerPool
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.dedup import HASHES_FILE, mark_duplicates
from nmtkit.preprocessing.encoded import EncodedSplit
from nmtkit.preprocessing.encoding import Encoder, encoding_tasks
from nmtkit.preprocessing.filters import PairMarker, make_marker
from nmtkit.preprocessing.learning import Tokenizers, learn_tokenizers, reuse_tokenizers
from nmtkit.preprocessing.line_encoder import make_line_encoders
from nmtkit.preprocessing.pair_files import divide, pair_format
from nmtkit.preprocessing.progress import SavedProgress, identify_task
from nmtkit.preprocessing.reasons import KEPT, all_dropped_message, by_reason, format_dropped
from nmtkit.preprocessing.report import corpus_row, write_report
from nmtkit.preprocessing.scan import Corpus, Scan, Scanner, scan
from nmtkit.preprocessing.split_writer import SplitWriter
from nmtkit.storage.atomic import resolve, staged_folder
from nmtkit.storage.files import map_numbers
from nmtkit.storage.outputs import check_output_file, check_output_folder
from nmtkit.text.languages import find_code, side_names
from nmtkit.text.reading import find_side
from nmtkit.text.tags import check_tag_apart, not_a_piece
from nmtkit.text.tokenizer import SPACE, shares_vocabulary
from nmtkit.text.vocabulary import unknown_percent, warn_of_unknown
from nmtkit.wording import counted

TRAIN = "train"
MARKS_FILE = "marks"  #: temporary file in the dataset folder: the mark of each training pair
_SEGMENTED_SHARE = 0.05  # of lines have subword markers: more than raw text contains by chance


def preprocess(files: FilesConfig, vocabulary: VocabularyConfig, cleaning: CleaningConfig) -> Dataset:
    """Create the dataset `files.destdir` from raw text, and open it.

    The text is read once to validate, count and filter it, once to sample sentences for SentencePiece training, and
    once to encode it. With --shard-size, a killed run is resumed. Raises UserError for invalid text, and RunError if
    writing fails.
    """
    divided = files.destdir.parent / f".{files.destdir.name}.pairs"
    try:
        return _preprocess(files, vocabulary, cleaning, divided)
    finally:
        shutil.rmtree(divided, ignore_errors=True)


def _preprocess(files: FilesConfig, vocabulary: VocabularyConfig, cleaning: CleaningConfig, divided: Path) -> Dataset:
    """Create the dataset. The sides of TSV and TMX files are written to the folder `divided`."""
    corpora = {
        name: [_find_corpus(prefix, files, divided / f"{name}{number}") for number, prefix in enumerate(prefixes)]
        for name, prefixes in files.splits.items()
    }
    if vocabulary.is_learned and TRAIN not in corpora:
        raise UserError("no text to learn a vocabulary from: give --trainpref, --vocab-from or --spm-model")
    texts = [path for split in corpora.values() for corpus in split for path in (corpus.source, corpus.target)]
    check_outputs(files, [*texts, vocabulary.vocab_from, vocabulary.spm_model, *cleaning.files])
    reused = None if vocabulary.is_learned else reuse_tokenizers(vocabulary, files.languages)
    tags = _tags(files, vocabulary, reused)
    marker = make_marker(cleaning, files.languages) if TRAIN in corpora else None
    task = identify_task(files, vocabulary, cleaning, [*texts, *cleaning.files], reused)
    with (
        staged_folder(files.destdir, may_replace, lambda made: SavedProgress.load(made, task) is not None) as folder,
        WorkerPool(files.workers) as pool,
    ):
        progress = SavedProgress.resume(folder, task)
        if progress is None:
            tokenizers, pairs = _first_pass(files, vocabulary, corpora, marker, reused, folder, pool)
            progress = SavedProgress(task, pairs)
            if files.shard_bytes:
                progress.save(folder)
        else:
            logger.info("resuming after %s", progress.describe())
            kinds = vocabulary.tokenizer, vocabulary.tokenizer
            tokenizers = reused or read_tokenizers(folder, kinds, vocabulary.joined_vocab, files.languages)
        _second_pass(progress, corpora, files, cleaning, tokenizers, vocabulary, tags, folder, pool)
        summaries = [split.summary(files.languages) for split in progress.splits]
        write_description(folder, files.languages, *tokenizers, summaries, tags[0], progress.files)
        try:
            dataset = Dataset.open(folder)
        except UserError as error:  # files do not match the description: they must not replace an earlier dataset
            raise RunError(str(error)) from error
        for path in folder.iterdir():
            if not is_dataset_file(path.name):
                path.unlink()
    dataset.folder = files.destdir  # the folder was renamed
    if files.report:
        write_report(files.report, dataset, progress.splits[0])
    _show_result(progress.splits, dataset)
    return dataset


def _first_pass(
    files: FilesConfig,
    vocabulary: VocabularyConfig,
    corpora: Mapping[str, Sequence[Corpus]],
    marker: PairMarker | None,
    reused: Tokenizers | None,
    folder: Path,
    pool: WorkerPool,
) -> tuple[Tokenizers, dict[str, int]]:
    """Scan the text, and create and write the tokenizers. Returns them and the number of pairs in each split."""
    scanner = Scanner(vocabulary.is_learned and vocabulary.tokenizer == SPACE, marker)
    scans = {}
    for name, paths in corpora.items():
        if name == TRAIN and marker:
            scans[name] = _scan_and_mark(paths, scanner, marker.config.removes_duplicates, folder, pool)
        else:
            scans[name] = scan(name, paths, pool, scanner if name == TRAIN else Scanner())
    if (reused[0].kind if reused else vocabulary.tokenizer) != SPACE:
        _warn_if_segmented(scans, files.languages)
    marks = folder / MARKS_FILE if marker else None
    tokenizers = reused or learn_tokenizers(vocabulary, corpora[TRAIN], scans[TRAIN], marks, files.languages, pool)
    write_tokenizers(folder, files.languages, *tokenizers)
    sizes = {name: len(side.vocab) for name, side in zip(side_names(files.languages), tokenizers, strict=True)}
    report("vocabulary", {**sizes, "joined": shares_vocabulary(*tokenizers)})
    return tokenizers, {name: found.pairs for name, found in scans.items()}


def _second_pass(
    progress: SavedProgress,
    corpora: Mapping[str, Sequence[Corpus]],
    files: FilesConfig,
    cleaning: CleaningConfig,
    tokenizers: Tokenizers,
    vocabulary: VocabularyConfig,
    tags: tuple[str, str],
    folder: Path,
    pool: WorkerPool,
) -> None:
    """Encode the text after the complete shards of `progress`, and report each split."""
    line_encoders, marks = make_line_encoders(*tokenizers), folder / MARKS_FILE
    sides, sizes = side_names(files.languages), (len(tokenizers[0].vocab), len(tokenizers[1].vocab))
    for name, paths in corpora.items():
        is_cleaned = name == TRAIN
        split = progress.split(name, [corpus.prefix for corpus in paths])
        if split.lines < progress.pairs[name]:
            seed = vocabulary.seed if vocabulary.placeholders and is_cleaned else None
            encoder = Encoder(*line_encoders, cleaning if is_cleaned else None, tags, seed)
            given_marks = map_numbers(marks, np.uint8) if is_cleaned and marks.exists() else None
            tasks = encoding_tasks(paths, given_marks, split.lines)
            save = functools.partial(progress.save, folder)
            with (
                SplitWriter(folder, split, sides, sizes, files.shard_bytes, save) as writer,
                Progress(f"encoding {name}", total=progress.pairs[name], unit="pairs", done=split.lines) as bar,
            ):
                for block in pool.map(encoder, tasks):
                    writer.write(block)
                    bar.advance(len(block.marks))
        _report(split, files.languages, warn_unknown=not (is_cleaned and vocabulary.is_learned))


def check_outputs(files: FilesConfig, inputs: Sequence[Path | None]) -> None:
    """Raise UserError if the dataset or the page of --report cannot be written, or would replace an input."""
    check_output_folder(files.destdir, inputs)
    if files.report is None:
        return
    if resolve(files.report).is_relative_to(resolve(files.destdir)):
        raise UserError(f"--report {files.report}: a dataset folder may contain no other files: use a different one")
    check_output_file(files.report, inputs)


def _find_corpus(prefix: str, files: FilesConfig, folder: Path) -> Corpus:
    if pair_format(prefix) is not None:
        return Corpus(prefix, *divide(Path(prefix), files.languages, folder))
    source, target = side_names(files.languages)
    return Corpus(prefix, find_side(prefix, source), find_side(prefix, target))


def _tags(files: FilesConfig, vocabulary: VocabularyConfig, reused: Tokenizers | None) -> tuple[str, str]:
    """Return the tags before source and target lines: --source-tag, or both codes of a model with language codes.
    Raises UserError if a tag will not be one piece."""
    tags = files.source_tag, ""
    if reused is not None:
        if codes := reused[1].language_codes:
            source, target = (find_code(language, codes) for language in files.languages)
            tags = files.source_tag or source, target
        check_tag_apart(tags[0], reused[0])
    elif tags[0] and tags[0] not in vocabulary.symbols:
        raise not_a_piece(tags[0])
    return tags


def _scan_and_mark(corpora: Sequence[Corpus], scanner: Scanner, dedup: bool, folder: Path, pool: WorkerPool) -> Scan:
    """Scan the training text, and write the mark of each pair, including duplicates, to `MARKS_FILE`."""
    marks, hashes = folder / MARKS_FILE, folder / HASHES_FILE
    with marks.open("wb") as marks_file, hashes.open("wb") as hashes_file:
        result = scan(TRAIN, corpora, pool, scanner, (marks_file, hashes_file))
    if not result.marked[KEPT]:
        raise UserError(all_dropped_message(TRAIN, by_reason(result.marked)))
    if dedup:
        kept = np.fromfile(marks, np.uint8)
        mark_duplicates(hashes, kept)
        marks.write_bytes(kept.data)
    hashes.unlink()
    return result


def _warn_if_segmented(scans: dict[str, Scan], languages: tuple[str, str]) -> None:
    """Warn if the text looks segmented, because SentencePiece would segment it again."""
    for name, found in scans.items():
        for side, segmented in zip(side_names(languages), found.segmented, strict=True):
            if segmented > _SEGMENTED_SHARE * found.pairs:
                logger.warning(
                    "%s.%s: %d of %s have subword marks (@@ or ▁): use --tokenizer space for segmented text, "
                    "or give raw text",
                    *(name, side, segmented, counted(found.pairs, "line")),
                )


def _report(split: EncodedSplit, languages: tuple[str, str], warn_unknown: bool) -> None:
    """Log the counts of a split and, if there are several, of its corpora. `warn_unknown` is off for text that the
    vocabulary was learned from."""
    summary = split.summary(languages)
    values: dict[str, object] = {"split": summary.name, "sentences": summary.sentences}
    for side, tokens in summary.tokens.items():
        values[f"{side} tokens"] = tokens
        percent = unknown_percent(summary.unknown[side], tokens)
        values[f"{side} unknown %"] = percent
        if warn_unknown:
            warn_of_unknown(f"{summary.name}.{side}", percent)
    if len(split.corpora) > 1:
        for corpus in split.corpora:
            report(
                "corpus",
                corpus_row(corpus, side_names(languages)) | {"dropped": format_dropped(by_reason(corpus.marks))},
            )
    report("encoded", {**values, "dropped": format_dropped(summary.dropped)})
    if not summary.sentences:
        raise UserError(all_dropped_message(summary.name, summary.dropped))


def _show_result(encoded: Sequence[EncodedSplit], dataset: Dataset) -> None:
    """Show a table of all corpora, only on a terminal, and the next command."""
    sides = side_names(dataset.languages)
    rows = [{"split": split.name, **corpus_row(corpus, sides)} for split in encoded for corpus in split.corpora]
    folder = dataset.folder
    command = f"nmt-train {shlex.quote(str(folder))} --save-dir {shlex.quote(f'checkpoints/{folder.name}')}"
    dropped = dataset.summaries[encoded[0].name].dropped
    if dropped:
        write_table(Table("dropped pairs", list(dropped.items()), ("reason", "pairs")))
    write_table(Table(f"dataset {folder}", [[*row.values()] for row in rows], [*rows[0]], next=command))
    if not styled() and encoded[0].name == TRAIN:
        logger.info("next: %s", command)

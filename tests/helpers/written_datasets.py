"""Datasets written without nmt-preprocess."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nmtkit.checkpoint import Checkpoint
from nmtkit.data.binary import TokenFileWriter
from nmtkit.data.corpus import write_tokenizers
from nmtkit.data.description import SplitSummary, split_stem, write_description
from nmtkit.text.vocabulary import EOS

PAIRS = [("the dog runs", "der hund läuft"), ("", ""), ("a cat", "eine katze")]


def write_dataset(folder: Path, checkpoint: Checkpoint, pairs: Sequence[tuple[str, str]] = PAIRS) -> Path:
    """Write a dataset with the split `test` and the languages and vocabulary of a checkpoint."""
    languages = (checkpoint.source_language, checkpoint.target_language)
    folder.mkdir()
    write_tokenizers(folder, languages, checkpoint.source, checkpoint.source)
    counts = {}
    for language, texts in zip(languages, zip(*pairs, strict=True), strict=True):
        sentences = [[*ids, EOS] for ids in checkpoint.source.encode(texts)]
        with TokenFileWriter(split_stem(folder, "test", language), len(checkpoint.source.vocab)) as writer:
            tokens = np.array([token for ids in sentences for token in ids], dtype="<u2")
            writer.write(tokens, np.array([len(ids) for ids in sentences], dtype=np.int32))
        counts[language] = len(tokens)
    row = SplitSummary("test", len(pairs), counts, {"en": 0, "de": 0}, {}, [("text", len(pairs))])
    write_description(folder, languages, checkpoint.source, checkpoint.source, [row])
    return folder

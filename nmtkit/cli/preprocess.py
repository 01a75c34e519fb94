"""nmt-preprocess: raw text to a dataset."""

from typing import Any

from nmtkit.cli.command import command
from nmtkit.cli.options import options, refuse_idle
from nmtkit.config import flag
from nmtkit.log import LogConfig, configure
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.tokenizer import SPACE

LEARNING = ("model_type", "character_coverage", "byte_fallback", "spm_sample", "seed")  # of a SentencePiece model


def refuse_idle_options(values: dict[str, Any]) -> None:
    """Options that would change nothing, given what else was chosen."""
    for source in ("spm_model", "vocab_from"):
        if values[source] is not None:
            refuse_idle((*LEARNING, "vocab_size", "min_count"), f"with {flag(source)}: nothing is learned")
    if values["vocab_from"] is not None:
        refuse_idle(["joined_vocab"], "with --vocab-from: it is joined or separate as that dataset's is")
    if values["tokenizer"] == SPACE:
        refuse_idle(LEARNING, "with --tokenizer space: no SentencePiece model is learned")
    else:
        refuse_idle(["min_count"], "but with --tokenizer space")
    if not values["trainpref"]:
        refuse_idle(["max_length", "max_ratio", "dedup"], "without --trainpref: only training text is cleaned")


@command("nmt-preprocess")
@options(refuse_idle_options, files=FilesConfig, vocabulary=VocabularyConfig, cleaning=CleaningConfig, log=LogConfig)
def main(files: FilesConfig, vocabulary: VocabularyConfig, cleaning: CleaningConfig, log: LogConfig) -> None:
    """Make a dataset from the two sides of a text, raw or compressed.

    \b
    nmt-preprocess -s en -t de --trainpref data/train --validpref data/val --testpref data/test \\
        --destdir data-bin/en-de --vocab-size 37000 --workers 8
    """
    configure(log)
    from nmtkit.preprocessing.pipeline import preprocess

    preprocess(files, vocabulary, cleaning)

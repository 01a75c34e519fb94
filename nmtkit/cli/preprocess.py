"""nmt-preprocess: converts raw text to a dataset."""

from dataclasses import fields
from typing import Any

from nmtkit.cli.command import command
from nmtkit.cli.config_file import config_file_in_use
from nmtkit.cli.options import options, prefer_command_line, refuse_idle
from nmtkit.config import flag
from nmtkit.console.log import LogConfig, configure
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.text.tokenizer import SPACE

LEARNING = (  # options for learning a SentencePiece model
    *("model_type", "character_coverage", "byte_fallback", "normalization", "keep_invisible", "split_digits"),
    *("spm_sample", "vocab_capitals", "seed"),
)


def refuse_idle_options(values: dict[str, Any]) -> None:
    """Raise UserError for options without effect."""
    prefer_command_line(values, "spm_model", "vocab_from")
    for source in ("spm_model", "vocab_from"):
        if values[source] is not None:
            counting = (*LEARNING, "vocab_size", "min_count")
            refuse_idle(values, counting, f"with {flag(source)}, which learns no vocabulary")
    if values["vocab_from"] is not None:
        refuse_idle(values, ["joined_vocab"], "with --vocab-from, which reuses a vocabulary")
    if values["tokenizer"] == SPACE:
        refuse_idle(values, LEARNING, "with --tokenizer space, which needs no SentencePiece model")
    else:
        refuse_idle(values, ["min_count"], "without --tokenizer space")
    if not values["trainpref"]:
        cleaning = [field.name for field in fields(CleaningConfig)]
        refuse_idle(values, [*cleaning, "report"], "without --trainpref: only the training text is cleaned")
    if values["langid_model"] is None:
        refuse_idle(values, ["langid_labels", "min_langid"], "without --langid-model")
    if values["dedup"] == "none":
        refuse_idle(values, ["dedup_normalized"], "without --dedup")


@command(
    "nmt-preprocess",
    common="source_lang target_lang trainpref validpref testpref destdir vocab_size joined_vocab tokenizer vocab_from "
    "max_length max_ratio dedup drop_identical exclude_overlap report workers shard_size quiet config",
)
@options(refuse_idle_options, files=FilesConfig, vocabulary=VocabularyConfig, cleaning=CleaningConfig, log=LogConfig)
def main(files: FilesConfig, vocabulary: VocabularyConfig, cleaning: CleaningConfig, log: LogConfig) -> None:
    """Create a dataset for nmt-train from parallel text, plain or compressed.

    \b
    nmt-preprocess -s en -t de --trainpref data/train --validpref data/val --testpref data/test \\
        --destdir data-bin/en-de --vocab-size 37000 --workers 8
    """
    configure(log)
    from nmtkit.preprocessing.pipeline import check_outputs, preprocess

    check_outputs(files, [config_file_in_use()])
    preprocess(files, vocabulary, cleaning)

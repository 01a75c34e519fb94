"""nmt-preprocess: raw text to a dataset."""

from nmtkit.cli.options import command, options
from nmtkit.log import LogConfig, configure
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig


@command("nmt-preprocess")
@options(files=FilesConfig, vocabulary=VocabularyConfig, cleaning=CleaningConfig, log=LogConfig)
def main(files: FilesConfig, vocabulary: VocabularyConfig, cleaning: CleaningConfig, log: LogConfig) -> None:
    """Make a dataset from the two sides of a text, raw or compressed.

    \b
    nmt-preprocess -s en -t de --trainpref data/train --validpref data/val --testpref data/test \\
        --destdir data-bin/en-de --vocab-size 37000 --workers 8
    """
    configure(log)
    from nmtkit.preprocessing.pipeline import preprocess

    preprocess(files, vocabulary, cleaning)

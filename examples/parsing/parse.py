"""Parses sentences with a model that the recipe has trained.

    python parse.py CHECKPOINT LEXICON < SENTENCES > TREES
    python parse.py --whole --beam 4 CHECKPOINT LEXICON < SENTENCES > TREES

The second form writes trees for EXTRA: the recipe adds them to the treebank for training.

SENTENCES has one sentence per line, with words separated by spaces as in the treebank: punctuation apart, "do n't", ``
for opening quotes. Brackets are replaced by the treebank's tokens, such as -LRB- for (.
"""

from collections.abc import Iterable, Iterator
from itertools import tee
from pathlib import Path

import click
from lexicon import Lexicon, model_words, read_lexicon, tags_of
from restore import best_fitting, restore
from trees import Tree, linearize

from nmtkit import Translator
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.decoding.config import SearchConfig
from nmtkit.text.reading import decode_line, read_raw_stdin

BEAM = 21
AS_IN_TREEBANKS = str.maketrans(
    {"(": " -LRB- ", ")": " -RRB- ", "[": " -LSB- ", "]": " -RSB- ", "{": " -LCB- ", "}": " -RCB- "}
)


def parse(
    sentences: Iterable[str], translator: Translator, lexicon: Lexicon, beam: int = BEAM
) -> Iterator[tuple[Tree, bool]]:
    """Yield a tree for each sentence, and whether the model's output was this tree without repair."""
    words, again = tee(sentence.translate(AS_IN_TREEBANKS).split() for sentence in sentences)
    seen = (" ".join(model_words(sentence, lexicon)) for sentence in again)
    search = SearchConfig(beam=beam, nbest=beam, length_penalty=0.3, max_len_b=300)
    for sentence, found in zip(words, translator.stream(seen, search), strict=True):
        outputs = [candidate.text.split() for candidate in found.candidates]
        tags = tags_of(sentence, lexicon)
        best = best_fitting(outputs, tags)
        tree = restore(best, sentence, tags)
        yield tree, linearize(tree) == best


@command("parse.py")
@click.argument("checkpoint", type=PathName())
@click.argument("lexicon", type=PathName())
@click.option("--beam", default=BEAM, show_default=True, help="Beam size; the best fit to the words is used.")
@click.option("--whole", is_flag=True, help="Skip blank sentences and those whose tree had to be repaired.")
def main(checkpoint: Path, lexicon: Path, beam: int, whole: bool) -> None:
    """Print a tree for each sentence of stdin."""
    known, model = read_lexicon(lexicon), Translator.from_checkpoint(checkpoint)
    sentences = (decode_line(line, "stdin", number) for number, line in enumerate(read_raw_stdin(), 1))
    for tree, unchanged in parse(sentences, model, known, beam):
        if not whole or (unchanged and tree.leaves):
            print(tree)


if __name__ == "__main__":
    main()

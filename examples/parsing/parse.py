"""Sentences of one's own to trees, with a model that the recipe has trained.

    python parse.py CHECKPOINT LEXICON < SENTENCES > TREES

A sentence a line, its words between spaces as in the treebank: punctuation apart, "do n't", `` for opening quotes.
Brackets are written as the treebank has them, -LRB- for (.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from lexicon import Lexicon, model_words, read_lexicon, tags_of
from restore import best_fitting, restore
from trees import Tree

from nmtkit import Translator
from nmtkit.errors import NmtkitError

BEAM = 21
AS_IN_TREEBANKS = str.maketrans(
    {"(": " -LRB- ", ")": " -RRB- ", "[": " -LSB- ", "]": " -RSB- ", "{": " -LCB- ", "}": " -RCB- "}
)


def parse(sentences: Iterable[str], translator: Translator, lexicon: Lexicon) -> list[Tree]:
    words = [sentence.translate(AS_IN_TREEBANKS).split() for sentence in sentences]
    seen = [" ".join(model_words(sentence, lexicon)) for sentence in words]
    found = translator.translate(seen, nbest=BEAM, beam=BEAM, length_penalty=0.3, max_len_b=300)
    trees = []
    for sentence, outputs in zip(words, found, strict=True):
        tags = tags_of(sentence, lexicon)
        best = best_fitting([output.split() for output in outputs] or [[]], tags)
        trees.append(restore(best, sentence, tags))
    return trees


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        model = Translator.from_checkpoint(sys.argv[1])
        print(*parse(sys.stdin, model, read_lexicon(Path(sys.argv[2]))), sep="\n")
    except NmtkitError as error:
        sys.exit(f"error: {error}")

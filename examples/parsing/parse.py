"""Sentences of one's own to trees, with a model that the recipe has trained.

    python parse.py CHECKPOINT LEXICON < SENTENCES > TREES

A sentence a line, its words between spaces as in the treebank: punctuation apart, "do n't", `` for opening quotes.
Brackets are written as the treebank has them, -LRB- for (.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from lexicon import Lexicon, model_words, read_lexicon, tags_of
from restore import restore
from trees import Tree

from nmtkit import Translator
from nmtkit.errors import NmtkitError

AS_IN_TREEBANKS = str.maketrans({"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"})


def parse(sentences: Iterable[str], translator: Translator, lexicon: Lexicon) -> list[Tree]:
    words = [sentence.translate(AS_IN_TREEBANKS).split() for sentence in sentences]
    seen = [" ".join(model_words(sentence, lexicon)) for sentence in words]
    outputs = translator.translate(seen, beam=21, length_penalty=0.3, max_len_b=300)
    return [
        restore(output.split(), sentence, tags_of(sentence, lexicon))
        for output, sentence in zip(outputs, words, strict=True)
    ]


if __name__ == "__main__":
    try:
        model = Translator.from_checkpoint(sys.argv[1])
        print(*parse(sys.stdin, model, read_lexicon(Path(sys.argv[2]))), sep="\n")
    except NmtkitError as error:
        sys.exit(f"error: {error}")

"""Reads training pairs that differ in every epoch: --augment rewrites their text, --subword-sampling resegments it.

A pair is a pure function of seed, epoch and its number, so that neither ranks nor resuming change it.
"""

from itertools import chain
from random import Random

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.augmentation import Pair, choose, parse
from nmtkit.data.binary import Indices
from nmtkit.data.corpus import Dataset, Split
from nmtkit.data.sentences import Sentences
from nmtkit.data.subwords import Resegmenter
from nmtkit.errors import UserError
from nmtkit.text.tokenizer import SPACE
from nmtkit.text.vocabulary import EOS, UNK

Drawn = tuple[NDArray[np.int64], NDArray[np.int32]]  # tokens, lengths
Ids = list[int]


class PairSampling:
    """Reads the sentence pairs of a split, as --augment and --subword-sampling change them in an epoch.

    `rate` is the dropout rate of merges for BPE, and α for unigram; 0 keeps the segmentation. `augmentation` is the
    value of --augment. A sentence of more than `longest` tokens, with EOS, stays as stored. Raises UserError
    if the dataset's tokenizer cannot do this.
    """

    def __init__(
        self, dataset: Dataset, split: Split, rate: float, longest: int, seed: int, augmentation: str | None = None
    ) -> None:
        self._longest, self._seed = longest, seed
        self._files = split.source, split.target
        self._resegment: tuple[Resegmenter, Resegmenter] | None = None
        if rate:
            source = Resegmenter(dataset.source, rate)
            self._resegment = source, source if dataset.target is dataset.source else Resegmenter(dataset.target, rate)
        self._rates = parse(augmentation) if augmentation else {}
        self._tokenizers = dataset.source, dataset.target
        if augmentation and SPACE in (dataset.source.kind, dataset.target.kind):
            raise UserError("--augment needs raw text, but the dataset has segmented text: omit the option")
        self._spaces = [tokenizer.vocab.to_ids(["▁"])[0] for tokenizer in self._tokenizers]
        self._symbols = [{*tokenizer.vocab.to_ids(tokenizer.symbols()), UNK} for tokenizer in self._tokenizers]

    def gather(self, epoch: int, pairs: Indices) -> tuple[Drawn, Drawn]:
        """Read several pairs (n,), and return for each side the concatenated tokens (T,) and sentence lengths (n,)."""
        drawn: tuple[list[Ids], list[Ids]] = [], []
        stored_pairs = zip(*(_without_eos(file, pairs) for file in self._files), strict=True)
        for pair, stored in zip(pairs.tolist(), stored_pairs, strict=True):
            whole = self._augmented(stored, epoch, pair) if self._rates else stored
            segmented = whole
            if self._resegment:
                draw = Random((self._seed << 32 | epoch) << 64 | pair).random
                segmented = tuple(each(ids, draw) for each, ids in zip(self._resegment, whole, strict=True))
            for side, ids, best in zip(drawn, segmented, whole, strict=True):
                side.append([*(ids if len(ids) < self._longest else best), EOS])
        return _concatenate(drawn[0]), _concatenate(drawn[1])

    def _augmented(self, stored: tuple[Ids, ...], epoch: int, pair: int) -> tuple[Ids, ...]:
        """Rewrite the text of a pair, but not its tags. Keep a pair with other symbols, or that becomes too long."""
        random = Random(f"augment {self._seed} {epoch} {pair}")
        modifiers = choose(self._rates, random)
        tags, texts = self._split(stored)
        if not modifiers or not all(map(set.isdisjoint, self._symbols, texts)):
            return stored

        def following() -> Pair | None:
            number = np.array([(pair + 1) % len(self._files[0])])
            next_tags, next_texts = self._split(tuple(_without_eos(file, number)[0] for file in self._files))
            return self._decode(next_texts) if next_tags == tags else None

        text = self._decode(texts)
        for modify in modifiers:
            text = modify(text, following, random)
        encoded = [tokenizer.encode([side])[0] for tokenizer, side in zip(self._tokenizers, text, strict=True)]
        changed = tuple(first + rest for first, rest in zip(tags, encoded, strict=True))
        is_usable = all(UNK not in ids and len(ids) < self._longest for ids in changed)
        return changed if is_usable else stored

    def _split(self, pair: tuple[Ids, ...]) -> tuple[list[Ids], list[Ids]]:
        """Split the ids of both sides into tags, with the pieces of spaces before them, and text."""
        ends = list(map(_end_of_tags, pair, self._symbols, self._spaces))
        return [ids[:end] for ids, end in zip(pair, ends, strict=True)], [
            ids[end:] for ids, end in zip(pair, ends, strict=True)
        ]

    def _decode(self, texts: list[Ids]) -> Pair:
        return Pair(*(tokenizer.decode(ids) for tokenizer, ids in zip(self._tokenizers, texts, strict=True)))


def _end_of_tags(ids: Ids, symbols: set[int], space: int) -> int:
    end = 0
    for place, number in enumerate(ids, 1):
        if number in symbols:
            end = place
        elif number != space:
            break
    return end


def _without_eos(file: Sentences, sentences: Indices) -> list[Ids]:
    tokens, lengths = file.gather(sentences)
    return [sentence[:-1].tolist() for sentence in np.split(tokens, np.cumsum(lengths)[:-1])]


def _concatenate(sentences: list[Ids]) -> Drawn:
    lengths = np.fromiter(map(len, sentences), np.int32, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), np.int64, int(lengths.sum())), lengths

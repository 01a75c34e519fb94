"""Word alignments of training pairs, which teach a model to align (`--guided-alignment`)."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import Indices
from nmtkit.data.corpus import Dataset, Split
from nmtkit.data.description import dropped_path
from nmtkit.errors import UserError
from nmtkit.text.reading import read_lines
from nmtkit.wording import counted

_SENTENCE, _SOURCE, _TARGET = range(3)


class Alignments:
    """The links between source and target pieces of each pair of a split, with 12 bytes of memory per link."""

    def __init__(self, path: Path, dataset: Dataset, split: Split) -> None:
        """Read a file in Pharaoh format, with a line for each line of the text, also for those that were dropped.

        Pieces are numbered from 0 as the dataset stores them, so a tag counts, and `</s>` comes last. Raises UserError
        with file and line if an alignment is malformed or does not fit its pair, or if the number of lines is wrong.
        """
        file = dropped_path(dataset.folder, split.name)
        dropped = set(np.fromfile(file, "<u8").tolist()) if file.exists() else set()
        links, lines = [np.empty((0, 3), np.int32)], 0
        numbers: list[int] = []  # the line of each pair
        for lines, line in enumerate(read_lines(path), 1):
            if lines - 1 not in dropped:
                found = _parse(line, f"{path}, line {lines}")
                links.append(np.column_stack((np.full(len(found), len(numbers), np.int32), found)))
                numbers.append(lines)
        if lines != len(split) + len(dropped):
            raise UserError(
                f"{path} has {counted(lines, 'line')}, but the training text of {dataset.folder} has "
                f"{len(split) + len(dropped)}: give a line for each"
            )
        self._links = np.concatenate(links)
        sentences = self._links[:, _SENTENCE]
        for side, column, name in ((split.source, _SOURCE, "source"), (split.target, _TARGET, "target")):
            lengths = side.lengths[:]
            wrong = np.flatnonzero(self._links[:, column] >= lengths[sentences])
            if len(wrong):
                sentence, piece = int(sentences[wrong[0]]), int(self._links[wrong[0], column])
                raise UserError(
                    f"{path}, line {numbers[sentence]}: aligns piece {piece} of the {name}, whose pieces end with "
                    f"{lengths[sentence] - 1}, the </s>: align the pieces of {dataset.folder}, counted from 0"
                )
        self._begins = np.searchsorted(sentences, np.arange(len(split) + 1))

    def gather(self, pairs: Indices, targets: int, sources: int) -> NDArray[np.float32]:
        """Return the alignments of pairs (B,), padded to (B, T, S): the share of each source piece in a target piece.
        The shares of a target piece are equal and sum to 1; without a link, they are 0."""
        aligned = np.zeros((len(pairs), targets, sources), np.float32)
        for row, pair in zip(aligned, pairs.tolist(), strict=True):
            links = self._links[self._begins[pair] : self._begins[pair + 1]]
            row[links[:, _TARGET], links[:, _SOURCE]] = 1.0
        aligned /= np.maximum(aligned.sum(2, keepdims=True), 1.0)
        return aligned


def _parse(line: str, place: str) -> NDArray[np.int32]:
    """Return the links of a line (n, 2), source first."""
    try:
        links = [link.split("-") for link in line.split()]
        return np.array([(int(source), int(target)) for source, target in links], np.int32).reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{place}: not an alignment in Pharaoh format, such as 0-0 1-2") from error

"""From a sentence pair back to the line of the text that it was."""

import random
from pathlib import Path

import numpy as np
import pytest

from nmtkit.data.lines import LINE_DTYPE, LineNumbers, dropped_path
from nmtkit.errors import UserError


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.95])
def test_each_pair_maps_to_its_original_line(tmp_path: Path, share: float) -> None:
    generator = random.Random(share)
    corpora = [("one", 70), ("empty", 0), ("two", 1), ("three", 129)]
    dropped = [line for line in range(200) if generator.random() < share]
    if dropped:
        dropped_path(tmp_path, "train").write_bytes(np.array(dropped, LINE_DTYPE).tobytes())
    lines = LineNumbers(200 - len(dropped), corpora, dropped_path(tmp_path, "train"))
    every = [(name, number) for name, count in corpora for number in range(1, count + 1)]
    kept = [place for line, place in enumerate(every) if line not in dropped]
    assert [lines.locate(pair) for pair in range(len(kept))] == kept
    with pytest.raises(IndexError):
        lines.locate(len(kept))


def test_line_descriptions_name_the_text_and_are_truncated(tmp_path: Path) -> None:
    dropped_path(tmp_path, "train").write_bytes(np.array([1, 10], LINE_DTYPE).tobytes())
    lines = LineNumbers(28, [("a/one", 10), ("two", 20)], dropped_path(tmp_path, "train"))
    assert lines.describe([0]) == "a/one, line 1"
    assert lines.describe([1, 8, 9]) == "a/one, lines 3, 10; two, line 2"
    assert lines.describe(list(range(10))) == "a/one, lines 1, 3, 4, 5, 6, 7, 8, 9, 10; two, line 2"
    assert lines.describe(list(range(11))) == "a/one, lines 1, 3, 4, 5, 6, 7, 8, 9, 10; two, line 2, …"


def test_a_wrong_number_of_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train.dropped: does not match 7 sentence pairs of 8 lines; run nmt-preproc"):
        LineNumbers(7, [("text", 8)], dropped_path(tmp_path, "train"))

"""Filters for noisy sentence pairs. Each is a pure function of the text, and applies only to training text.

To add a filter, add an option and a reason (`config`), and a line in `enabled_filters`, in the order of `REASONS`.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from nmtkit.errors import UserError
from nmtkit.preprocessing.config import CleaningConfig
from nmtkit.preprocessing.dedup import hash_text, normal_form
from nmtkit.preprocessing.reasons import EMPTY, KEPT, MARKS
from nmtkit.text.languages import side_names
from nmtkit.text.reading import COMPRESSED, read_lines

PairFilter = Callable[[str, str], bool]  # source, target -> whether the pair is dropped
# Hashes of the normalized lines of test files by side, with about 100 bytes of memory per line.
Overlap = tuple[set[bytes], set[bytes]]

_SCRIPT_SHARE = 0.5  # of the letters on a side
_LETTER_OF_ONE_SCRIPT = regex.compile(r"[\p{L}--\p{Common}--\p{Inherited}]", regex.VERSION1)
_SCRIPT_NAME = re.compile(r"[A-Za-z_]+")
_PREFIX = "__label__"


def has_blank_side(source: str, target: str) -> bool:
    """Whether a side has only white space. `encoding` also marks pairs without tokens as empty."""
    return not source.strip() or not target.strip()


def identical(source: str, target: str) -> bool:
    return source.strip() == target.strip()


@functools.cache
def _is_letter(character: str) -> bool:
    return _LETTER_OF_ONE_SCRIPT.match(character) is not None


def script_share(scripts: Sequence[str], option: str) -> Callable[[str], float]:
    """Return a function that computes the share of these scripts in a text's letters; 1 if no letter has a script.
    Raises UserError if a script is not in Unicode."""
    for script in scripts:
        try:
            if not _SCRIPT_NAME.fullmatch(script):
                raise regex.error("not a name")
            regex.compile(rf"\p{{Script={script}}}")
        except regex.error as error:
            raise UserError(f"{option} {script!r} is not a Unicode script: use a name such as Latin or Han") from error
    pattern = regex.compile("[" + "".join(rf"\p{{Script={script}}}" for script in scripts) + "]")

    @functools.cache  # several times faster than a pattern for each text
    def is_in(character: str) -> bool:
        return _is_letter(character) and pattern.match(character) is not None

    def share(text: str) -> float:
        letters = sum(map(_is_letter, text))
        return sum(map(is_in, text)) / letters if letters else 1.0

    return share


def _script_filter(config: CleaningConfig) -> PairFilter:
    source, target = (
        script_share(scripts, option) if scripts else lambda text: 1.0
        for scripts, option in ((config.source_script, "--source-script"), (config.target_script, "--target-script"))
    )
    return lambda source_text, target_text: source(source_text) < _SCRIPT_SHARE or target(target_text) < _SCRIPT_SHARE


def read_overlap(files: Sequence[Path], languages: tuple[str, str]) -> Overlap:
    """Read test files, such as test.en or test.de.gz. Raises UserError if the suffix is neither language."""
    hashes: Overlap = (set(), set())
    for path in files:
        name = path.name.removesuffix(path.suffix) if path.suffix in COMPRESSED else path.name
        side = next((side for side, language in enumerate(languages) if name.endswith(f".{language}")), None)
        if side is None:
            suffixes = " or ".join(f".{one}" for one in languages)
            raise UserError(f"--exclude-overlap {path}: the file name must end with the language, {suffixes}")
        hashes[side].update(_key(line) for line in read_lines(path) if line.strip())
    return hashes


def _overlap_filter(overlap: Overlap) -> PairFilter:
    sources, targets = overlap
    return lambda source, target: (
        (bool(sources) and _key(source) in sources) or (bool(targets) and _key(target) in targets)
    )


def _key(line: str) -> bytes:
    return hash_text(normal_form(line).encode())


def enabled_filters(
    config: CleaningConfig, languages: tuple[str, str], overlap: Overlap | None
) -> Iterator[tuple[str, PairFilter]]:
    """Yield reason and filter for each option that is set. Raises UserError for an invalid option."""
    if config.drop_identical:
        yield "identical", identical
    if config.source_script or config.target_script:
        yield "script", _script_filter(config)
    if overlap is not None:
        yield "overlap", _overlap_filter(overlap)
    if config.langid_model is not None:
        yield "language", language_filter(config.langid_model, config.langid_labels or languages, config.min_langid)


@dataclass(frozen=True)
class PairMarker:
    """Marks a pair with the first filter that drops it. It can be pickled: workers create filters on first use."""

    config: CleaningConfig
    languages: tuple[str, str]
    overlap: Overlap | None

    @functools.cached_property
    def _filters(self) -> list[tuple[int, PairFilter]]:
        filters = enabled_filters(self.config, self.languages, self.overlap)
        return [(MARKS[reason], drops) for reason, drops in filters]

    def __call__(self, source: str, target: str) -> int:
        """Return the mark of a pair: `KEPT`, or the number of a reason."""
        if has_blank_side(source, target):
            return EMPTY
        return next((mark for mark, drops in self._filters if drops(source, target)), KEPT)


def make_marker(config: CleaningConfig, languages: tuple[str, str]) -> PairMarker | None:
    """Create the marker for these options; None if pairs need no marks. Raises UserError for an invalid option."""
    overlap = read_overlap(config.exclude_overlap, side_names(languages)) if config.exclude_overlap else None
    has_filters = bool(list(enabled_filters(config, languages, overlap)))
    return PairMarker(config, languages, overlap) if has_filters or config.removes_duplicates else None


def language_filter(path: Path, languages: Sequence[str], least: float) -> Callable[[str, str], bool]:
    """Return a function that is True for a pair if a side's language has a probability below `least`.

    A fastText model identifies it (https://fasttext.cc/docs/en/language-identification). Raises UserError if the
    package is not installed, or if `path` is not a model with labels for both languages.
    """
    model = _load(path)
    source, target = (_PREFIX + language.removeprefix(_PREFIX) for language in languages)
    known = {label for label, _ in _probabilities(model, " ")}
    for label in (source, target):
        if label not in known:
            raise UserError(
                f"--langid-model {path} has no label for {label.removeprefix(_PREFIX)}: give the model's labels "
                "with --langid-labels"
            )
    return lambda source_text, target_text: (
        _probability(model, source_text, source) < least or _probability(model, target_text, target) < least
    )


def _load(path: Path) -> Any:
    try:
        import fasttext
    except ImportError as error:
        raise UserError("--langid-model needs the package fasttext-predict: pip install 'nmtkit[clean]'") from error
    if not path.is_file():
        raise UserError(f"--langid-model {path}: no such file")
    try:
        return fasttext.load_model(str(path))
    except (ValueError, RuntimeError, MemoryError) as error:
        raise UserError(f"--langid-model {path} is not a fastText model: use one such as lid.176.ftz") from error


def _probabilities(model: Any, line: str, count: int = -1) -> list[tuple[str, float]]:
    """Return the `count` most probable labels of a line with their probabilities; -1 for all."""
    labels, probabilities = model.predict(line, k=count)
    return list(zip(labels, probabilities, strict=True))


def _probability(model: Any, line: str, label: str) -> float:
    (found, probability), *_ = _probabilities(model, line, 1) or [("", 0.0)]
    if found == label:
        return probability
    return dict(_probabilities(model, line)).get(label, 0.0)

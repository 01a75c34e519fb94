"""Identifies languages with a fastText model such as lid.176.ftz (https://fasttext.cc/docs/en/language-identification).

The package fasttext-predict runs the model; each worker has its own copy.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nmtkit.errors import UserError

_PREFIX = "__label__"
# Sizes of the published models in bytes: the package does not notice truncated files.
_PUBLISHED = {"lid.176.bin": 131_266_198, "lid.176.ftz": 938_013}


def language_filter(path: Path, languages: Sequence[str], least: float) -> Callable[[str, str], bool]:
    """Return a function that is True for a pair if a side's language has a probability below `least`.

    Raises UserError if the package is not installed, or if `path` is not a model with labels for both languages.
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
    size, expected = path.stat().st_size, _PUBLISHED.get(path.name)
    if expected not in (None, size):
        raise UserError(f"--langid-model {path} has {size} bytes instead of {expected}: download it again")
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

"""Messages of a log without those that random models and texts of several sentences give."""

from collections.abc import Sequence


def without_cut_outputs(messages: Sequence[str]) -> list[str]:
    """The messages except warnings about outputs of the maximum length, repetitions, and lines of several sentences."""
    usual = ("output cut", "repeats itself", "several sentences")
    return [message for message in messages if not any(words in message for words in usual)]

"""Messages of a log without those that random models and texts of several sentences give."""

from collections.abc import Sequence


def without_cut_outputs(messages: Sequence[str]) -> list[str]:
    """The messages except warnings about outputs of the maximum length and about lines of several sentences."""
    return [message for message in messages if "output cut" not in message and "several sentences" not in message]

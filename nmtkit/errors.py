"""The errors that end a command, each with its exit code."""


class NmtkitError(Exception):
    """Base class of nmtkit's errors. The message is one line: what is wrong, where, and what to do."""

    exit_code = 1


class UserError(NmtkitError):
    """A user error: a bad option, missing or malformed input, mismatched files."""

    exit_code = 2


class RunError(NmtkitError):
    """A failure at run time: a full disk, a diverged training run, a dead worker."""


class ReportedElsewhere(NmtkitError):  # noqa: N818 (the error is in another process)
    """Ends a process silently, because a different process of the run reports the error."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("another process of the run reports the error")
        self.exit_code = exit_code


class Interrupted(NmtkitError):  # noqa: N818 (not an error)
    """A clean stop after a signal. The exit code is 128 plus the signal number."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number

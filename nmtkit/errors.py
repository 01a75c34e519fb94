"""The ways in which a command can end before its work is done, and the exit code of each."""


class NmtkitError(Exception):
    """An end before the work is done, with a one-line message: what was wrong, where, and what to do."""

    exit_code = 1


class UserError(NmtkitError):
    """The user's mistake: a bad option, missing or malformed input, mismatched files."""

    exit_code = 2


class RunError(NmtkitError):
    """A failure while running: a full disk, a diverged training, a worker that died."""


class ReportedElsewhere(NmtkitError):  # noqa: N818 (the error is in another process)
    """Ends a process silently: another process of the run reports the error."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("another process of the run reports the error")
        self.exit_code = exit_code


class Stopped(NmtkitError):  # noqa: N818 (it is none)
    """The user asked to stop, by a signal, and it was done in good order."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number

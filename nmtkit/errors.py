"""The two ways in which a command can fail, and the exit code of each."""


class NmtkitError(Exception):
    """A failure with a one-line message: what was wrong, where, and what to do."""

    exit_code = 1


class UserError(NmtkitError):
    """The user's mistake: a bad option, missing or malformed input, mismatched files."""

    exit_code = 2


class RunError(NmtkitError):
    """A failure while running: a full disk, a diverged training, a worker that died."""

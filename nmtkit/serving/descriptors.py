"""The file descriptors of the server, one for each connection."""

import resource

from nmtkit.errors import UserError
from nmtkit.serving.config import FEWEST_CONNECTIONS

SPARE = 128  # for the model, the log and the event loop, and for connections accepted before others are closed
PER_WORKER = 4  # the pipe and the sentinel of a worker process


def reserve_descriptors(connections: int, workers: int) -> None:
    """Raise the soft limit of this process to the descriptors that it needs.

    Raises UserError that says what to do if the hard limit is too low.
    """
    others = SPARE + PER_WORKER * workers
    needed = connections + others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        fewer = f"use at most {hard - others}, or " if hard >= others + FEWEST_CONNECTIONS else ""
        raise UserError(
            f"--max-connections {connections} needs {needed} file descriptors, and the limit is {hard}: "
            f"{fewer}raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

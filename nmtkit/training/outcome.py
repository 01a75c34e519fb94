"""The outcome of an update, which the host of a GPU reads while the GPU computes the next update."""

from dataclasses import dataclass

from nmtkit.data.packing import Share
from nmtkit.machine.host_copy import HostCopy
from nmtkit.training.loader import Work


@dataclass(frozen=True)
class Outcome:
    """An update that a device may still be computing."""

    update: int
    learning_rate: float
    numbers: HostCopy  #: loss and negative log-likelihood of each dataset, then the norm of the gradient
    work: Work
    share: Share  #: this rank's micro-batches

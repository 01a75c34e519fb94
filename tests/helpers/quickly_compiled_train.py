"""nmt-train, whose --compile runs the graphs of torch's compiler as they are: it takes seconds instead of minutes."""

import sys
from functools import partial

import torch

from nmtkit.cli.train import main

torch.compile = partial(torch.compile, backend="aot_eager")
main(sys.argv[1:])

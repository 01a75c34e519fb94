"""Types of the fixtures that run commands, and the options of a tiny model."""

import subprocess
from collections.abc import Callable

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
Train = Callable[..., "subprocess.CompletedProcess[bytes]"]
TINY = (
    *("--arch", "transformer_tiny", "--encoder-layers", 1, "--decoder-layers", 1, "--d-model", 16, "--d-ff", 24),
    *("--heads", 2, "--max-tokens", 200, "--batch-tokens", 400, "--warmup-updates", 20, "--threads", 1),
    *("--log-every", 1, "--precision", "fp32", "--device", "cpu"),
)

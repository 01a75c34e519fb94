"""The number formats of inference, shared by options, backends and the compiled search."""

from enum import Enum


class NumberFormat(str, Enum):
    """The format of weights and matrix products. Its value is its name in `--precision` and in nmtkit/native."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"

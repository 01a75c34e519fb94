"""The number formats of an inference, which options, backends and the compiled search share."""

from enum import Enum


class NumberFormat(str, Enum):
    """The format of weights and of matrix products, by its name in `--precision` and in nmtkit/native."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"

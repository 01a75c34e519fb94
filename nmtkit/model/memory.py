"""Which of torch's many errors mean that memory has run out."""

import torch

# Of those that are plain RuntimeErrors: a CPU's allocator, the workspaces of libraries, the driver itself.
_WORDS = (
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether less memory would have avoided an error, on whatever device."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)

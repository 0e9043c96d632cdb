"""Parts of GPUs as KAI counts them."""

from __future__ import annotations

import math

__all__ = ["gpus_of_memory"]


def gpus_of_memory(memory: float, gpu_memory: float) -> float:
    """Return which part of a GPU a request for GPU memory is, in hundredths, rounded up.

    :param memory: the request in MiB.
    :param gpu_memory: the memory of one GPU in MiB.
    """
    return math.ceil(100 * memory / gpu_memory) / 100

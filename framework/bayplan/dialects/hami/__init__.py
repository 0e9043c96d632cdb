"""HAMi, whose runtime Volcano also uses: requests, the choice of GPUs, and its strings."""

from bayplan.dialects.hami.policies import (
    GPU_POLICIES,
    NODE_POLICIES,
    GpuOptions,
    Weights,
    gpu_option_names,
    gpu_options_of,
    gpu_request_of,
    policy_words,
)

__all__ = [
    "GPU_POLICIES",
    "NODE_POLICIES",
    "GpuOptions",
    "Weights",
    "gpu_option_names",
    "gpu_options_of",
    "gpu_request_of",
    "policy_words",
]

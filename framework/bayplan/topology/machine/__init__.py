"""One machine: its GPUs, NICs and NUMA nodes, and which of its GPUs belong together."""

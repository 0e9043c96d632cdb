"""One machine: its GPUs, NICs and NUMA nodes, and the choice of GPUs that work well together."""

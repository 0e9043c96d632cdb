"""Which machine each node is, and who holds which of its GPUs."""

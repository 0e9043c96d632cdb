"""GPUs: which machine each node is, and who holds which GPU, or which share of it."""

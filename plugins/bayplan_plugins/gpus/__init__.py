"""GPUs of nodes: which machine a node is, what pods ask for, and who holds which GPU."""

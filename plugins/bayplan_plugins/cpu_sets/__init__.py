"""CPU sets: which CPUs of a node a pod gets for itself, and who holds which."""

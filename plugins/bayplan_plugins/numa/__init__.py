"""NUMA nodes: what a kubelet's managers would align, and what pods hold of each node."""

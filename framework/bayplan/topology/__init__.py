"""Topology: the network between nodes, and the hardware inside them."""

"""Topology: of the network between nodes and, later, of the hardware inside them."""

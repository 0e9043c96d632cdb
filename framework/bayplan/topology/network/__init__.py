"""Networks as trees of domains: which nodes are near each other."""

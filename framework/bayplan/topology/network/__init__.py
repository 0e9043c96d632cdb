"""The network as a tree of domains: which nodes are near each other, and what links carry."""

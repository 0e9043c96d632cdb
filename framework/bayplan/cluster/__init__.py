"""Clusters: the backends of a scheduler, behind one protocol."""

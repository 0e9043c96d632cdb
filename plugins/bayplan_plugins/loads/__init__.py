"""Loads: what nodes and pods really use, and what pods will use that are not measured yet."""

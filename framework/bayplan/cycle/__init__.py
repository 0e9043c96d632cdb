"""One scheduling cycle: Filter, Score and the search for nodes for a whole unit."""

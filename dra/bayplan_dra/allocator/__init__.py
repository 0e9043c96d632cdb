"""The device allocator: which devices of a node meet a set of claims."""

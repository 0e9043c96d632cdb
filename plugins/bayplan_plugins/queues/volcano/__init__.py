"""Volcano's rules for queues: capacity, proportion, drf and the plugins beside them."""

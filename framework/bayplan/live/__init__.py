"""The scheduler on a real cluster: its loop, its election, and what it tells its operators."""

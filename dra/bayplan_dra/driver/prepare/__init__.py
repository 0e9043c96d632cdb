"""Prepares a claim's devices for its containers, and keeps what is prepared on disk."""

"""Queues: order, limits, reclaim and preemption by who may use how much."""

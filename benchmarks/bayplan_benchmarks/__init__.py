"""Benchmarks: each is a function that builds its input, runs, and returns figures.

They use the memory backend without the virtual kubelet and the controllers, like kube-scheduler's
own performance tests. The creation of the objects is not timed.
"""

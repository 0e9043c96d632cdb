"""The live benchmark on a cluster of the user's."""

from bayplan_benchmarks.live_cluster.measure import measure_on

__all__ = ["measure_on"]

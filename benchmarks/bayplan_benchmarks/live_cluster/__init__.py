"""The live benchmarks on a cluster of the user's."""

from bayplan_benchmarks.live_cluster.backlog import drain_on
from bayplan_benchmarks.live_cluster.measure import measure_on

__all__ = ["drain_on", "measure_on"]

"""What nodes and pods really use, as agents report it: Koordinator's and metrics-server's objects.

Such an object comes for every node a few times a minute, so amounts stay texts until somebody asks.
"""

from __future__ import annotations

import msgspec

from bayplan.api.meta import ApiStruct, ObjectMeta

__all__ = [
    "AggregatedUsage",
    "NodeMetric",
    "NodeMetricInfo",
    "NodeMetricSpec",
    "NodeMetricStatus",
    "NodeMetrics",
    "PodMetricInfo",
    "ResourceUsage",
    "WatchedLoad",
    "WatchedMetric",
]

Amount = str | int | float
"""A quantity as it is written."""


class ResourceUsage(ApiStruct, frozen=True):
    """Quantities by resource."""

    resources: dict[str, Amount] = {}


class AggregatedUsage(ApiStruct, frozen=True):
    """aggregatedNodeUsages[]: usage by statistic (avg, p50, p90, p95, p99) over a duration."""

    usage: dict[str, ResourceUsage] = {}
    duration: str = ""


class NodeMetricInfo(ApiStruct, frozen=True):
    """status.nodeMetric: the usage of the node."""

    node_usage: ResourceUsage = ResourceUsage()
    aggregated_node_usages: tuple[AggregatedUsage, ...] = ()
    system_usage: ResourceUsage = ResourceUsage()


class PodMetricInfo(ApiStruct, frozen=True):
    """status.podsMetric[]: the usage of a pod, and the class of its priority."""

    name: str = ""
    namespace: str = ""
    pod_usage: ResourceUsage = ResourceUsage()
    priority: str = ""


class _CollectPolicy(ApiStruct, frozen=True):
    report_interval_seconds: int | None = None


class NodeMetricSpec(ApiStruct, frozen=True):
    """spec: how often the agent reports."""

    metric_collect_policy: _CollectPolicy = _CollectPolicy()


class NodeMetricStatus(ApiStruct, frozen=True):
    """status: what was measured, and when."""

    update_time: str | None = None
    node_metric: NodeMetricInfo | None = None
    pods_metric: tuple[PodMetricInfo | None, ...] = ()


class NodeMetric(ApiStruct, frozen=True):
    """slo.koordinator.sh/v1alpha1 NodeMetric, named like its node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeMetricSpec = NodeMetricSpec()
    status: NodeMetricStatus = NodeMetricStatus()

    @property
    def key(self) -> str:
        """The node's name."""
        return self.metadata.name


class NodeMetrics(ApiStruct, frozen=True):
    """metrics.k8s.io/v1beta1 NodeMetrics, named like its node: metrics-server's answer."""

    metadata: ObjectMeta = ObjectMeta()
    timestamp: str | None = None
    window: str = ""
    usage: dict[str, Amount] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """The node's name."""
        return self.metadata.name


class WatchedMetric(ApiStruct, frozen=True):
    """A figure of load-watcher's: percent of a node's CPU or Memory, as AVG, STD or Latest."""

    type: str = ""
    operator: str = ""
    value: float = 0.0


class WatchedLoad(ApiStruct, frozen=True):
    """What load-watcher or Prometheus says of a node, named like it; no API server has it.

    ``end`` is until when it was measured, in seconds since 1970.
    """

    metadata: ObjectMeta = ObjectMeta()
    end: float = 0.0
    metrics: tuple[WatchedMetric, ...] = ()

    @property
    def key(self) -> str:
        """The node's name."""
        return self.metadata.name

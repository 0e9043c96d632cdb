"""SpreadByRack: keep small pods off the nodes that have GPUs."""

from __future__ import annotations

from bayplan import Args, NodeRow, Plugin, PodInfo, Reads, hookimpl

GPU = "nvidia.com/gpu"


class SpreadByRackArgs(Args):
    """Arguments of SpreadByRack, as they stand in the profile's pluginConfig (camelCase there)."""

    min_free: int = 0


class SpreadByRack(Plugin[SpreadByRackArgs]):
    """Refuse GPU nodes to pods that ask for no GPU; prefer nodes with few GPUs left."""

    Args = SpreadByRackArgs
    reads = Reads.NODE | Reads.PODS

    @hookimpl
    def sign(self, pod: PodInfo) -> object:
        """Say what the answers depend on: pods with equal specs share them."""
        return pod.facts

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> str | None:
        """None means fine, a text means refused."""
        if pod.requests.get(GPU, 0) == 0 and node.free(GPU) > self.args.min_free:
            return "node(s) keep their GPUs for pods that ask for some"
        return None

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        """0 to 100, the higher the better."""
        offered = node.allocatable(GPU)
        return 100.0 * node.used(GPU) / offered if offered else 0.0

"""Clusters that grow: an autoscaler in virtual time, and bayplan with the plugin Autoscaling."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bayplan.api import ApiObject, Node, Pod
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.dialects.autoscaling import is_stand_in
from bayplan.profiles.loading import load_profiles
from bayplan.scheduler.virtual_time import VirtualTime
from bayplan.simulation.autoscaler import Autoscaler
from bayplan.simulation.node_groups import NodeGroup, NodeGroups
from bayplan.testing import Cluster, make_node

GPU = "nvidia.com/gpu"
ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"


def group(
    name: str = "gpu", most: int = 10, gpu: int = 8, price: int = 1, **labels: str
) -> NodeGroup:
    """Return a group of nodes with GPUs that are ready a minute after they were bought."""
    template = make_node(name, cpu="64", gpu=gpu, labels={"group": name, **labels})
    return NodeGroup(name, 0, most, 60.0, Decimal(price), template)


class Growing:
    """A cluster whose nodes come from groups."""

    def __init__(
        self,
        *groups: NodeGroup,
        plugins: dict[Any, Any] | None = None,
        profiles: Path | None = None,
        **args: Any,
    ) -> None:
        self.groups = groups
        self._plugins = {"Autoscaling": args, "GPUSharing": {}, **(plugins or {})}
        if profiles is not None:
            self.cluster = Cluster((), profiles=load_profiles(profiles))
        else:
            self.cluster = Cluster((), plugins=self._plugins)
        self._start()

    def _start(self) -> None:
        start_controllers(self.cluster.api)
        config = NodeGroups(self.groups, 10.0, 600.0, 600.0)
        self.autoscaler = Autoscaler(self.cluster.api, config)
        self.autoscaler.begin()

    def add(self, *objects: ApiObject) -> None:
        self.cluster.add(*objects)

    def passes(self, seconds: float) -> None:
        """Let time pass; the autoscaler looks whenever nothing is left to do."""
        cluster = self.cluster
        end = cluster.api.now + seconds
        time = VirtualTime(cluster.api, cluster.scheduler, on_settled=self.autoscaler.look)
        time.advance(end)
        cluster.advance(end - cluster.api.now)

    def bought(self, name: str = "") -> int:
        """Return how many nodes were bought, of one group or of all."""
        uses = self.autoscaler.uses
        return sum(one.bought for key, one in uses.items() if name in ("", key))

    def nodes(self) -> list[str]:
        return sorted(node.metadata.name for node in self.cluster.api.list(Node))

    def on_nodes(self) -> dict[str, str]:
        return {
            pod.metadata.name: pod.spec.node_name
            for pod in self.cluster.api.list(Pod)
            if pod.spec.node_name and pod.metadata.namespace == "default"
        }

    def stand_ins(self) -> list[Pod]:
        return list(filter(is_stand_in, self.cluster.api.list(Pod)))

    def reasons(self) -> dict[str, str]:
        """Return the reason of each pending pod, without stand-ins."""
        return {
            pod.metadata.name: one.reason
            for pod in self.cluster.api.list(Pod)
            for one in pod.status.conditions
            if one.type == "PodScheduled" and one.status == "False" and not is_stand_in(pod)
        }

    def nominated(self) -> dict[str, str]:
        """Return the nominated node of each pending pod that has one."""
        return {
            pod.metadata.name: pod.status.nominated_node_name
            for pod in self.cluster.api.list(Pod)
            if pod.status.nominated_node_name and not pod.spec.node_name
        }

    def end(self, *names: str) -> None:
        """Let pods end by themselves."""
        for name in names:
            pod = self.cluster.api.get(Pod, f"default/{name}")
            assert pod is not None
            self.cluster.api.update(replace(pod, status=replace(pod.status, phase="Succeeded")))

    def restart(self) -> None:
        """Kill bayplan and the autoscaler, and start both again with what the cluster says."""
        kinds = [one for one in self._objects() if not isinstance(one, Pod)]
        pods = [one for one in self._objects() if isinstance(one, Pod)]
        coming = self.autoscaler._coming
        before = self.autoscaler.uses
        self.cluster = Cluster((), plugins=self._plugins)
        self._start()
        # What was ordered comes, whoever ordered it.
        self.autoscaler._coming = coming
        for name, use in before.items():
            now = self.autoscaler.uses[name]
            now.nodes, now.bought, now.next_number = use.nodes, use.bought, use.next_number
            for node in coming:
                if node in use.nodes:
                    self.cluster.api.clock.call_later(
                        30.0, lambda use=now, node=node: self.autoscaler._arrive(use, node)
                    )
        self.cluster.add(*kinds, *pods)

    def _objects(self) -> list[ApiObject]:
        from bayplan.api import KINDS
        from bayplan.api.workloads import StoredPodTemplate

        types = [*(kind.type for kind in KINDS.values()), StoredPodTemplate]
        return [one for type_ in types for one in self.cluster.api.list(type_)]

"""The objects that usage follows from, as watch events tell them, and which have changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from bayplan.api import ApiObject, ComputePool, Node, Pod, ResourceClaim, ResourceSlice
from bayplan.api.dra import DeviceTaintRule
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.metering.holdings import end_of, holds
from bayplan.queues.device_selection import DeviceSelector, selector_of
from bayplan.queues.devices import DeviceIndex
from bayplan.queues.gpus import gpu_registers
from bayplan.queues.pools import in_pool

__all__ = ["ObjectView"]


class ObjectView:
    """Nodes, devices, pools, claims and the pods that hold anything.

    ``last_seen`` has the nodes that are gone, too: what is bound to them keeps its pool and models.
    ``changed_pods`` (by uid) and ``changed_nodes`` are for the reader to clear. ``ends`` has when
    pods that hold nothing anymore ended, as far as they say, in seconds since 1970. ``relisted``
    says that events may have been lost since the reader looked last.
    """

    def __init__(self) -> None:
        self.relisted = True
        self.last_seen: dict[str, Node] = {}
        self._forget()

    def _forget(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.devices = DeviceIndex()
        self.pools: dict[str, ComputePool] = {}
        self.ends: dict[str, float] = {}
        self.changed_pods: set[str] = set()
        self.changed_nodes: set[str] = set()
        self._claims: dict[str, ResourceClaim] = {}
        self._claims_of: dict[str, dict[str, None]] = defaultdict(dict)

    def restart(self) -> None:
        """Forget everything, because all objects are about to come again."""
        self._forget()
        self.relisted = True

    def forget_changes(self) -> None:
        """Begin to collect changes again."""
        self.changed_pods.clear()
        self.changed_nodes.clear()
        self.ends.clear()

    def handle(self, event: WatchEvent) -> None:
        """Take in one watch event."""
        if event.type is WatchType.RESYNC:
            self.restart()
            for obj in event.objects:
                self._put(obj, deleted=False)
        elif event.obj is not None:
            self._put(event.obj, event.type is WatchType.DELETED)

    def _put(self, obj: ApiObject, deleted: bool) -> None:
        if isinstance(obj, Pod):
            self._put_pod(obj, deleted)
        elif isinstance(obj, Node):
            self._put_node(obj, deleted)
        elif isinstance(obj, ResourceSlice):
            self.changed_nodes |= self.devices.put(obj, deleted)
            self.changed_pods |= self._claims_of.keys()
        elif isinstance(obj, ResourceClaim):
            self._put_claim(obj, deleted)
        elif isinstance(obj, ComputePool):
            if deleted:
                self.pools.pop(obj.metadata.name, None)
            else:
                self.pools[obj.metadata.name] = obj
            self.changed_nodes |= self.nodes.keys()
            self.changed_pods |= self.pods.keys()
        elif isinstance(obj, DeviceTaintRule):
            self.changed_nodes |= self.devices.put_rule(obj, deleted)

    def _put_node(self, node: Node, deleted: bool) -> None:
        name = node.metadata.name
        before = self.last_seen.get(name)
        self.changed_nodes.add(name)
        if deleted:
            self.nodes.pop(name, None)
            return
        self.nodes[name] = self.last_seen[name] = node
        if before is None or _read_of(before) != _read_of(node):
            # Labels name the pool, and the models of devices; annotations how GPUs are shared.
            here = (uid for uid, pod in self.pods.items() if pod.spec.node_name == name)
            self.changed_pods |= set(here)

    def _put_pod(self, pod: Pod, deleted: bool) -> None:
        uid = pod.metadata.uid
        if holds(pod) and not deleted:
            self.pods[uid] = pod
        else:
            self.pods.pop(uid, None)
            self.ends[uid] = end_of(pod)
            # A claim may pass to the next pod that it is reserved for.
            for key in self._claims_of.get(uid, ()):
                self.changed_pods |= set(_consumers(self._claims[key]))
        self.changed_pods.add(uid)

    def _put_claim(self, claim: ResourceClaim, deleted: bool) -> None:
        key = claim.key
        # What is held is in service, also of a device with a taint.
        self.changed_nodes |= self.devices.put_claim(claim, deleted)
        before = self._claims.pop(key, None)
        for uid in _consumers(before) if before is not None else ():
            self._claims_of[uid].pop(key, None)
            if not self._claims_of[uid]:
                del self._claims_of[uid]
            self.changed_pods.add(uid)
        if not deleted:
            self._claims[key] = claim
            for uid in _consumers(claim):
                self._claims_of[uid][key] = None
                self.changed_pods.add(uid)

    def claims_of(self, uid: str) -> Iterable[ResourceClaim]:
        """Yield the claims whose devices count for a pod: of several that share one, the first."""
        for key in self._claims_of.get(uid, ()):
            claim = self._claims[key]
            if next((one for one in _consumers(claim) if one in self.pods), None) == uid:
                yield claim

    def selector_of(self, node: str) -> DeviceSelector | None:
        """Return what selects the devices of a node's pool, None where it has all of them."""
        return selector_of(self.pool_of(node))

    def pool_of(self, node: str) -> ComputePool | None:
        """Return the pool of a node, the first by name of several; None for a node of none."""
        found = self.last_seen.get(node)
        if found is None:
            return None
        labels = found.metadata.labels
        pools = (self.pools[name] for name in sorted(self.pools))
        return next((pool for pool in pools if in_pool(pool, labels)), None)


def _read_of(node: Node) -> tuple[object, ...]:
    """Return what of a node changes what its pods hold."""
    return node.metadata.labels, gpu_registers(node)


def _consumers(claim: ResourceClaim) -> Sequence[str]:
    return [one.uid for one in claim.status.reserved_for if one.resource == "pods"]

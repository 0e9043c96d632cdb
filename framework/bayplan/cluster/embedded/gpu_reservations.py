"""What KAI's reservation pods do on their nodes: each says which GPU it got."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.dialects.kai.shares import INDEX_ANNOTATION, is_reservation, reserved_index

__all__ = ["GpuReservations"]


class GpuReservations:
    """Annotates reservation pods that run with the first index that no other one of the node has.

    Which GPUs other pods got is not known: no device plugin tells it.
    """

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._taken: dict[str, dict[str, int]] = {}
        """The indices by node and pod key."""
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Give a reservation pod its GPU, or take it back."""
        pod = event.obj
        if not isinstance(pod, Pod) or not is_reservation(pod) or not pod.spec.node_name:
            return
        taken = self._taken.setdefault(pod.spec.node_name, {})
        index = reserved_index(pod)
        if event.type is WatchType.DELETED or pod.status.phase in ("Succeeded", "Failed"):
            taken.pop(pod.key, None)
        elif isinstance(index, int):
            taken[pod.key] = index
        elif pod.status.phase == "Running":
            free = next(n for n in range(len(taken) + 1) if n not in taken.values())
            annotations = {**pod.metadata.annotations, INDEX_ANNOTATION: str(free)}
            meta = replace(pod.metadata, annotations=annotations)
            self._cluster.update(replace(pod, metadata=meta))

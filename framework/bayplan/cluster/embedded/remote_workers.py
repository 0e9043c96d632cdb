"""What TensorFusion's operator does: a worker for each pod that uses GPUs over the network."""

from __future__ import annotations

from bayplan.api import Pod
from bayplan.cluster.embedded.owner_references import controller_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.dialects.tensor_fusion import side_of, worker_of, workload_of
from bayplan.errors import AlreadyExists, InputError

__all__ = ["RemoteWorkers"]

_ENDED = ("Succeeded", "Failed")


class RemoteWorkers:
    """Creates a worker for each client, replaces it when it ends, deletes it with its client.

    A client whose workload has a worker that somebody else made gets none.
    """

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._dirty: dict[str, None] = {}
        self._workers: dict[str, dict[str, None]] = {}
        """The keys of workers by the key of their client."""
        self._others: dict[str, dict[str, None]] = {}
        """The keys of workers without a client of their own, by namespace and workload."""
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Look at a client, or at the client of a worker, after all events of this instant."""
        pod = event.obj
        if not isinstance(pod, Pod):
            return
        side = side_of(pod)
        if side == "client":
            self._look_at(pod.key)
        elif side == "worker":
            client = _client_of(pod)
            index = self._workers if client else self._others
            known = index.setdefault(client or _workload_key(pod), {})
            if event.type is WatchType.DELETED or (not client and _is_over(pod)):
                known.pop(pod.key, None)
            else:
                known[pod.key] = None
            if client and (event.type is not WatchType.MODIFIED or _is_over(pod)):
                self._look_at(client)

    def _look_at(self, client: str) -> None:
        if not self._dirty:
            self._cluster.clock.call_later(0, self._reconcile_all)
        self._dirty[client] = None

    def _reconcile_all(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for key in dirty:
            self._reconcile(key)

    def _reconcile(self, key: str) -> None:
        client = self._cluster.get(Pod, key)
        if client is not None and _is_over(client):
            client = None
        served = False
        for name in tuple(self._workers.get(key, ())):
            worker = self._cluster.get(Pod, name)
            if worker is None:
                continue
            served = True
            stale = client is None or not _owned_by(worker, client) or _is_over(worker)
            if stale and worker.metadata.deletion_timestamp is None:
                self._cluster.delete(Pod, name)
        if client is None:
            self._workers.pop(key, None)
        elif not served and client.metadata.deletion_timestamp is None:
            if not self._others.get(_workload_key(client)):
                self._create(client)

    def _create(self, client: Pod) -> None:
        try:
            worker = self._cluster.create(worker_of(client))
        except AlreadyExists as exc:
            self._cluster.report(client, InputError(f"its worker cannot be created: {exc}"))
        except ValueError as exc:
            self._cluster.report(client, InputError(str(exc)))
        except InputError as exc:
            self._cluster.report(client, exc)
        else:
            self._workers.setdefault(client.key, {})[worker.key] = None


def _is_over(pod: Pod) -> bool:
    return pod.status.phase in _ENDED


def _client_of(worker: Pod) -> str:
    """Return the key of the client that a worker was made for, "" if for none."""
    owner = controller_of(worker.metadata)
    if owner is None or owner.kind != "Pod":
        return ""
    return f"{worker.metadata.namespace}/{owner.name}"


def _workload_key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{workload_of(pod)}"


def _owned_by(worker: Pod, client: Pod) -> bool:
    owner = controller_of(worker.metadata)
    return owner is not None and owner.uid in ("", client.metadata.uid)

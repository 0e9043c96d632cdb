"""Where plain queues come from: queue ConfigMaps, or namespaces with a ResourceQuota."""

from __future__ import annotations

from bayplan import Handle, PodInfo
from bayplan.api import ResourceQuota
from bayplan.api.configmap import ConfigMap
from bayplan.api.queue import Queue
from bayplan.dialects import queue_configmap, resource_quota
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.plain.policy import PlainArgs, PlainPolicy

__all__ = ["config_map_queues", "namespace_queues"]


def config_map_queues(args: PlainArgs, handle: Handle) -> PlainPolicy:
    """Return the policy of the queues that ConfigMaps define."""
    tenants = _Tenants(handle.snapshot)

    def queue_of(pod: PodInfo) -> str | None:
        named = pod.labels.get(queue_configmap.LABEL) or pod.annotations.get(queue_configmap.LABEL)
        return named or tenants.queue_of(pod.namespace)

    return PlainPolicy(
        queue_configmap.NAME,
        args,
        handle,
        (ConfigMap,),
        _config_map_queues,
        queue_of,
        concerns=lambda one: isinstance(one, ConfigMap) and queue_configmap.is_queue(one),
    )


def _config_map_queues(snapshot: Snapshot) -> list[Queue]:
    found = snapshot.objects(ConfigMap).values()
    return [queue_configmap.queue_of(one) for one in found if queue_configmap.is_queue(one)]


class _Tenants:
    """The queue of each namespace that a queue's ConfigMap names as a tenant."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._queues: dict[str, str] | None = None
        snapshot.on_object(ConfigMap, self._changed)

    def _changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if any(one is not None and queue_configmap.is_queue(one) for one in (old, new)):
            self._queues = None

    def queue_of(self, namespace: str) -> str | None:
        """Return the queue of a namespace, the first by the key of its ConfigMap."""
        if self._queues is None:
            self._queues = {}
            for _, one in sorted(self._snapshot.objects(ConfigMap).items()):
                if queue_configmap.is_queue(one):
                    self._add(one)
        return self._queues.get(namespace)

    def _add(self, config_map: ConfigMap) -> None:
        assert self._queues is not None, "being filled"
        try:
            tenants = queue_configmap.fields_of(config_map).tenants
        except ValueError:
            # The queue's own problem says what is wrong.
            return
        for tenant in tenants:
            self._queues.setdefault(tenant, config_map.metadata.labels[queue_configmap.LABEL])


def namespace_queues(args: PlainArgs, handle: Handle) -> PlainPolicy:
    """Return the policy of namespaces with a ResourceQuota."""

    def queue_of(pod: PodInfo) -> str | None:
        return pod.namespace if pod.namespace in spaces() else None

    def spaces() -> set[str]:
        quotas = handle.snapshot.objects(ResourceQuota)
        return {quota.metadata.namespace for quota in quotas.values()}

    return PlainPolicy(resource_quota.NAME, args, handle, (ResourceQuota,), _quotas, queue_of)


def _quotas(snapshot: Snapshot) -> list[Queue]:
    return resource_quota.queues_of(snapshot.objects(ResourceQuota).values())

"""The ElasticJob controller: replicas of one template, as an indexed Job has them, and a service.

Pods have the names ``<job>-<index>``. One that fails is replaced, at most ``backoffLimit`` times in
all; the job has succeeded once every index has.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import ElasticJob, ObjectMeta, Pod, Service
from bayplan.api.policy import ServiceSpec
from bayplan.api.pools import ElasticJobStatus
from bayplan.cluster.embedded.children import (
    Children,
    PodOverrides,
    Template,
    alive,
    is_ready,
    reference_of,
    template_at,
)
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.elastic import index_of
from bayplan.dialects.elastic_job import (
    UID_LABEL,
    labels_of,
    pod_name,
    spec_content,
    spec_of,
    wanted,
)
from bayplan.errors import AlreadyExists

__all__ = ["ElasticJobController"]

_ENDED = ("Succeeded", "Failed")


class ElasticJobController:
    """Creates, replaces and removes the pods of elastic jobs, and writes the jobs' status."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: ElasticJob) -> None:
        """Bring the pods of an elastic job in line with it, and write its status."""
        if owner.status.phase in _ENDED:
            return
        self._make_service(owner)
        count, failed = wanted(owner), owner.status.failed
        kept: dict[int, Pod] = {}
        for pod in self._children.pods(owner):
            index = index_of(pod.metadata)
            if pod.metadata.deletion_timestamp is not None or index is None:
                continue
            if pod.status.phase == "Failed":
                failed += 1
                self._children.delete(pod)
            elif index >= count:
                self._children.delete(pod)
            else:
                kept[index] = pod
        if failed > owner.spec.backoff_limit:
            for pod in filter(alive, kept.values()):
                self._children.delete(pod)
        else:
            for index in range(count):
                if index not in kept:
                    self._make(owner, index)
        self._write_status(owner, kept, count, failed)

    def forget(self, owner: ElasticJob) -> None:
        """Delete the service of an elastic job that is gone."""
        key = f"{owner.metadata.namespace}/{owner.metadata.name}"
        service = self._cluster.get(Service, key)
        if service is not None and service.spec.selector.get(UID_LABEL) == owner.metadata.uid:
            self._cluster.delete(Service, key)

    def _make_service(self, owner: ElasticJob) -> None:
        meta = owner.metadata
        if self._cluster.get(Service, f"{meta.namespace}/{meta.name}") is not None:
            return
        made = ObjectMeta(
            name=meta.name, namespace=meta.namespace, owner_references=(reference_of(owner),)
        )
        service = Service(made, ServiceSpec({UID_LABEL: meta.uid}))
        content = {"apiVersion": "v1", "kind": "Service", "metadata": {}}
        headless = {"clusterIP": "None", "publishNotReadyAddresses": True}
        try:
            self._cluster.create_from(service, {**content, "spec": headless}, Service())
        except AlreadyExists:
            return

    def _make(self, owner: ElasticJob, index: int) -> None:
        typed = replace(owner.spec.template, spec=spec_of(owner))
        held = template_at(self._cluster, owner, owner.spec.template, "template").content
        if held is not None:
            held = {**held, "spec": spec_content(owner, held.get("spec", {}), index)}
        labels = labels_of(owner, index)
        marks = PodOverrides(name=pod_name(owner, index), labels=labels)
        self._children.make(owner, Template(typed, held), marks)

    def _write_status(
        self, owner: ElasticJob, kept: dict[int, Pod], count: int, failed: int
    ) -> None:
        old, now = owner.status, self._cluster.timestamp()
        succeeded = sum(pod.status.phase == "Succeeded" for pod in kept.values())
        ready = sum(is_ready(pod) for pod in kept.values())
        phase = "Running" if ready >= owner.spec.scaling.min_replicas else old.phase or "Pending"
        if failed > owner.spec.backoff_limit:
            phase = "Failed"
        elif succeeded >= count:
            phase = "Succeeded"
        status = ElasticJobStatus(
            phase=phase,
            replicas=count,
            ready=ready,
            succeeded=succeeded,
            failed=failed,
            start_time=old.start_time or now,
            completion_time=now if phase in _ENDED else None,
            conditions=old.conditions,
        )
        if status != old:
            self._cluster.update(replace(owner, status=status))

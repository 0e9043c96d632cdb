"""Workloads of nothing that bayplan follows: of frameworks with controllers of their own, or alone.

They are admitted as others. Their pods are not known, so that they are tried on nodes as their
specification has them, and nothing keeps the nodes until the pods come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bayplan import PodInfo
from bayplan.api import ObjectMeta, Pod
from bayplan.api.kueue import KueueWorkload, ResourceFlavor
from bayplan_plugins.queues.kueue.conditions import has_quota
from bayplan_plugins.queues.kueue.injection import admitted_spec
from bayplan_plugins.queues.kueue.pods_to_come import PodToCome

__all__ = ["pods_of", "with_admission"]


def with_admission(
    stored: KueueWorkload | None, old: KueueWorkload | None, new: KueueWorkload
) -> KueueWorkload:
    """Return a Workload that was changed with what it was admitted with, if that is on its way.

    :param stored: as admission has it.
    """
    if stored is None or not has_quota(stored) or has_quota(new):
        return new
    if old is None or has_quota(old) or stored.metadata.uid != new.metadata.uid:
        # Somebody took the quota away, or it is another one.
        return new
    checks = new.status.admission_checks or stored.status.admission_checks
    status = msgspec.structs.replace(stored.status, admission_checks=checks)
    return msgspec.structs.replace(new, status=status)


def pods_of(
    workload: KueueWorkload,
    counts: Mapping[str, int],
    flavors: Mapping[str, Sequence[ResourceFlavor]],
    room: int,
) -> list[PodToCome]:
    """Return the pods that a Workload will have, until it has quota.

    :param counts: the number of pods of each pod set.
    :param flavors: the flavors of each pod set.
    :param room: how many pods all nodes take; of a pod set with more, one more than that.
    """
    if has_quota(workload):
        return []
    found = []
    meta, priority = workload.metadata, workload.spec.priority
    for pod_set in workload.spec.pod_sets:
        template = pod_set.template
        spec = admitted_spec(template.spec, flavors.get(pod_set.name, ()))
        spec = msgspec.structs.replace(spec, priority=priority)
        for number in range(min(counts.get(pod_set.name, 0), room + 1)):
            made = ObjectMeta(
                # Kubernetes gives no pod a name with a colon.
                name=f"{meta.name}:{pod_set.name}:{number}",
                namespace=meta.namespace,
                labels=template.metadata.labels,
                annotations=template.metadata.annotations,
            )
            found.append(PodToCome(PodInfo(Pod(made, spec)), pod_set.name))
    return found

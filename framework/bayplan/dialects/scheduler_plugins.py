"""scheduler-plugins: Coscheduling's PodGroup (scheduling.x-k8s.io/v1alpha1) and its pod label."""

from __future__ import annotations

from bayplan.api import ApiObject, Pod, SchedulerPluginsPodGroup
from bayplan.api.gang import Gang, Membership
from bayplan.dialects.koordinator.gangs import pod_group

__all__ = ["GROUP_LABEL", "MEMBERS_BY", "NAME", "gang_of", "membership_of"]

NAME = "scheduler-plugins"
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
MEMBERS_BY = frozenset((GROUP_LABEL,))
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""


def membership_of(pod: Pod) -> Membership | None:
    """Return the pod's gang by label."""
    name = pod.metadata.labels.get(GROUP_LABEL)
    return Membership(f"{pod.metadata.namespace}/{name}") if name else None


def gang_of(group: ApiObject) -> Gang | None:
    """Return the gang of a PodGroup (scheduling.x-k8s.io)."""
    return pod_group(group) if isinstance(group, SchedulerPluginsPodGroup) else None

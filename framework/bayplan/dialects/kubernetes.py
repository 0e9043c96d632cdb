"""Plain Kubernetes: completion indices, and the Workload API of 1.36 and 1.37.

The versions of the Workload API use different names; only this module knows them:
``disruptionMode`` is ``Pod | PodGroup`` in v1alpha2, an object with ``single`` or ``all`` later.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api import ApiObject, NativePodGroup, Pod, Workload
from bayplan.api.gang import Gang, Gather, Membership
from bayplan.api.podgroup import NativePodGroupSpec, PodGroupTemplate
from bayplan.dialects.reading import is_index

__all__ = ["MEMBERS_BY", "NAME", "gang_of", "membership_of", "rank_of", "template_of"]

NAME = "Kubernetes"
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_POD_INDEX = "apps.kubernetes.io/pod-index"
MEMBERS_BY = frozenset((_COMPLETION_INDEX, _POD_INDEX))
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""
_SCHEDULED = ("PodGroupScheduled", "PodGroupInitiallyScheduled")
_MODES = {
    "": False,
    "Pod": False,
    "Single": False,
    "single": False,
    "PodGroup": True,
    "All": True,
    "all": True,
}


def rank_of(pod: Pod) -> int | None:
    """Return the completion index of an Indexed Job's pod, or the ordinal of a StatefulSet's."""
    meta = pod.metadata
    text = meta.annotations.get(_COMPLETION_INDEX) or meta.labels.get(_POD_INDEX) or ""
    return int(text) if is_index(text) else None


def membership_of(pod: Pod) -> Membership | None:
    """Return the gang that spec.schedulingGroup names."""
    group = pod.spec.scheduling_group
    if group is None or not group.pod_group_name:
        return None
    return Membership(f"{pod.metadata.namespace}/{group.pod_group_name}")


def template_of(group: ApiObject) -> tuple[str, str] | None:
    """Return the key of the Workload from which a pod group takes its policy, and the template."""
    if not isinstance(group, NativePodGroup) or group.spec.scheduling_policy is not None:
        return None
    reference, named = group.spec.pod_group_template_ref, group.spec.workload_ref
    if named is not None:
        return f"{group.metadata.namespace}/{named.workload_name}", named.template_name
    if reference is None or reference.workload is None:
        return None
    of = reference.workload
    return f"{group.metadata.namespace}/{of.workload_name}", of.pod_group_template_name


def gang_of(group: ApiObject, workloads: Mapping[str, Workload] | None = None) -> Gang | None:
    """Return the gang of a Kubernetes pod group.

    :param workloads: the Workloads by key, for groups whose policy is in a Workload's template.
    """
    if not isinstance(group, NativePodGroup):
        return None
    key = f"{group.metadata.namespace}/{group.metadata.name}"
    spec: NativePodGroupSpec | PodGroupTemplate = group.spec
    found = template_of(group)
    if found is not None:
        workload = (workloads or {}).get(found[0])
        if workload is None:
            return Gang(key, 1, problem=f'Workload "{found[0]}" does not exist')
        name = found[1]
        templates = {one.name: one for one in workload.spec.pod_group_templates}
        if name not in templates:
            return Gang(key, 1, problem=f'Workload "{found[0]}" has no template "{name}"')
        spec = templates[name]
    policy = spec.scheduling_policy
    if policy is None or (policy.basic is None) == (policy.gang is None):
        return Gang(key, 1, problem="schedulingPolicy: expected exactly one of basic and gang")
    least = policy.gang.min_count if policy.gang is not None else 1
    if least < 1:
        problem = f"schedulingPolicy.gang.minCount: expected 1 or more, got {least}"
        return Gang(key, 1, problem=problem)
    given = spec.disruption_mode
    mode = given if isinstance(given, str) else next(iter(given), "")
    if mode not in _MODES:
        known = "Pod, PodGroup, single and all"
        return Gang(key, least, problem=f'disruptionMode: expected one of {known}, got "{mode}"')
    gather = tuple(Gather(t.key, required=True) for t in spec.scheduling_constraints.topology)
    return Gang(
        key,
        least,
        gather,
        whole=_MODES[mode],
        satisfied=any(
            condition.type in _SCHEDULED and condition.status == "True"
            for condition in group.status.conditions
        ),
    )

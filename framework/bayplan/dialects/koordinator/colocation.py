"""Koordinator: what a ClusterColocationProfile changes in a pod, and Batch and mid resources.

Rules as in koordinator-sh/koordinator v1.8 (pkg/webhook/pod/mutating/cluster_colocation_profile.go,
extended_resource_spec.go).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.api.colocation import ClusterColocationProfile
from bayplan.api.meta import LabelSelector
from bayplan.api.pod import Container, Toleration
from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of
from bayplan.api.selectors import compile_selector
from bayplan.dialects.koordinator.qos import QOS_LABEL, priority_class

__all__ = [
    "BY_PROFILE",
    "CLASS_RESOURCES",
    "SKIP_RESOURCES",
    "SPEC_ANNOTATION",
    "SUB_PRIORITY_LABEL",
    "colocated",
    "with_class_resources",
]

SUB_PRIORITY_LABEL = "koordinator.sh/priority"
SPEC_ANNOTATION = "node.koordinator.sh/extended-resource-spec"
"""What koordlet reads of the Batch resources of containers."""
SKIP_RESOURCES = "config.koordinator.sh/skip-update-resources"
"""The annotation of a profile whose pods keep their requests of CPU and memory."""
BY_PROFILE = "bayplan.dev/colocation"
"""The annotation with the profiles that changed a pod, whose resources then follow its class."""
CLASS_RESOURCES = {
    "koord-batch": {"cpu": "kubernetes.io/batch-cpu", "memory": "kubernetes.io/batch-memory"},
    "koord-mid": {"cpu": "kubernetes.io/mid-cpu", "memory": "kubernetes.io/mid-memory"},
}
"""In place of which resource pods of a priority class state another one."""


def colocated(
    pod: Pod, namespace_labels: Mapping[str, str], profiles: Iterable[ClusterColocationProfile]
) -> Pod:
    """Return a new pod with what all profiles that select it say, in the order of their names.

    Its resources become those of its class later, once its priority is known; unless one of the
    profiles leaves them as they are, it then has the annotation ``BY_PROFILE``.
    """
    own = [
        one
        for one in sorted(profiles, key=lambda one: one.key)
        if one.is_on
        and _selects(one.spec.namespace_selector, namespace_labels)
        and _selects(one.spec.selector, pod.metadata.labels)
    ]
    skips = any(SKIP_RESOURCES in one.metadata.annotations for one in own)
    for one in own:
        pod = _changed(pod, one)
    if own and not skips:
        annotations = {**pod.metadata.annotations, BY_PROFILE: ",".join(one.key for one in own)}
        pod = replace(pod, metadata=replace(pod.metadata, annotations=annotations))
    return pod


def _selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    return selector is None or compile_selector(selector).matches(labels)


def _changed(pod: Pod, profile: ClusterColocationProfile) -> Pod:
    spec, meta = profile.spec, pod.metadata
    labels = {**meta.labels, **spec.labels}
    annotations = {**meta.annotations, **spec.annotations}
    for old, new in spec.label_keys_mapping.items():
        labels[new] = labels.get(old, "")
    for old, new in spec.annotation_keys_mapping.items():
        annotations[new] = annotations.get(old, "")
    labels |= {key: labels[key] + end for key, end in spec.label_suffixes.items() if key in labels}
    if spec.qos_class:
        labels[QOS_LABEL] = spec.qos_class
    if spec.koordinator_priority is not None:
        labels[SUB_PRIORITY_LABEL] = str(spec.koordinator_priority)
    own: dict[str, Any] = {}
    if spec.scheduler_name:
        own["scheduler_name"] = spec.scheduler_name
    if spec.priority_class_name:
        own |= {
            "priority_class_name": spec.priority_class_name,
            "priority": None,
            "preemption_policy": None,
        }
    patch = spec.patch or {}
    labels = _merged(labels, patch.get("metadata", {}).get("labels", {}))
    annotations = _merged(annotations, patch.get("metadata", {}).get("annotations", {}))
    of_spec = patch.get("spec", {})
    if "nodeSelector" in of_spec:
        own["node_selector"] = _merged(pod.spec.node_selector, of_spec["nodeSelector"])
    if "schedulerName" in of_spec:
        own["scheduler_name"] = of_spec["schedulerName"]
    if "tolerations" in of_spec:
        own["tolerations"] = msgspec.convert(of_spec["tolerations"], tuple[Toleration, ...])
    changed = replace(meta, labels=labels, annotations=annotations)
    return replace(pod, metadata=changed, spec=replace(pod.spec, **own))


def _merged(before: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    """Return a map with a patch: null takes a key away."""
    found = {**before, **patch}
    return {key: value for key, value in found.items() if value is not None}


def with_class_resources(pod: Pod) -> Pod:
    """Return a pod of ``koord-batch`` or ``koord-mid`` that asks for the resources of its class.

    Only what a profile chose changes. CPUs become thousandths of a CPU, and requests that are not
    stated as high as limits.
    """
    if BY_PROFILE not in pod.metadata.annotations:
        return pod
    names = CLASS_RESOURCES.get(priority_class(pod))
    if names is None:
        return pod
    spec = replace(
        pod.spec,
        containers=tuple(_translated(one, names) for one in pod.spec.containers),
        init_containers=tuple(_translated(one, names) for one in pod.spec.init_containers),
    )
    return _with_spec_annotation(replace(pod, spec=spec))


def _translated(container: Container, names: Mapping[str, str]) -> Container:
    own = container.resources
    limits = _renamed(own.limits, names)
    stated = {name: limits[name] for name in names.values() if name in limits}
    resources = replace(own, limits=limits, requests={**stated, **_renamed(own.requests, names)})
    return replace(container, resources=resources)


def _renamed(amounts: Mapping[str, Quantity], names: Mapping[str, str]) -> dict[str, Quantity]:
    found = {name: amount for name, amount in amounts.items() if name not in names}
    for old, new in names.items():
        if old in amounts:
            found[new] = Quantity(amount_of(old, amounts[old])) if old == "cpu" else amounts[old]
    return found


def _with_spec_annotation(pod: Pod) -> Pod:
    """Say in an annotation what containers ask for of Batch resources."""
    batch = CLASS_RESOURCES["koord-batch"].values()
    containers = {}
    for one in pod.spec.containers:
        parts = (("limits", one.resources.limits), ("requests", one.resources.requests))
        stated = {
            part: {name: amounts[name].text for name in sorted(batch) if name in amounts}
            for part, amounts in parts
        }
        if any(stated.values()):
            containers[one.name] = {part: given for part, given in stated.items() if given}
    if not containers:
        return pod
    text = json.dumps({"containers": containers}, separators=(",", ":"))
    annotations = {**pod.metadata.annotations, SPEC_ANNOTATION: text}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))

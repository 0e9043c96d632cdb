"""The scheduling gates of Kueue: pods that carry one get it removed once they are admitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from bayplan import PodInfo
from bayplan.api import Pod
from bayplan.api.kueue import ResourceFlavor
from bayplan.cluster.protocol import PatchFields, pointer
from bayplan.dialects.kueue import ADMISSION_GATE
from bayplan_plugins.queues.kueue.injection import ELASTIC_GATE, admitted_spec
from bayplan_plugins.queues.kueue.pod_set_info import PodSetInfo
from bayplan_plugins.queues.kueue.written import Written

__all__ = ["as_admitted", "gates_of", "is_gated", "mark", "open_gate", "waits_for_topology"]

_TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
"""Of pods whose nodes Kueue chooses."""
_OWN = (ADMISSION_GATE, ELASTIC_GATE, _TOPOLOGY_GATE)


def gates_of(pod: PodInfo) -> list[str]:
    """Return which of the gates a pod has."""
    return [one.name for one in pod.spec.scheduling_gates if one.name in _OWN]


def is_gated(pod: PodInfo) -> bool:
    """Tell whether a pod has one of the gates. Only then its node selector may still change."""
    return bool(gates_of(pod))


def waits_for_topology(pod: PodInfo) -> bool:
    """Tell whether a pod waits for nothing but the nodes that Kueue's manager chooses."""
    if not pod.spec.scheduling_gates:
        return False
    gates = {one.name for one in pod.spec.scheduling_gates}
    return _TOPOLOGY_GATE in gates and ADMISSION_GATE not in gates


def mark(written: Written, key: str, pod: PodInfo, asked: PodSetInfo) -> None:
    """Set the labels and annotations that a workload's pod lacks."""
    meta = pod.pod.metadata
    fields: dict[str, Any] = {}
    for part, has, wanted in (
        ("labels", meta.labels, asked.labels),
        ("annotations", meta.annotations, asked.annotations),
    ):
        missing = {name: text for name, text in wanted.items() if has.get(name) != text}
        if missing and not has:
            fields[pointer("metadata", part)] = missing
        else:
            fields |= {pointer("metadata", part, name): text for name, text in missing.items()}
    if fields:
        write = PatchFields(Pod, pod.key, pod.uid, fields)
        written.once(key, f"marks {pod.key}", (meta.resource_version, fields), write)


def as_admitted(pod: PodInfo, flavors: Iterable[ResourceFlavor]) -> PodInfo:
    """Return a pod with the gate as it is once its flavors are assigned."""
    spec = admitted_spec(pod.spec, flavors)
    return pod.changed(msgspec.structs.replace(pod.pod, spec=spec))


def open_gate(
    written: Written,
    key: str,
    pod: PodInfo,
    flavors: Iterable[ResourceFlavor],
    asked: PodSetInfo,
) -> bool:
    """Remove the gates of a workload's pod, and let it run where its flavors say.

    :param asked: what the workload's admission checks ask for in the pod.
    :return: False if that was submitted before.
    """
    spec = admitted_spec(pod.spec, flavors, asked)
    mark(written, key, pod, asked)
    left = [{"name": one.name} for one in spec.scheduling_gates if one.name not in _OWN]
    fields: dict[str, Any] = {"/spec/schedulingGates": left}
    if spec.node_selector != pod.spec.node_selector:
        fields["/spec/nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations != pod.spec.tolerations:
        fields["/spec/tolerations"] = msgspec.to_builtins(list(spec.tolerations))
    reason = (pod.pod.metadata.resource_version, fields)
    return written.once(key, f"gate {pod.key}", reason, PatchFields(Pod, pod.key, pod.uid, fields))

"""What admission adds to pods: nodes to select, tolerations, and to elastic ones a gate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bayplan.api.kueue import AssignedPodSet, KueueWorkload, ResourceFlavor
from bayplan.api.pod import PodSpec, SchedulingGate
from bayplan.dialects.queued_jobs import JobPods, QueuedJob

__all__ = ["ELASTIC_GATE", "admitted_fields", "admitted_spec", "restored_fields"]

ELASTIC_GATE = "kueue.x-k8s.io/elastic-job"
"""The gate of pods of elastic jobs, which wait for the slice that they are admitted with."""


def admitted_spec(spec: PodSpec, flavors: Iterable[ResourceFlavor]) -> PodSpec:
    """Return a pod's spec with what its flavors add."""
    selector, tolerations = dict(spec.node_selector), list(spec.tolerations)
    for flavor in flavors:
        selector |= flavor.spec.node_labels
        tolerations += [one for one in flavor.spec.tolerations if one not in tolerations]
    return msgspec.structs.replace(spec, node_selector=selector, tolerations=tuple(tolerations))


def admitted_fields(
    job: QueuedJob, workload: KueueWorkload, known: Mapping[str, ResourceFlavor]
) -> dict[str, Any]:
    """Return the fields of a job that let it run where its workload was admitted.

    :param known: the flavors by name.
    """
    admission = workload.status.admission
    assigned = admission.pod_set_assignments if admission is not None else ()
    of_set = {one.name: one for one in assigned}
    fields: dict[str, Any] = {}
    for pods, given in _with_templates(job, workload):
        one = of_set.get(pods.name, AssignedPodSet(pods.name))
        flavors = [known[name] for name in dict.fromkeys(one.flavors.values()) if name in known]
        wanted = admitted_spec(given, flavors)
        fields |= _template_fields(pods, _gated(wanted) if job.elastic else wanted)
        if one.count is not None and one.count < pods.count:
            fields |= dict.fromkeys(pods.count_pointers, one.count)
    return {**fields, **job.resume}


def _gated(spec: PodSpec) -> PodSpec:
    """Return a spec with the gate: pods that a job gets when it grows wait for their slice."""
    gates = [one for one in spec.scheduling_gates if one.name != ELASTIC_GATE]
    gates.append(SchedulingGate(ELASTIC_GATE))
    return msgspec.structs.replace(spec, scheduling_gates=tuple(gates))


def restored_fields(job: QueuedJob, workload: KueueWorkload) -> dict[str, Any]:
    """Return the fields of a job that differ from those that it came with; none of its suspension.

    A job may only get them back once it is suspended.
    """
    counts = {one.name: one.count for one in workload.spec.pod_sets}
    fields: dict[str, Any] = {}
    for pods, given in _with_templates(job, workload):
        fields |= _template_fields(pods, given)
        if counts[pods.name] != pods.count:
            fields |= dict.fromkeys(pods.count_pointers, counts[pods.name])
    return fields


def _with_templates(job: QueuedJob, workload: KueueWorkload) -> list[tuple[JobPods, PodSpec]]:
    """Return the templates of a job, each with the spec that it came with."""
    given = {one.name: one.template.spec for one in workload.spec.pod_sets}
    own = (pods for pods in job.pods if pods.pointer)
    return [(pods, given[pods.name]) for pods in own if pods.name in given]


def _template_fields(pods: JobPods, wanted: PodSpec) -> dict[str, Any]:
    """Return the fields of a template that differ from what is wanted."""
    now = pods.template.spec
    fields: dict[str, Any] = {}
    if now.node_selector != wanted.node_selector:
        fields[f"{pods.pointer}/spec/nodeSelector"] = dict(wanted.node_selector)
    if now.tolerations != wanted.tolerations:
        fields[f"{pods.pointer}/spec/tolerations"] = msgspec.to_builtins(list(wanted.tolerations))
    if now.scheduling_gates != wanted.scheduling_gates:
        gates = [{"name": one.name} for one in wanted.scheduling_gates]
        fields[f"{pods.pointer}/spec/schedulingGates"] = gates
    return fields

"""KAI's and Volcano's groupers: the gangs that the scheduler makes of what owns pods.

No PodGroup is written, so its name, labels and owner are not compared; what decides placement is:
how many pods have to run, of which role, in which domain of the network, and in which queue.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.conformance.kind_cases import Case, UnmodelledError

from bayplan.api import KINDS
from bayplan.api.gang import Gang
from bayplan.api.objects import decode_part
from bayplan.api.operated import PodGang
from bayplan.dialects import gang_of
from bayplan.kinds import KINDS_OF_WORKLOADS, WorkloadKind, templates_of
from bayplan.testing import Cluster, make_object

Content = dict[str, Any]
_QUEUE = "kai.scheduler/queue"
_SEGMENTS = "kai.scheduler/segment-size"
_WRITES_NONE = "it is about a PodGroup as an object, and none is written"
_KAI_ONLY = {
    "AmlJob",
    "CronJob",
    "Deployment",
    "Knative Service",
    "Notebook",
    "Pod",
    "RunaiJob",
    "SPOTRequest",
    "skip-top-owner",
}
"""Rules for which one pod is one group, or for kinds without a row."""
_ROLES = {"headgroup": "head", "workers": "worker"}
"""KAI's names of sub-groups, where bayplan's differ."""


def run_grouper_case(case: Case) -> None:
    """Run a case; an assertion tells the difference.

    :raises UnmodelledError: for what bayplan has no part for.
    """
    runner = RUNNERS.get((case["id"].partition("-")[0], case["kind"]))
    if runner is None:
        raise UnmodelledError(_WRITES_NONE)
    runner(case["input"], case["expected"])


def gang_by(owner: Content, pod: Content, row: WorkloadKind) -> Gang | None:
    """Return the gang that the scheduler makes of a pod of an owner."""
    meta = {"name": "n", "namespace": "ns", "uid": "u", **owner["metadata"]}
    meta |= {key: meta[key].replace("_", "-") for key in ("name", "namespace")}
    group = owner["apiVersion"].rpartition("/")[0]
    # Cases hold what an API server would refuse, such as a job with two masters.
    fields = {"metadata": meta, "spec": owner["spec"]}
    own = decode_part(KINDS[group, owner["kind"]].type, fields)
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "pod",
            "namespace": meta["namespace"],
            "labels": _labels(owner, row, pod),
            "annotations": pod.get("metadata", {}).get("annotations", {}),
            "ownerReferences": [reference],
        },
        "spec": {"containers": [{"name": "c"}]},
    }
    cluster = Cluster([own])
    cluster.add(make_object(made))
    cluster.schedule()
    gangs = [one.gang for one in cluster.scheduler.gangs.all().values() if one.gang is not None]
    return gangs[0] if gangs else None


def _labels(owner: Content, row: WorkloadKind, pod: Content) -> Content:
    """Return the labels of a pod, with those of the first role if the case left them out."""
    labels = dict(pod.get("metadata", {}).get("labels") or {})
    first = next(iter(templates_of(row, owner)), None)
    if first is not None and not any(key in labels for key in first.labels):
        labels |= first.labels
    if row.unit:
        labels.setdefault(row.unit, "0")
    return labels


def with_templates(owner: Content, row: WorkloadKind) -> Content:
    """Return an owner with the pod templates that its API requires, which cases leave out."""
    owner = copy.deepcopy(owner)
    owner["spec"] = spec = owner.get("spec") or {}
    if owner["kind"] == "RayCluster":
        spec.setdefault("headGroupSpec", {})
        for index, group in enumerate(spec.get("workerGroupSpecs", ())):
            group.setdefault("groupName", f"worker-group-{index}")
    entries = [spec.get("headGroupSpec"), *spec.get("workerGroupSpecs", ())]
    for name, value in spec.items():
        if name.endswith("ReplicaSpecs"):
            entries += value.values()
        elif name == "replicatedJobs":
            entries += [one["template"]["spec"] for one in value]
        elif name == "leaderWorkerTemplate":
            value.setdefault("workerTemplate", {}).setdefault("spec", {})
    if owner["kind"] in ("Job", "StatefulSet", "ReplicaSet"):
        entries.append(spec)
    for entry in entries:
        if entry is not None:
            template = entry.setdefault("template", {})
            template.setdefault("spec", {}).setdefault("containers", [{"name": "c"}])
            if "parallelism" in entry:
                entry.setdefault("completions", entry["parallelism"])
    return owner


# KAI -----------------------------------------------------------------------------------------


def pod_group(given: Content, expected: Content) -> None:
    rule, owner = given["grouper"], given.get("top_owner", {})
    if rule == "Grove":
        pod_gang(given, expected)
        return
    if rule in _KAI_ONLY:
        raise UnmodelledError(f"{rule}: pods are placed one by one, without a group")
    group, kind = owner.get("apiVersion", "").rpartition("/")[0], owner.get("kind", "")
    row = KINDS_OF_WORKLOADS.get((group, kind))
    if row is None or row.below or (group, kind) not in KINDS:
        raise UnmodelledError(f"{kind} of {group or 'no group'} makes no gang itself")
    if rule == "default" and not row.asked:
        raise UnmodelledError("it is a part of the rule of another kind")
    if "error" in expected:
        raise UnmodelledError("a role without pods, or a bad index, does not refuse a whole job")
    if _SEGMENTS in str(given) or "subGroupPolicy" in str(owner):
        raise UnmodelledError("segments are no parts of gangs of owners")
    if any(one.get("kind") == "PodGroup" for one in given.get("objects", ())):
        raise UnmodelledError("a PodGroup of an older KAI is there")
    wanted = expected["pod_group"]
    owner = with_templates(owner, row)
    if not any(one.count for one in templates_of(row, owner)):
        raise UnmodelledError("a job without pods is no gang")
    gang = gang_by(owner, given["pod"], row)
    if row.asked:
        _compare_asked(gang, wanted)
        return
    assert gang is not None
    _compare(gang, owner, wanted, row)


def pod_gang(given: Content, expected: Content) -> None:
    """Compare a PodGang of Grove."""
    found = [one for one in given.get("objects", ()) if one["kind"] == "PodGang"]
    if len(found) != 1:
        raise UnmodelledError("there is no PodGang: its pods wait until it is there")
    gang = gang_of(
        decode_part(PodGang, {key: found[0].get(key, {}) for key in ("metadata", "spec")})
    )
    assert gang is not None
    if "error" in expected:
        if "topology name" in expected["error"]:
            raise UnmodelledError("labels of nodes name the levels, without a topology")
        if "namespace" in expected["error"]:
            raise UnmodelledError("pods are known by their labels, in the namespace of the PodGang")
        assert gang.problem is not None
        return
    wanted = expected["pod_group"]
    assert gang.problem is None, gang.problem
    assert gang.min_member == wanted["min_available"]
    assert {(one.layer, one.required) for one in gang.gather} == _levels(wanted)
    parts = {one.name: one for one in gang.sub_groups}
    assert set(parts) == {one["name"] for one in wanted["sub_groups"]}
    for one in wanted["sub_groups"]:
        part = parts[one["name"]]
        assert (part.size, part.parent) == (one["min_available"], one.get("parent", ""))
        levels = {(gather.layer, gather.required) for gather in part.gather}
        assert levels == _levels(one.get("topology_constraints", {}))
    assert gang.topology == wanted.get("topology", gang.topology)


def _compare_asked(gang: Gang | None, wanted: Content) -> None:
    """Compare a Job, which is a gang only where it says so."""
    least = wanted["min_available"]
    assert (gang.min_member if gang is not None else 1) == least


def _compare(gang: Gang, owner: Content, wanted: Content, row: WorkloadKind) -> None:
    problem = gang.problem
    assert problem is None, problem
    stated = owner.get("metadata", {}).get("annotations") or {}
    if "kai.scheduler/batch-min-member" in str(owner):
        raise UnmodelledError("a JobSet needs all of its jobs, whatever KAI's annotation says")
    if (owner["spec"].get("startupPolicy") or {}) == {"startupPolicyOrder": "InOrder"}:
        raise UnmodelledError("jobs that start in order are a gang each")
    sizes = _sizes(wanted)
    there = sum(one.count for one in templates_of(row, owner))
    least = wanted["min_available"] or sum(sizes.values())
    if least > there:
        raise UnmodelledError("a gang needs no more pods than its job has")
    assert gang.min_member == least
    found = dict(gang.roles) or {one.name: one.size for one in gang.sub_groups}
    if found and sizes:
        assert found == {name: size for name, size in sizes.items() if size}
    levels = {(one.layer, one.required) for one in gang.gather}
    assert levels == _levels(wanted)
    parts = {one.name: {(g.layer, g.required) for g in one.gather} for one in gang.sub_groups}
    for one in wanted.get("sub_groups", ()):
        if "topology_constraints" in one:
            assert parts[_ROLES.get(one["name"], one["name"])] == _levels(
                one["topology_constraints"]
            )
    assert gang.queue == (owner["metadata"].get("labels") or {}).get(_QUEUE, "")
    if gang.queue:
        assert gang.queue == wanted["queue"]
    assert gang.topology == stated.get("kai.scheduler/topology", gang.topology)


def _levels(wanted: Content) -> set[tuple[str, bool]]:
    names = (("required_topology_level", True), ("preferred_topology_level", False))
    return {(wanted[name], required) for name, required in names if wanted.get(name)}


def _sizes(wanted: Content) -> dict[str, int]:
    """Return the pods that each role needs: leaves of one parent are one role's."""
    sizes: dict[str, int] = {}
    groups = wanted.get("sub_groups", ())
    for one in groups:
        name = one.get("parent") or one["name"]
        name = _ROLES.get(name, name)
        sizes[name] = sizes.get(name, 0) + one["min_available"]
    return sizes


# Volcano -------------------------------------------------------------------------------------


def min_member(given: Content, expected: Content) -> None:
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"annotations": given["annotations"]},
        "spec": {
            "replicas": 8,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c"}]},
            },
        },
    }
    gang = gang_by(owner, {}, KINDS_OF_WORKLOADS["apps", "ReplicaSet"])
    assert (gang.min_member if gang is not None else 1) == expected["min_member"]


RUNNERS: dict[tuple[str, str], Callable[[Content, Content], None]] = {
    ("kai", "pod-group"): pod_group,
    ("volcano", "min-member"): min_member,
}

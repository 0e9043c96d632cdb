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
from bayplan.testing import Cluster, make_node, make_object

Content = dict[str, Any]
_QUEUE = "kai.scheduler/queue"
_WRITES_NONE = "it is about a PodGroup as an object, and none is written"
_SINGLE = {
    "AmlJob",
    "CronJob",
    "Deployment",
    "Knative Service",
    "Notebook",
    "Pod",
    "RunaiJob",
    "SPOTRequest",
    "hub",
    "skip-top-owner",
}
"""Rules for which one pod is one group, or for kinds without a row."""
_PLAIN = {"containers": [{"name": "c"}]}
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
    if rule in _SINGLE:
        single(given, expected)
        return
    made = [one for one in given.get("objects", ()) if one.get("kind") == "RayCluster"]
    if owner.get("kind") in ("RayJob", "RayService") and made and rule != "default":
        # The gang is that of the cluster, with the annotations of its own.
        owner = {**made[0], "metadata": {**made[0]["metadata"], "annotations": {}}}
    group, kind = owner.get("apiVersion", "").rpartition("/")[0], owner.get("kind", "")
    row = KINDS_OF_WORKLOADS.get((group, kind))
    if row is None and rule == "default":
        single(given, expected)
        return
    if row is None or row.below or (group, kind) not in KINDS:
        raise UnmodelledError(f"{kind} of {group or 'no group'} makes no gang itself")
    if rule == "default" and not row.asked:
        raise UnmodelledError("it is a part of the rule of another kind")
    if "error" in expected:
        raise UnmodelledError("a role without pods, or a bad index, does not refuse a whole job")
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


def single(given: Content, expected: Content) -> None:
    """Compare a pod that is a group of its own: it waits for nobody."""
    if "error" in expected:
        raise UnmodelledError("an object that cannot be read keeps no pod from being placed")
    if expected["pod_group"].get("min_available") != 1:
        raise UnmodelledError("pods of that kind are a gang only where they say so")
    owner, pod = given.get("top_owner") or {}, given["pod"]
    meta: Content = {"name": "pod"}
    for key in ("labels", "annotations"):
        meta[key] = pod.get("metadata", {}).get(key) or {}
    if owner.get("kind") not in (None, "Pod"):
        kind = owner["kind"].replace("_", "")
        version = owner.get("apiVersion", "")
        reference = {"apiVersion": version, "kind": kind, "name": "owner", "uid": "u"}
        meta["ownerReferences"] = [{**reference, "controller": True}]
    content = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    cluster = Cluster([make_node("n"), make_object({**content, "spec": _PLAIN})])
    assert cluster.schedule() == {"pod": "n"}


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
    found = dict(gang.roles) or _own_sizes(gang)
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


def _own_sizes(gang: Gang) -> dict[str, int]:
    """Return the pods that each sub-group needs: segments of a role are the role's."""
    parents = {one.parent for one in gang.sub_groups}
    sizes: dict[str, int] = {}
    for one in gang.sub_groups:
        if one.name not in parents:
            name = one.parent or one.name
            sizes[name] = sizes.get(name, 0) + one.size
    return sizes


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


def lws_sub_groups(given: Content, expected: Content) -> None:
    """Compare the segments of a group of a LeaderWorkerSet."""
    row = KINDS_OF_WORKLOADS["leaderworkerset.x-k8s.io", "LeaderWorkerSet"]
    gang = gang_by(with_templates(given["top_owner"], row), given["pod"], row)
    assert gang is not None
    if "error" in expected:
        assert gang.problem is not None
        return
    assert gang.problem is None, gang.problem
    sizes = {name: size for name, size in _sizes(expected).items() if size}
    assert (dict(gang.roles) or _own_sizes(gang)) == sizes
    parts = {one.name: {(g.layer, g.required) for g in one.gather} for one in gang.sub_groups}
    for one in expected["sub_groups"]:
        assert parts.get(one["name"], set()) == _levels(one.get("topology_constraints", {}))


def owners(given: Content, expected: Content) -> None:
    """Compare whether a pod with these owners waits for anybody."""
    single(
        {"top_owner": expected["top_owner"], "pod": given["pod"]},
        {"pod_group": {"min_available": 1}},
    )


def skip_pod(given: Content, expected: Content) -> None:
    """Compare a pod that is left to whoever writes its group: a job does not make it a gang."""
    assert not expected["grouped"]
    annotations = given["pod"]["metadata"]["annotations"]
    if "pod-group-name" in annotations:
        raise UnmodelledError("the group that a pod names counts, and no other is made")
    replicas = {"Worker": {"replicas": 4, "template": {"spec": _PLAIN}}}
    owner = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "owner"},
        "spec": {"tfReplicaSpecs": replicas},
    }
    row = KINDS_OF_WORKLOADS["kubeflow.org", "TFJob"]
    assert gang_by(owner, {}, row) is not None
    assert gang_by(owner, given["pod"], row) is None


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


def group_of_pod(given: Content, expected: Content) -> None:
    """Compare how many pods have to run with one, whose group Volcano's controller makes."""
    _compare_members(given["pod"], given["objects"], expected["pod_group"])


def sync_pod(given: Content, expected: Content) -> None:
    groups = expected["pod_groups"]
    if len(groups) != 1 or given["pod_groups"]:
        raise UnmodelledError(_WRITES_NONE)
    _compare_members(given["pod"], given["objects"], groups[0])


def _compare_members(pod: Content, objects: list[Content], group: Content) -> None:
    owners = [one for one in objects if one["kind"] in ("ReplicaSet", "StatefulSet", "Job")]
    if not owners:
        single({"pod": pod}, {"pod_group": {"min_available": group["spec"]["minMember"]}})
        return
    version = "batch/v1" if owners[0]["kind"] == "Job" else "apps/v1"
    owner = {**owners[0], "apiVersion": version, "spec": {**owners[0]["spec"]}}
    owner["spec"].setdefault("selector", {"matchLabels": {"a": "b"}})
    key = owner["apiVersion"].rpartition("/")[0], owner["kind"]
    row = KINDS_OF_WORKLOADS[key]
    gang = gang_by(with_templates(owner, row), pod, row)
    assert (gang.min_member if gang is not None else 1) == group["spec"]["minMember"]


RUNNERS: dict[tuple[str, str], Callable[[Content, Content], None]] = {
    ("kai", "lws-sub-groups"): lws_sub_groups,
    ("kai", "owners"): owners,
    ("kai", "pod-group"): pod_group,
    ("kai", "skip-pod"): skip_pod,
    ("volcano", "min-member"): min_member,
    ("volcano", "pod-group-of-pod"): group_of_pod,
    ("volcano", "sync-pod"): sync_pod,
}

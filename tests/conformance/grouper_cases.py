"""KAI's and Volcano's groupers: the gangs that the scheduler makes of what owns pods.

No PodGroup is written, so its name, labels and owner are not compared; what decides placement is:
how many pods have to run, of which role, in which domain of the network, in which queue, and
whether they may be preempted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.conformance.kind_cases import Case, UnmodelledError

from bayplan.api import KINDS, Pod
from bayplan.api.gang import Gang
from bayplan.api.objects import decode_part
from bayplan.api.operated import PodGang
from bayplan.dialects import gang_of, kai
from bayplan.kinds import KINDS_OF_WORKLOADS, WorkloadKind, templates_of
from bayplan.snapshot import PodInfo
from bayplan.testing import Cluster, make_node, make_object

Content = dict[str, Any]
_WRITES_NONE = "it compares PodGroup objects or their metadata, and none is written"
_EXCUSES = {
    "assign-pod": "it writes on the pod which group it is in; here nothing is written on pods",
    "defaults-config-map": "pods have the priority that admission gave them, by class or default",
    "node-pool-label": "a PodGroup of a pool of nodes is an object, and none is written",
    "sub-group-of-pod": "sub-groups select pods by label, not by a list of names",
}
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
_FOLLOWED_NO_FURTHER = ("Deployment", "Service")
"""Kinds whose templates have the labels that count for their pods."""
_PLAIN = {"containers": [{"name": "c"}]}
_ROLES = {"headgroup": "head", "workers": "worker"}
"""KAI's names of sub-groups, where bayplan's differ."""


def run_grouper_case(case: Case) -> None:
    """Run a case; an assertion tells the difference.

    :raises UnmodelledError: for what bayplan has no part for.
    """
    runner = RUNNERS.get((case["id"].partition("-")[0], case["kind"]))
    if runner is None:
        raise UnmodelledError(_EXCUSES.get(case["kind"], _WRITES_NONE))
    runner(case["input"], case["expected"])


def gang_by(owner: Content, pod: Content, row: WorkloadKind) -> Gang | None:
    """Return the gang that the scheduler makes of a pod of an owner."""
    return gang_and_pod(owner, pod, row)[0]


def gang_and_pod(owner: Content, pod: Content, row: WorkloadKind) -> tuple[Gang | None, PodInfo]:
    """Return the gang that the scheduler makes of a pod of an owner, and the pod as it sees it."""
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
    return gangs[0] if gangs else None, cluster.snapshot.living[f"{meta['namespace']}/pod"]


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
    if rule == "Job":
        owner = {**owner, "apiVersion": "batch/v1", "kind": "Job"}
    group, kind = owner.get("apiVersion", "").rpartition("/")[0], owner.get("kind", "")
    row = KINDS_OF_WORKLOADS.get((group, kind))
    if row is None and rule == "default":
        single(given, expected)
        return
    if row is None or row.below or (group, kind) not in KINDS:
        raise UnmodelledError("a kind of KAI's own tests, which no cluster has")
    if rule == "default" and not row.asked:
        raise UnmodelledError("it is a part of the rule of another kind")
    if "error" in expected:
        refused(given, owner, row)
        return
    if any(one.get("kind") == "PodGroup" for one in given.get("objects", ())):
        raise UnmodelledError("a PodGroup of an older KAI is there")
    wanted = expected["pod_group"]
    owner = with_templates(owner, row)
    if not any(one.count for one in templates_of(row, owner)):
        raise UnmodelledError("a job without pods is no gang")
    gang, pod = gang_and_pod(owner, given["pod"], row)
    if "queue" in wanted:
        assert kai.queues_of(pod.labels, pod.owner_settings)[0] == wanted["queue"]
    said = kai.preemptibility_of(pod.labels, pod.owner_settings)
    assert said == wanted.get("preemptibility", "")
    if row.asked:
        _compare_asked(gang, wanted)
        return
    assert gang is not None
    _compare(gang, owner, wanted, row)


def refused(given: Content, owner: Content, row: WorkloadKind) -> None:
    """Compare a job that is held because of what it says of its roles, or where it is cut."""
    pod = given["pod"]
    index = str(pod.get("metadata", {}).get("labels") or {})
    if "-index': '-" in index or ("job-index" not in index and row.name == "JobSet"):
        raise UnmodelledError("no controller makes a pod with such an index")
    specs = [value for key, value in (owner.get("spec") or {}).items() if "ReplicaSpecs" in key]
    if not specs and row.group == "kubeflow.org":
        raise UnmodelledError("there is no role, so its controller makes no pod")
    if row.asked:
        raise UnmodelledError("KAI's annotation of a plain Job that is no number asks for nothing")
    owner = with_templates(owner, row)
    if not any(one.count for one in templates_of(row, owner)):
        raise UnmodelledError("a job without pods is no gang")
    gang = gang_by(owner, {}, row)
    assert gang is not None
    assert gang.problem is not None


def field(given: Content, expected: Content) -> None:
    """Compare one setting of pods and of what owns them, whatever its kind is."""
    name = given["field"]
    if name not in FIELDS:
        raise UnmodelledError(f"{name} of a PodGroup as an object, and none is written")
    owners = given.get("owners") or [given["top_owner"]]
    found, wanted = FIELDS[name](_pod_of_any(owners[0], given["pod"])), expected["value"]
    if name == "preemption_delay":
        wanted = kai.seconds_of(wanted) or 0.0
    assert found == wanted


def _pod_of_any(owner: Content, pod: Content) -> PodInfo:
    """Return a pod as the scheduler sees it, of an object whose kind says nothing more."""
    meta = {"name": "n", "namespace": "ns", **owner.get("metadata", {})}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": _PLAIN}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec}
    return gang_and_pod(made, pod, KINDS_OF_WORKLOADS["apps", "StatefulSet"])[1]


def is_skipped(given: Content, expected: Content) -> None:
    """Compare whether a pod, or what owns it, is left to whoever writes its group."""
    function = given["function"]
    if function == "labelsMatch":
        raise UnmodelledError("no setting leaves out namespaces by label")
    if function == "isOrphanPodWithPodGroup":
        named = decode_part(Pod, {"metadata": given["pod"]["metadata"], "spec": _PLAIN})
        assert (PodInfo(named).gang is not None) == expected["value"]
        return
    owned = {"Worker": {"replicas": 4, "template": {"spec": _PLAIN}}}
    meta = (given.get("owners") or [{}])[0].get("metadata", {})
    owner = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "owner", **meta},
        "spec": {"tfReplicaSpecs": owned},
    }
    gang = gang_by(owner, given.get("obj", {}), KINDS_OF_WORKLOADS["kubeflow.org", "TFJob"])
    assert (gang is None) == expected["value"]


def empty_launcher(given: Content, expected: Content) -> None:
    if given["function"] != "handleDelayedLauncherPolicy":
        raise UnmodelledError("a launcher that waits for its workers is a gang of its own")
    owner = copy.deepcopy(given["top_owner"])
    row = KINDS_OF_WORKLOADS["kubeflow.org", "MPIJob"]
    owner |= {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob"}
    owner["spec"]["mpiReplicaSpecs"]["Worker"] = {"replicas": given["min_available"]}
    labels = {"training.kubeflow.org/job-role": "worker"}
    gang = gang_by(with_templates(owner, row), {"metadata": {"labels": labels}}, row)
    assert gang is not None
    assert (gang.problem is not None) == ("error" in expected)


def rule_of_kind(given: Content, expected: Content) -> None:
    """Compare which kinds have a rule of their own."""
    group, kind = given["group"], given["kind"]
    if group == "run.ai":
        raise UnmodelledError("jobs of run.ai's platform have no row")
    assert ((group, kind) in KINDS_OF_WORKLOADS) == expected["has_own_grouper"]


def has_sub_groups(given: Content, expected: Content) -> None:
    """Compare whether the groups of a Ray cluster are counted apart: always, without a PodGroup."""
    if not expected["use"]:
        raise UnmodelledError("a PodGroup of an older KAI is there")
    row = KINDS_OF_WORKLOADS["ray.io", "RayCluster"]
    groups = [{"groupName": "a", "replicas": 2}, {"groupName": "b", "replicas": 1}]
    owner = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray"},
        "spec": {"workerGroupSpecs": groups},
    }
    gang = gang_by(with_templates(owner, row), {}, row)
    assert gang is not None
    assert dict(gang.roles) == {"head": 1, "a": 2, "b": 1}


def parsed_sub_group(given: Content, expected: Content) -> None:
    """Compare a group of pods of a PodGang of Grove's."""
    if given["function"] != "parseGroveSubGroup":
        raise UnmodelledError("pods are known by their labels, in the namespace of the PodGang")
    if "error" in expected:
        raise UnmodelledError("its pods are known by their labels, not by references")
    meta = {"name": given["pod_gang_name"], "namespace": given["namespace"]}
    gang = gang_of(decode_part(PodGang, {"metadata": meta, "spec": {"podgroups": [given["pg"]]}}))
    assert gang is not None
    (part,) = gang.sub_groups
    wanted = expected["result"]
    assert (part.name, part.size) == (wanted["name"], wanted["min_available"])


def spark_pod(given: Content, expected: Content) -> None:
    """Compare a pod of Spark, which waits for nobody: a group of one pod in both systems."""
    single({"pod": given["pod"]}, {"pod_group": {"min_available": 1}})


FIELDS: dict[str, Callable[[PodInfo], float | str]] = {
    "preemptibility": lambda pod: kai.preemptibility_of(pod.labels, pod.owner_settings),
    "preemption_delay": lambda pod: kai.preemption_delay_of(pod.annotations, pod.owner_settings),
    "queue": lambda pod: kai.queues_of(pod.labels, pod.owner_settings)[0],
}


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
        queue = expected["pod_group"].get("queue")
        if queue is not None and kind not in _FOLLOWED_NO_FURTHER:
            assert FIELDS["queue"](_pod_of_any(owner, pod)) == queue
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
    if (owner["spec"].get("startupPolicy") or {}) == {"startupPolicyOrder": "InOrder"}:
        raise UnmodelledError("jobs that start in order are a gang each")
    sizes = _sizes(wanted)
    there = sum(one.count for one in templates_of(row, owner))
    some = wanted.get("min_sub_group", len(sizes))
    least = wanted["min_available"] or sum(sorted(sizes.values())[:some])
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
    assert gang.topology == stated.get("kai.scheduler/topology", gang.topology)


def _own_sizes(gang: Gang) -> dict[str, int]:
    """Return the pods that each sub-group needs: segments of a role are the role's."""
    parents = {one.parent for one in gang.sub_groups}
    sizes: dict[str, int] = {}
    for one in gang.sub_groups:
        if one.name not in parents:
            name = one.parent or one.name
            # Those that labels tell apart are of one size each.
            equal = one.min_groups if one.label_keys else 1
            sizes[name] = sizes.get(name, 0) + one.size * equal
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
    asked = given["pod"].get("metadata", {}).get("annotations") or {}
    _compare_tiers(asked, expected["pod_group"]["spec"].get("networkTopology"))


def sync_pod(given: Content, expected: Content) -> None:
    groups = expected["pod_groups"]
    if len(groups) != 1 or given["pod_groups"]:
        raise UnmodelledError(_WRITES_NONE)
    _compare_members(given["pod"], given["objects"], groups[0])


def network_topology(given: Content, expected: Content) -> None:
    """Compare the tiers that annotations of pods ask for."""
    _compare_tiers(given["annotations"], expected["network_topology"])


def _compare_tiers(annotations: Content, wanted: Content | None) -> None:
    template = {"metadata": {"annotations": annotations}, "spec": _PLAIN}
    owner = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "JAXJob",
        "metadata": {},
        "spec": {"jaxReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}},
    }
    gang = gang_by(owner, {}, KINDS_OF_WORKLOADS["kubeflow.org", "JAXJob"])
    assert gang is not None
    highest = {int(one.layer.removeprefix("tier-")) for one in gang.gather if one.required}
    if wanted is None:
        assert gang.gather == ()
        return
    tiers = {wanted["highestTierAllowed"]} if "highestTierAllowed" in wanted else set()
    assert highest == (tiers if wanted["mode"] == "hard" else set())
    assert [one.layer for one in gang.gather if not one.required] == ["tier-1"]


def owner_annotations(given: Content, expected: Content) -> None:
    """Compare how many pods what owns a pod asks for."""
    least = expected["annotations"].get("scheduling.volcano.sh/group-min-member", "1")
    _compare_members(given["pod"], given["objects"], {"spec": {"minMember": int(least)}})


def set_event(given: Content, expected: Content) -> None:
    """Compare the pods that a set has: they are in a gang as large as their PodGroup."""
    ours = given["scheduler_names"]
    pods = [one for one in given["objects"] if one["kind"] == "Pod"]
    pods = [one for one in pods if one["spec"].get("schedulerName") in ours]
    if not pods or expected["pod_groups"] == given["pod_groups"]:
        raise UnmodelledError("there is no pod of its own that is in no group yet")
    (group,) = expected["pod_groups"]
    _compare_members(pods[0], [given["object"]], group)


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
    ("kai", "field"): field,
    ("kai", "filter"): is_skipped,
    ("kai", "grove-parse"): parsed_sub_group,
    ("kai", "is-spark-pod"): spark_pod,
    ("kai", "lws-sub-groups"): lws_sub_groups,
    ("kai", "mpi-launcher"): empty_launcher,
    ("kai", "owners"): owners,
    ("kai", "plugin-of-kind"): rule_of_kind,
    ("kai", "pod-group"): pod_group,
    ("kai", "ray-use-sub-groups"): has_sub_groups,
    ("kai", "skip-pod"): skip_pod,
    ("volcano", "min-member"): min_member,
    ("volcano", "network-topology"): network_topology,
    ("volcano", "owner-annotations"): owner_annotations,
    ("volcano", "pod-group-of-pod"): group_of_pod,
    ("volcano", "replica-set-event"): set_event,
    ("volcano", "stateful-set-event"): set_event,
    ("volcano", "sync-pod"): sync_pod,
}

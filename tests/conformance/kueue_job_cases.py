"""Kueue's job integrations, run on what lets suspended jobs queue: the table of kinds.

With the gate of topologies off only what is left without a request of one is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from tests.conformance.kind_cases import Case, UnmodelledError
from tests.conformance.kueue_pod_cases import RUNNERS as POD_RUNNERS
from tests.conformance.kueue_pod_cases import pods_of, sets_of_pods
from tests.conformance.kueue_pod_cases import state as state_of_pods

from bayplan import PodInfo
from bayplan.api import KINDS, RayCluster
from bayplan.api.gang import OwnedPart
from bayplan.api.kueue import KueueWorkload, PodSet, ResourceFlavor
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.objects import decode_part
from bayplan.api.operated import OperatedObject
from bayplan.api.pod import PodTemplate
from bayplan.cluster.kubernetes.templates import complete
from bayplan.cluster.patches import json_patch
from bayplan.cluster.protocol import PatchFields, Write
from bayplan.dialects.kueue import topology_request_of, total_of
from bayplan.dialects.queued_job_checks import (
    ELASTIC_ANNOTATION,
    GATES_ANNOTATION,
    PRIORITY_LABEL,
    QUEUE_LABEL,
)
from bayplan.dialects.queued_jobs import QueuedJob, read_job, sized_by
from bayplan.dialects.queued_parts import QueuedParts, read_parts
from bayplan.dialects.train_jobs import job_set_of
from bayplan.kinds import KINDS_OF_WORKLOADS
from bayplan.kinds.reading import left_of
from bayplan.live.multikueue.jobs import ORIGIN
from bayplan.testing import Cluster, make_object
from bayplan_plugins.queues.kueue.gates import is_gated, open_gate
from bayplan_plugins.queues.kueue.injection import put_back_fields, started_fields
from bayplan_plugins.queues.kueue.job_slices import workload_name
from bayplan_plugins.queues.kueue.job_workloads import longest_time
from bayplan_plugins.queues.kueue.part_workloads import name_of_part
from bayplan_plugins.queues.kueue.pod_groups import end_of
from bayplan_plugins.queues.kueue.pod_groups import reclaimable as spare_of
from bayplan_plugins.queues.kueue.pod_set_info import (
    ConflictError,
    PodSetInfo,
    info_of_flavors,
    info_of_update,
)
from bayplan_plugins.queues.kueue.written import Written

Content = dict[str, Any]
_NO_TOPOLOGIES = {"TopologyAwareScheduling": False}
_NO_MULTIKUEUE = "a copy that Kueue's MultiKueue makes has the Workload that came with it"
_KIND_OF = {
    "leaderworkerset": ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    "statefulset": ("apps", "StatefulSet"),
}
_NAMES = {
    "GenerateWorkloadNamePrefix": "the names themselves are compared, and no part of them",
    "GetWorkloadNameExtraPart": _NO_MULTIKUEUE,
    "GetWorkloadNameForVariant": "no job has several Workloads, one for each flavor, at a time",
}
_ELSEWHERE = {
    "pod-defaults": "pods of a StatefulSet are known by their owner, without the marks of a group",
    "pod-find-workload": "a Workload is found by its name, or by the pod that it owns; none that a"
    " group has is deleted for another",
    "pod-stop": "only pods on nodes are evicted: the others wait as they are",
    "pod-workload-match": "a group keeps the Workload that it was admitted with",
    "ray-annotations": "a RayJob's cluster is followed itself, without a mark of its generation",
}
_COUNTS_PODS = "bayplan looks at the pods themselves for that"


def run_job_case(case: Case) -> None:
    """Run a case; an assertion tells the difference.

    :raises UnmodelledError: for what bayplan has no part for.
    """
    if case["kind"] in POD_RUNNERS:
        POD_RUNNERS[case["kind"]](case["input"], case["expected"])
        return
    runner = RUNNERS.get(case["kind"])
    if runner is None:
        what = _ELSEWHERE.get(case["kind"], f"{case['kind']} of {case['integration']}")
        raise UnmodelledError(what)
    runner(case["input"], case["expected"], case["integration"])


# Jobs ----------------------------------------------------------------------------------------


def job_of(content: Content, objects: list[Content] | None = None) -> QueuedJob:
    group, kind = content["apiVersion"].rpartition("/")[0], content["kind"]
    row, known = KINDS_OF_WORKLOADS.get((group, kind)), KINDS.get((group, kind))
    if row is None or known is None:
        raise UnmodelledError(f"{kind} of {group} has no row in the table of kinds")
    fields = {key: value for key, value in content.items() if key not in ("apiVersion", "kind")}
    if known.type is OperatedObject or "spec" not in fields:
        fields.setdefault("spec", {})
    meta = {"metadata": fields.get("metadata", {})}
    obj = decode_part(known.type, fields if _readable(kind) else {**meta, "spec": {}})
    made = None
    if kind == "TrainJob":
        named = [one for one in objects or () if "TrainingRuntime" in one["kind"]]
        made = job_set_of(content, named[0]) if named else None
    return read_job(row, as_stored(content), obj, made and as_stored(made))


def _readable(kind: str) -> bool:
    """Tell whether what is not JSON of a job is needed, too."""
    return kind in ("RayJob", "RayCluster", "RayService", "Job")


def as_stored(content: Content) -> Content:
    """Return a job with the zeros that Go leaves out of its JSON."""
    content = copy.deepcopy(content)
    if content["kind"] == "JobSet":
        for one in content["spec"].get("replicatedJobs", ()):
            one.setdefault("replicas", 0)
    return content


def sets_of(job: QueuedJob | QueuedParts, topologies: bool) -> list[Content]:
    """Return the pod sets of a job as Kueue writes them."""
    found = []
    for one in job.pods:
        made: Content = {"name": one.name, "count": one.count, "template": dict(one.content)}
        if one.least is not None:
            made["minCount"] = one.least
        if topologies and one.topology is not None:
            made["topologyRequest"] = msgspec.to_builtins(one.topology)
        found.append(made)
    return found


def _has_topologies(given: Content) -> bool:
    return not _NO_TOPOLOGIES.items() <= given.get("feature_gates", {}).items()


def pod_sets(given: Content, expected: Content, integration: str) -> None:
    if integration == "pod":
        _sets_of_pods(given, expected)
        return
    if integration == "leaderworkerset":
        assert sets_of(parts_of(given["job"]), _has_topologies(given)) == [
            _without_extras(one, given) for one in expected["pod_sets"]
        ]
        return
    job = sized_by(job_of(given["job"], given.get("objects")), _clusters(given))
    found = sets_of(job, _has_topologies(given))
    wanted = [_without_extras(one, given) for one in expected["pod_sets"]]
    if integration == "appwrapper":
        # Its library adds the API server's defaults to the templates.
        found, wanted = _with_defaults(found), _with_defaults(wanted)
    assert found == wanted


def parts_of(content: Content) -> QueuedParts:
    """Return what a queue knows of an object whose parts wait in it."""
    key = content["apiVersion"].rpartition("/")[0], content["kind"]
    known = KINDS[key]
    fields = {part: content.get(part, {}) for part in ("metadata", "spec", "status")}
    return read_parts(KINDS_OF_WORKLOADS[key], fields, decode_part(known.type, fields))


def _sets_of_pods(given: Content, expected: Content) -> None:
    try:
        found = sets_of_pods(given["pods"])
    except (ValueError, IndexError):
        assert "error" in expected
        return
    assert "error" not in expected
    shown = [_shown(one, given) for one in found]
    assert shown == [_as_shown(one, given) for one in expected["pod_sets"]]


def _shown(one: PodSet, given: Content) -> Content:
    plain = msgspec.to_builtins(one, enc_hook=lambda quantity: quantity.text)
    return _as_shown(plain, given)


def _as_shown(pod_set: Content, given: Content) -> Content:
    spec = decode_part(PodTemplate, pod_set["template"]).spec
    request = pod_set.get("topologyRequest") if _has_topologies(given) else None
    return {
        "name": pod_set["name"],
        "count": pod_set["count"],
        "spec": msgspec.structs.replace(spec, node_name=""),
        "topologyRequest": request,
    }


def workloads_of_parts(given: Content, expected: Content, integration: str) -> None:
    parts = parts_of(given["job"])
    meta = given["job"]["metadata"]
    if ORIGIN in meta.get("labels", {}):
        raise UnmodelledError(_NO_MULTIKUEUE)
    version, kind = given["job"]["apiVersion"], given["job"]["kind"]
    owner = OwnerReference(kind, meta["name"], meta["uid"], version)
    there = [one["metadata"]["name"] for one in given["existing_workloads"]]
    wanted = [name_of_part(OwnedPart(owner, str(number))) for number in range(parts.numbers)]
    made = [
        {"index": number, "name": name} for number, name in enumerate(wanted) if name not in there
    ]
    assert made == expected["to_create"]
    assert [name for name in wanted if name in there] == expected["to_update"]
    assert sorted(set(there) - set(wanted)) == sorted(expected["to_delete"])


def _with_defaults(sets: list[Content]) -> list[Content]:
    # It drops the grace period of a template, and adds the default of another.
    left = {"preemptionPolicy": None, "terminationGracePeriodSeconds": None}
    templates = [{**one["template"], "spec": {**one["template"]["spec"], **left}} for one in sets]
    typed = [decode_part(PodTemplate, one) for one in templates]
    return [{**one, "template": own} for one, own in zip(sets, typed, strict=True)]


def _clusters(given: Content, name: str = "") -> list[RayCluster]:
    """Return the Ray clusters that a case has beside its job, or the one of a name."""
    parts = ("metadata", "spec")
    return [
        decode_part(RayCluster, {key: one.get(key, {}) for key in parts})
        for one in given.get("objects", ())
        if one["kind"] == "RayCluster" and name in ("", one["metadata"]["name"])
    ]


def _without_extras(pod_set: Content, given: Content) -> Content:
    if _has_topologies(given):
        return pod_set
    return {key: value for key, value in pod_set.items() if key != "topologyRequest"}


def patched(content: Content, fields: Mapping[str, Any]) -> Content:
    """Return a job with some fields set, as a cluster does it."""
    patch = [
        {"op": "remove", "path": pointer}
        if value is None
        else {"op": "add", "path": pointer, "value": value}
        for pointer, value in fields.items()
    ]
    found: Content = json_patch(copy.deepcopy(content), patch)
    return found


def infos_of(given: list[Content] | None) -> tuple[list[PodSetInfo], list[int]]:
    infos = [info_of(one) for one in given or ()]
    return infos, [one.get("count", 0) for one in given or ()]


def info_of(given: Content) -> PodSetInfo:
    return PodSetInfo(
        given.get("labels") or {},
        given.get("annotations") or {},
        given.get("node_selector") or {},
        tuple(given.get("tolerations") or ()),
        tuple(given.get("scheduling_gates") or ()),
    )


def run(given: Content, expected: Content, integration: str) -> None:
    job = job_of(given["job"], given.get("objects"))
    infos, counts = infos_of(given["pod_sets_info"])
    try:
        own = [PodSetInfo.of(one.content) for one in job.pods]
        fields = started_fields(job, own, infos, counts)
    except ValueError:
        assert "error" in expected
        return
    assert "error" not in expected
    assert plain(patched(given["job"], fields)) == plain(expected["job"])


def restore(given: Content, expected: Content, integration: str) -> None:
    job = job_of(given["job"], given.get("objects"))
    infos, counts = infos_of(given["pod_sets_info"])
    trains = given["job"]["kind"] == "TrainJob"
    there = trains or len(infos) == len(job.pods)
    fields = put_back_fields(job, infos, counts) if there else {}
    assert bool(fields) == expected["changed"]
    assert plain(patched(given["job"], fields)) == plain(expected["job"])


def suspend(given: Content, expected: Content, integration: str) -> None:
    job = job_of(given["job"])
    assert patched(given["job"], job.suspend) == expected["job"]


def stop(given: Content, expected: Content, integration: str) -> None:
    job = job_of(given["job"])
    infos, counts = infos_of(given["pod_sets_info"])
    fields = {**job.suspend, **dict.fromkeys(job.started)}
    found = patched(given["job"], {**fields, **put_back_fields(job, infos, counts)})
    assert plain(found) == plain(expected["job"])


def plain(content: Any) -> Any:
    """Return JSON without the maps and lists that hold nothing."""
    if isinstance(content, dict):
        # A job that is not suspended may say so, or not.
        left = (
            (key, value) for key, value in content.items() if (key, value) != ("suspend", False)
        )
        items = ((key, plain(value)) for key, value in left)
        return {key: value for key, value in items if value not in ({}, [], None)}
    return [plain(one) for one in content] if isinstance(content, list) else content


def state(given: Content, expected: Content, integration: str) -> None:
    if integration == "pod":
        state_of_pods(given, expected)
        return
    if given["question"] == "active":
        raise UnmodelledError(_COUNTS_PODS)
    job = job_of({"metadata": {}, **given["job"]})
    if "kueue.x-k8s.io/stopping" in job.obj.metadata.annotations:
        raise UnmodelledError("templates are compared with those of the Workload, without a mark")
    if given["question"] == "suspended":
        assert job.suspended == expected["value"]
    elif given["question"] == "pods-ready":
        wanted = sum(one.count for one in job.pods)
        assert (job.state.ready >= wanted) == expected["value"]
    elif given["question"] == "on-hold":
        assert job.state.on_hold == expected["value"]
    else:
        raise UnmodelledError(f"the question whether a job is {given['question']}")


def finished(given: Content, expected: Content, integration: str) -> None:
    if integration == "pod":
        _pods_finished(given["pods"], expected)
        return
    state = job_of(given["job"]).state
    assert (state.end is not None) == expected["finished"]
    if state.end is not None:
        assert (state.succeeded, state.end[1]) == (expected["success"], expected["message"])


def _pods_finished(given: Content, expected: Content) -> None:
    pods, is_group = pods_of(given), bool(given.get("is_group"))
    total = total_of(pods[0].metadata) if pods and is_group else None
    if is_group and total is None:
        raise UnmodelledError("a group that does not say how many pods it has is held")
    found = end_of(pods, is_group, total)
    assert (found is not None) == expected["finished"]
    if found is not None:
        assert found == ("Succeeded" if expected["success"] else "Failed", expected["message"])


def _pods_reclaimable(given: Content, expected: Content) -> None:
    pods = pods_of(given) if given.get("is_group") else []
    found = [{"name": one.name, "count": one.count} for one in spare_of(pods)]
    assert found == (expected["reclaimable_pods"] or [])


def reclaimable(given: Content, expected: Content, integration: str) -> None:
    if integration == "pod":
        _pods_reclaimable(given["pods"], expected)
        return
    job = job_of(given["job"])
    found = [{"name": name, "count": count} for name, count in job.state.spare.items()]
    assert found == (expected["reclaimable_pods"] or [])


def priority_class(given: Content, expected: Content, integration: str) -> None:
    assert job_of({"metadata": {}, **given["job"]}).priority == expected["value"]


# Parts ---------------------------------------------------------------------------------------


def podset(given: Content, expected: Content, integration: str) -> None:
    PODSET[given["function"]](given, expected)


def _same(info: PodSetInfo, expected: Content) -> None:
    other = info_of(expected)
    assert (info.labels, info.annotations, info.node_selector) == (
        other.labels,
        other.annotations,
        other.node_selector,
    )
    key: Callable[[Mapping[str, Any]], str] = lambda one: str(sorted(one.items()))  # noqa: E731
    assert sorted(info.tolerations, key=key) == sorted(other.tolerations, key=key)
    assert info.gates == other.gates


def _from_assignment(given: Content, expected: Content) -> None:
    if "topologyAssignment" in given["assignment"] or _unconstrained(expected):
        raise UnmodelledError("the scheduler finds nodes by topology itself, without assignments")
    known = {
        one["metadata"]["name"]: decode_part(
            ResourceFlavor, {"metadata": one["metadata"], "spec": one.get("spec", {})}
        )
        for one in given["objects"]
        if one["kind"] == "ResourceFlavor"
    }
    names = dict.fromkeys((given["assignment"].get("flavors") or {}).values())
    if "error" in expected:
        assert any(name not in known for name in names)
        return
    _same(info_of_flavors(known[name] for name in names), expected["info"])


def _unconstrained(expected: Content) -> bool:
    return bool((expected.get("info") or {}).get("scheduling_gates"))


def _merged(own: PodSetInfo, other: PodSetInfo, expected: Content) -> PodSetInfo | None:
    try:
        found = own.merged(other)
    except ConflictError:
        assert "error" in expected
        return None
    assert "error" not in expected
    return found


def _info_merge(given: Content, expected: Content) -> None:
    found = _merged(info_of(given["pod_set_info"]), info_of(given["o"]), expected)
    if found is not None:
        _same(found, expected["info"])


def _merge(given: Content, expected: Content) -> None:
    template = {"metadata": given["meta"], "spec": given["spec"]}
    found = _merged(PodSetInfo.of(template), info_of(given["info"]), expected)
    if found is not None:
        wanted = {"metadata": expected["meta"], "spec": expected["spec"]}
        assert plain(found.put(template)) == plain(wanted)


def _restore_spec(given: Content, expected: Content) -> None:
    template = {"metadata": given["meta"], "spec": given["spec"]}
    found = info_of(given["info"]).put(template)
    assert plain(found) == plain({"metadata": expected["meta"], "spec": expected["spec"]})
    assert (plain(found) != plain(template)) == expected["changed"]


def _add_label(given: Content, expected: Content) -> None:
    info = info_of(given["pod_set_info"]).with_labels({given["k"]: given["v"]})
    _same(info, expected["info"])


PODSET: dict[str, Callable[[Content, Content], None]] = {
    "FromAssignment": _from_assignment,
    "FromPodSet": lambda given, expected: _same(
        PodSetInfo.of(given["ps"]["template"]), expected["info"]
    ),
    "FromUpdate": lambda given, expected: _same(info_of_update(given["update"]), expected["info"]),
    "Merge": _merge,
    "PodSetInfo.AddOrUpdateLabel": _add_label,
    "PodSetInfo.Merge": _info_merge,
    "RestorePodSpec": _restore_spec,
}


def topology_request(given: Content, expected: Content, integration: str) -> None:
    builder = given["builder"]
    annotations = builder.get("meta", {}).get("annotations") or {}
    part = None
    if builder.get("sub_group_index_label"):
        part = builder["sub_group_index_label"], builder.get("sub_group_count", 0)
    try:
        found = topology_request_of(annotations, builder.get("pod_index_label") or "", part)
    except ValueError:
        assert "error" in expected
        return
    assert "error" not in expected
    assert (msgspec.to_builtins(found) if found is not None else None) == expected["request"]


def workload_names(given: Content, expected: Content, integration: str) -> None:
    function = given["function"]
    if function == "GetWorkloadName":
        group, kind = _KIND_OF[integration]
        name = given.get("stateful_set_name") or given["name"]
        owner = OwnerReference(kind, name, given["uid"], f"{group}/v1")
        found = name_of_part(OwnedPart(owner, given.get("group_index", "")))
        assert found == expected["name"]
        return
    if function == "GetWorkloadNameForPod":
        found = workload_name("", "Pod", given["pod_name"], given["pod_uid"])
        assert found == expected["name"]
        return
    if function in ("GetWorkloadNameForOwnerWithGVK", "GenerateWorkloadNameWithExtra"):
        extra = given.get("extra", "")
    elif function == "GetWorkloadNameForOwnerWithGVKAndGeneration":
        extra = str(given["generation"])
    elif function == "GetWorkloadNameForJob":
        found = workload_name("batch", "Job", given["job_name"], given["job_uid"])
        assert found == expected["name"]
        return
    else:
        raise UnmodelledError(_NAMES.get(function, f"{function}: no job has such a Workload"))
    gvk = given["owner_gvk"]
    if given.get("feature_gates", {}).get("ShortWorkloadNames"):
        raise UnmodelledError("bayplan has no gate ShortWorkloadNames")
    found = workload_name(gvk["group"], gvk["kind"], given["owner_name"], given["owner_uid"], extra)
    assert found == expected["name"]


def unit(given: Content, expected: Content, integration: str) -> None:
    if given["function"] == "validateLeaderWorkerSetReplicaCount":
        group, kind = _KIND_OF[integration]
        found = parts_of(
            {"apiVersion": f"{group}/v1", "kind": kind, "spec": {"replicas": given["replicas"]}}
        )
        assert bool(found.problem) == ("error" in expected)
        return
    if given["function"] == "terminalIndexesCount":
        _ended_indexes(given, expected)
        return
    if given["function"] == "GetOwnerUID":
        meta = given["sts"]["metadata"]
        if ORIGIN in (meta.get("labels") or {}):
            raise UnmodelledError(_NO_MULTIKUEUE)
        assert meta["uid"] == expected["result"]
        return
    raise UnmodelledError(f"{given['function']}: no function of its own models it")


def metadata_field(given: Content, expected: Content, integration: str) -> None:
    """Compare one setting of a job by its labels and annotations."""
    reader = _FIELDS.get(given["field"])
    if reader is None:
        raise UnmodelledError(f"{given['field']}: nobody asks for it by itself")
    labels, annotations = given["labels"] or {}, given["annotations"] or {}
    found = reader(ObjectMeta(labels=labels, annotations=annotations))
    assert found == expected["value"]


_FIELDS: dict[str, Callable[[ObjectMeta], Any]] = {
    "max_exec_time_seconds": longest_time,
    "priority_class": lambda meta: meta.labels.get(PRIORITY_LABEL, ""),
    "queue_name": lambda meta: meta.labels.get(QUEUE_LABEL, ""),
}


def _ended_indexes(given: Content, expected: Content) -> None:
    (pods,) = KINDS_OF_WORKLOADS["batch", "Job"].pods
    total = given["completions"]
    status = {name: given[name] for name in ("completed_indexes", "failed_indexes")}
    content = {
        "spec": {"completions": total, "completionMode": "Indexed"},
        "status": {
            "completedIndexes": status["completed_indexes"],
            "failedIndexes": status["failed_indexes"],
        },
    }
    assert total - left_of(pods, content, total) == expected["result"]


def ray(given: Content, expected: Content, integration: str) -> None:
    function = given["function"]
    if function == "UpdatePodSets":
        ray_sizes(given, expected)
        return
    if function not in (
        "BuildPodSets",
        "ExpectedPodSetsCount",
        "RestorePodSetsInfo",
        "UpdateRayClusterSpecToRunWithPodSetsInfo",
    ):
        raise UnmodelledError(f"{function}: no function of its own models it")
    content = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray", "annotations": given.get("annotations") or {}},
        "spec": given["ray_cluster_spec"],
    }
    job = job_of(content)
    if function == "BuildPodSets":
        wanted = [_without_extras(one, given) for one in expected["result"]]
        assert sets_of(job, _has_topologies(given)) == wanted
    elif function == "ExpectedPodSetsCount":
        assert len(job.pods) == expected["result"]
    else:
        _ray_infos(job, content, given, expected)


def ray_sizes(given: Content, expected: Content) -> None:
    """Compare the numbers of pods of an elastic job whose cluster Ray's autoscaler sizes."""
    content = dict(given["object"] or {})
    name = given["ray_cluster_name"]
    if content.get("kind") == "RayCluster":
        # Its spec is not in the case, but the pod sets that were made of it.
        groups = [
            {"groupName": one["name"], "replicas": one["count"], "template": {}}
            for one in given["pod_sets"][1:]
        ]
        spec = {"headGroupSpec": {"template": {}}, "workerGroupSpecs": groups}
        content = {**content, "spec": spec}
    job = sized_by(job_of({"metadata": {}, **content}), _clusters(given, name) if name else [])
    assert job.counts == {one["name"]: one["count"] for one in expected["result"]}


def _ray_infos(job: QueuedJob, content: Content, given: Content, expected: Content) -> None:
    infos, counts = infos_of(given["pod_sets_info"])
    sets = len(job.pods)
    if given["function"] == "RestorePodSetsInfo":
        there = len(infos) >= sets
        fields = put_back_fields(job, infos[:sets], counts[:sets]) if there else {}
        assert bool(fields) == expected["result"]
    else:
        own = [PodSetInfo.of(one.content) for one in job.pods]
        fields = {
            pointer: value
            for pointer, value in started_fields(job, own, infos[:sets], counts[:sets]).items()
            if pointer not in job.resume
        }
    found = patched(content, fields)["spec"]
    assert plain(found) == plain(expected["ray_cluster_spec"])


def sanitized(given: Content, expected: Content, integration: str) -> None:
    """Compare the environments of a Workload's templates as they are written."""
    for one, wanted in zip(given["pod_sets"], expected["pod_sets"], strict=True):
        typed = msgspec.to_builtins(decode_part(PodTemplate, one["template"]))
        complete(typed, one["template"])
        assert _environments(typed["spec"]) == _environments(wanted["template"]["spec"])


def _environments(spec: Content) -> list[Any]:
    containers = (*spec.get("initContainers", ()), *spec.get("containers", ()))
    return [one.get("env") for one in containers]


class _Writes(Written):
    """What is written, as fields by the keys of pods."""

    def __init__(self) -> None:
        self.fields: dict[str, dict[str, Any]] = {}

    def once(self, key: str, what: str, reason: object, write: Write) -> None:
        assert isinstance(write, PatchFields)
        self.fields.setdefault(write.key, {}).update(write.fields)


def pods_run(given: Content, expected: Content, integration: str) -> None:
    """Compare gated pods once they are let go with what their pod set gets."""
    infos, _ = infos_of(given["pod_sets_info"])
    if len(infos) != 1:
        raise UnmodelledError("each pod is let go by what its own pod set gets")
    pods = {one.key: one for one in pods_of(given["pods"])}
    contents = (
        given["pods"]["list"]["items"] if given["pods"].get("is_group") else [given["pods"]["pod"]]
    )
    wanted = {one["metadata"]["name"]: one for one in expected["pods_after"]}
    for content, pod in zip(contents, pods.values(), strict=True):
        info = PodInfo(pod)
        if pod.metadata.deletion_timestamp or not is_gated(info):
            continue
        writes = _Writes()
        open_gate(writes, "w", info, [], infos[0])
        spec = dict(content["spec"])
        found = patched({**content, "spec": spec}, writes.fields[pod.key])
        after = wanted[pod.metadata.name]
        for part in ("labels", "annotations"):
            assert plain(found["metadata"].get(part)) == plain(after["metadata"].get(part))
        for part in ("schedulingGates", "nodeSelector", "tolerations"):
            assert plain(found["spec"].get(part, [])) == plain(after["spec"].get(part, []))


_OWN_MARKS = ("app.kubernetes.io/", "kueue.x-k8s.io/")
"""What begins so tells whose a Workload is, and of which slice."""


def _without(marks: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in marks.items() if not key.startswith(_OWN_MARKS)}


def new_workload(given: Content, expected: Content, integration: str) -> None:
    """Compare what a job's Workload has of its labels, its annotations and its pods."""
    if given.get("annotations_to_copy"):
        raise UnmodelledError("bayplan copies no annotations of jobs into metrics")
    content, own = as_stored(given["obj"]), given["obj"]["metadata"]
    if GATES_ANNOTATION in own.get("annotations", {}):
        raise UnmodelledError("a job that others hold has its Workload once they let it go")
    if content["kind"] == "TrainJob":
        raise UnmodelledError("the case has no runtime, which says what pods a TrainJob has")
    content["metadata"] = {**own, "labels": {QUEUE_LABEL: "queue", **own.get("labels", {})}}
    copied = {"integrations": {"labelKeysToCopy": given.get("label_keys_to_copy") or []}}
    cluster = Cluster([], plugins={"Queues": {"kueue": copied}})
    version = "kueue.x-k8s.io/v1beta2"
    head = {"apiVersion": version, "metadata": {"name": "queue"}}
    quota = {"namespaceSelector": {}, "resourceGroups": []}
    cluster.add(make_object({**head, "kind": "ClusterQueue", "spec": quota}))
    cluster.add(make_object(content))
    cluster.schedule()
    (made,) = cluster.api.list(KueueWorkload)
    wanted = expected["workload"]
    assert made.metadata.namespace == wanted["metadata"]["namespace"]
    if own.get("uid") and ELASTIC_ANNOTATION not in own.get("annotations", {}):
        assert made.metadata.name == wanted["metadata"]["name"]
    assert _without(made.metadata.labels) == wanted["metadata"].get("labels", {})
    marks = wanted["metadata"].get("annotations", {})
    assert _without(made.metadata.annotations) == marks
    if QUEUE_LABEL in own.get("labels", {}):
        assert made.spec.queue_name == wanted["spec"]["queueName"]
    assert [(one.name, one.count) for one in made.spec.pod_sets] == [
        (one["name"], one["count"]) for one in wanted["spec"]["podSets"]
    ]


RUNNERS: dict[str, Callable[[Content, Content, str], None]] = {
    "finished": finished,
    "metadata-field": metadata_field,
    "new-workload": new_workload,
    "pod-run": pods_run,
    "pod-sets": pod_sets,
    "podset": podset,
    "priority-class": priority_class,
    "ray": ray,
    "reclaimable-pods": reclaimable,
    "restore": restore,
    "run": run,
    "sanitize-pod-sets": sanitized,
    "state": state,
    "stop": stop,
    "suspend": suspend,
    "topology-request": topology_request,
    "unit": unit,
    "workload-name": workload_names,
    "workloads-of-groups": workloads_of_parts,
}

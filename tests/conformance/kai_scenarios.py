"""KAI's scenarios as real objects: queues, nodes, pod groups and pods on an embedded cluster.

A scenario's ages become creation times, its tasks pods in the state that the task has. What the
harness of KAI's tests takes for granted where a field is absent is filled in here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
from tests.conformance.kai_nodes import NodeState, Zones

from bayplan.api import ApiObject, Pod
from bayplan.api.dra import DELETE_PROTECTION
from bayplan.api.objects import decode_part
from bayplan.cluster.embedded.gpu_reservations import GpuReservations
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.cluster.embedded.store import LONG_AGO, MemoryCluster
from bayplan.dialects.kai.shares import INDEX_ANNOTATION, reservation_pod
from bayplan.testing import make_object

Case = dict[str, Any]
Job = dict[str, Any]
Task = dict[str, Any]

SCHEDULER = "kai-scheduler"
GPU = "nvidia.com/gpu"
_NOW = 100_000.0
"""The time at which a scenario is looked at; all ages lie before it."""
_OTHERS = "default"
_CORES, _MEMORY, _PODS, _GPU_MEMORY = 20_000, 20_000_000_000, 110, 100
_STUCK = "StuckInReleasing"
_ACTIVE = ("Running", "Bound", "Binding", "Allocated", "Releasing", "StuckInReleasing")


@dataclass(frozen=True)
class TaskState:
    """Where a task is: a status of KAI's list, its node, and the groups that share its GPUs."""

    status: str
    node: str = ""
    groups: tuple[str, ...] = ()


@dataclass
class Scenario:
    """A case with the state of its tasks, which changes from round to round.

    ``allocations`` are the statuses of claims that differ from the case's, by name.
    """

    case: Case
    tasks: dict[str, TaskState] = field(default_factory=dict)
    allocations: dict[str, Case] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for job in self.case["jobs"]:
            for task in job["tasks"]:
                groups = tuple(f"group-{name}" for name in task.get("gpu_groups") or ())
                state = TaskState(task["state"], task.get("node_name", ""), groups)
                self.tasks.setdefault(task_id(task), state)

    def jobs_of(self) -> Iterator[tuple[Job, Task]]:
        """Yield each task with its job."""
        for job in self.case["jobs"]:
            for task in job["tasks"]:
                yield job, task


def task_id(task: Task) -> str:
    """Return a task's id, which is its pod's name."""
    name: str = task["id"]
    return name


def key_of(job: Job, task: Task) -> str:
    """Return the key of a task's pod."""
    return f"{namespace_of(job)}/{pod_name(task)}"


def object_name(name: str) -> str:
    """Return a name of a case as an object may have it."""
    return name.replace("_", "-").lower()


def pod_name(task: Task) -> str:
    """Return a task's id as an object's name."""
    return object_name(task_id(task))


def namespace_of(job: Job) -> str:
    """Return a job's namespace."""
    return str(job.get("namespace") or "default")


def loaded(scenario: Scenario) -> MemoryCluster:
    """Return a cluster that holds a scenario's objects, each created at its time."""
    cluster = MemoryCluster()
    cluster.create(_object("v1", "Namespace", {"name": "test"}, {}))
    for at, content in sorted(_contents(scenario), key=lambda pair: pair[0]):
        cluster.clock.advance(at)
        made = make_object(content)
        made = cluster.create(_with_uid(made))
        if isinstance(made, Pod) and made.metadata.finalizers:
            cluster.delete(Pod, made.key, grace=1)
    cluster.clock.advance(_NOW)
    VirtualKubelet(cluster)
    GpuReservations(cluster)
    for job, task in scenario.jobs_of():
        if scenario.tasks[task_id(task)].status == "Releasing":
            cluster.delete(Pod, key_of(job, task), grace=_NOW)
    return cluster


def _with_uid(made: ApiObject) -> ApiObject:
    """Return an object that has a UID, its name where it has none."""
    meta = made.metadata
    meta = msgspec.structs.replace(meta, uid=meta.uid or meta.name)
    return msgspec.structs.replace(made, metadata=meta)


def _object(version: str, kind: str, meta: Case, content: Case) -> ApiObject:
    return make_object({"apiVersion": version, "kind": kind, "metadata": meta, **content})


def _contents(scenario: Scenario) -> Iterator[tuple[float, Case]]:
    case = scenario.case
    yield from _queues(case)
    for node in case["nodes"] or _implied_nodes(case):
        yield 0.0, _node(node)
        if node.get("numa_topology"):
            yield 0.0, _zones(node["name"], node["numa_topology"])
    for topology in case.get("topologies") or ():
        levels = [{"nodeLabel": level["node_label"]} for level in topology["levels"]]
        yield (
            0.0,
            {
                "apiVersion": "kai.scheduler/v1alpha1",
                "kind": "Topology",
                "metadata": {"name": topology["name"]},
                "spec": {"levels": levels},
            },
        )
    yield from ((0.0, content) for content in _reservations(scenario))
    if (case.get("feature_gates") or {}).get("DynamicResources", True):
        yield from ((0.0, content) for content in _devices(scenario))
    for job in case["jobs"]:
        at = _NOW - 60.0 * job["derived"]["age_minutes"]
        yield at, _pod_group(job)
        for task in job["tasks"]:
            state = scenario.tasks[task_id(task)]
            yield (1.0 if state.status == _STUCK else at), _pod(job, task, state)


# Queues ------------------------------------------------------------------------------------


def _queues(case: Case) -> Iterator[tuple[float, Case]]:
    departments = list(case.get("departments") or ())
    default = not departments and not case.get("disable_default_department")
    if default:
        departments = [{"name": _OTHERS, "deserved_gpus": -1}]
    at = 0.0
    for department in departments:
        at += 1.0
        yield at, _department(department)
    for queue in case["queues"] or _implied_queues(case):
        at += 1.0
        yield at, _queue(queue, _OTHERS if default else queue.get("parent", ""))


def _implied_queues(case: Case) -> list[Case]:
    """Return the queues of jobs, for a case that lists none because it asks about pods alone."""
    names = dict.fromkeys(job["queue"] for job in case["jobs"])
    return [{"name": name, "deserved_gpus": -1} for name in names]


def _implied_nodes(case: Case) -> list[Case]:
    """Return one node with the devices of all slices, for such a case."""
    slices = (case.get("dra") or {}).get("resource_slices") or ()
    names = dict.fromkeys(one["node_name"] for one in slices)
    return [{"name": name} for name in names or ("node0",)]


def _queue_object(name: str, spec: Case) -> Case:
    meta = {"name": object_name(name), "uid": name}
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": meta, "spec": spec}


def _department(department: Case) -> Case:
    quota = department.get("deserved_gpus", 0)
    resources = {
        "gpu": _amounts(quota, department.get("max_allowed_gpus") or -1, max(0, quota)),
        "cpu": _amounts(-1, department.get("max_allowed_cpus", -1), 1),
        "memory": _amounts(-1, department.get("max_allowed_memory", -1), 1),
    }
    return _queue_object(department["name"], {"resources": resources, "priority": 100})


def _queue(queue: Case, parent: str) -> Case:
    spec: Case = {"priority": queue.get("priority", 100)}
    if parent:
        spec["parentQueue"] = object_name(parent)
    if not queue.get("v1"):
        spec["resources"] = {
            "gpu": _amounts(
                queue.get("deserved_gpus", 0),
                queue.get("max_allowed_gpus") or -1,
                queue.get("gpu_over_quota_weight", 0),
            ),
            "cpu": _amounts(queue.get("deserved_cpus", -1), queue.get("max_allowed_cpus", -1), 1),
            "memory": _amounts(
                queue.get("deserved_memory", -1), queue.get("max_allowed_memory", -1), 1
            ),
        }
    for name, key in (("reclaim", "reclaimMinRuntime"), ("preempt", "preemptMinRuntime")):
        if f"{name}_min_runtime_s" in queue:
            spec[key] = f"{queue[f'{name}_min_runtime_s']:g}s"
    return _queue_object(queue["name"], spec)


def _amounts(quota: float, limit: float, weight: float) -> Case:
    return {"quota": quota, "limit": limit, "overQuotaWeight": weight}


# Nodes -------------------------------------------------------------------------------------


def _node(node: Case) -> Case:
    amounts = {
        "cpu": str(node.get("cpu_millis") or _CORES),
        "memory": str(int(node.get("cpu_memory") or _MEMORY)),
        "pods": str(node.get("max_task_num", _PODS)),
    }
    labels = {"kubernetes.io/hostname": node["name"], "kai.scheduler/type": node["name"]}
    if node.get("gpu_memory_synced", True):
        labels["nvidia.com/gpu.memory"] = str(int(node.get("gpu_memory") or _GPU_MEMORY))
    if node.get("gpu_name"):
        labels["nvidia.com/gpu.product"] = node["gpu_name"]
    labels |= node.get("labels") or {}
    strategy = node.get("mig_strategy")
    if strategy:
        labels |= {"node-role.kubernetes.io/runai-mig-enabled": "true"}
        labels |= {"nvidia.com/mig.strategy": strategy}
        amounts |= {name: str(count) for name, count in (node.get("mig_instances") or {}).items()}
    if node.get("gpus") and strategy != "mixed":
        amounts[GPU] = str(node["gpus"])
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node["name"], "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def _zones(node: str, given: Case) -> Case:
    """Return the report on a node's NUMA nodes."""
    zones = []
    for index, zone in enumerate(given["zones"]):
        resources = [
            {"name": name, "capacity": most, "allocatable": most, "available": left}
            for name, most in zone["allocatable"].items()
            for left in [zone["available"].get(name, most)]
        ]
        zones.append({"name": f"node-{index}", "type": "Node", "resources": resources})
    attributes = [
        {"name": "topologyManagerPolicy", "value": given["policy"]},
        {"name": "topologyManagerScope", "value": given["scope"]},
    ]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "attributes": attributes,
        "zones": zones,
    }


def _reservations(scenario: Scenario) -> Iterator[Case]:
    """Yield the pods that hold GPUs for those that share them."""
    groups = {
        (state.node, name): None
        for job, task in scenario.jobs_of()
        for state in (scenario.tasks[task_id(task)],)
        for name in state.groups
        if _holds(state) and _share(job, task)
    }
    for index, (node, name) in enumerate(groups):
        source = decode_part(Pod, {"metadata": {"name": "source"}})
        pod = reservation_pod(node, name, source, "reservation")
        meta = msgspec.structs.replace(pod.metadata, annotations={INDEX_ANNOTATION: str(index)})
        content = msgspec.structs.replace(pod, metadata=meta)
        encode = msgspec.json.Encoder(enc_hook=lambda quantity: quantity.text).encode
        plain: Case = msgspec.json.decode(encode(content))
        yield {"apiVersion": "v1", "kind": "Pod", **plain, "status": {"phase": "Running"}}


# Devices -----------------------------------------------------------------------------------


def _devices(scenario: Scenario) -> Iterator[Case]:
    dra = scenario.case.get("dra") or {}
    for name in dra.get("device_classes") or ():
        driver = {"cel": {"expression": f"device.driver == '{_driver(name)}'"}}
        yield _dra("DeviceClass", {"name": _driver(name)}, {"spec": {"selectors": [driver]}})
    for one in dra.get("resource_slices") or ():
        spec = {
            "driver": _driver(one["device_class_name"]),
            "pool": {"name": one["node_name"], "resourceSliceCount": 1},
            "nodeName": one["node_name"],
            "devices": [{"name": str(index)} for index in range(one["count"])],
        }
        yield _dra("ResourceSlice", {"name": one["name"]}, {"spec": spec})
    for one in dra.get("resource_claims") or ():
        yield _claim(one, scenario.allocations.get(one["name"], one.get("claim_status")))


def _driver(name: str) -> str:
    return name.replace("/", "-")


def _dra(kind: str, meta: Case, content: Case) -> Case:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": meta, **content}


def _claim(one: Case, status: Case | None) -> Case:
    driver = _driver(one["device_class_name"])
    exactly = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": one["count"]}
    meta: Case = {
        "name": one["name"],
        "namespace": one["namespace"],
        "labels": {key: object_name(value) for key, value in (one.get("labels") or {}).items()},
    }
    content: Case = {
        "spec": {"devices": {"requests": [{"name": one["name"], "exactly": exactly}]}},
        "status": {},
    }
    found = ((status or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
    if found:
        results = [{**result, "driver": driver} for result in found]
        content["status"]["allocation"] = {"devices": {"results": results}}
        # As everything that a scheduler allocates; KAI's own fake client needs none.
        meta["finalizers"] = [DELETE_PROTECTION]
    users = (status or {}).get("reserved_for") or ()
    content["status"]["reservedFor"] = [{**u, "name": object_name(u["name"])} for u in users]
    return _dra("ResourceClaim", meta, content)


# Jobs --------------------------------------------------------------------------------------


def _pod_group(job: Job) -> Case:
    spec: Case = {"queue": object_name(job["queue"])}
    root = job.get("root_sub_group_set")
    least = job["derived"].get("min_available")
    groups = list(_sub_groups(root, "")) if root else []
    if groups and not (len(groups) == 1 and groups[0]["name"] == _OTHERS):
        spec["subGroups"] = groups
        whole = not any("minSubGroup" in one for one in groups)
        if whole and not root.get("min_sub_group"):
            spec["minMember"] = sum(one.get("minMember", 0) for one in groups)
    else:
        spec["minMember"] = len(job["tasks"]) if least is None else least
    if root and root.get("topology_constraint"):
        spec["topologyConstraint"] = _topology(root["topology_constraint"])
    if root and root.get("min_sub_group"):
        spec["minSubGroup"] = root["min_sub_group"]
    if job.get("preemptibility"):
        spec["preemptibility"] = job["preemptibility"].lower()
    if job.get("preemption_delay_s"):
        spec["preemptionDelay"] = f"{job['preemption_delay_s']:g}s"
    if "staleness_grace_period_s" in job:
        spec["stalenessGracePeriod"] = f"{job['staleness_grace_period_s']:g}s"
    meta: Case = {"name": job_name(job), "namespace": namespace_of(job), "uid": job["name"]}
    if "stale_duration_s" in job:
        since = LONG_AGO + timedelta(seconds=_NOW - job["stale_duration_s"])
        stamp = f"{since:%Y-%m-%dT%H:%M:%SZ}"
        meta["annotations"] = {"kai.scheduler/stale-podgroup-timestamp": stamp}
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": meta,
        "spec": spec,
    }


def job_name(job: Job) -> str:
    """Return a job's name as an object's."""
    return object_name(job["name"])


def _sub_groups(node: Case, parent: str) -> Iterator[Case]:
    for pod_set in node.get("pod_sets") or ():
        one: Case = {"name": pod_set["name"].lower(), "minMember": pod_set.get("min_available", 0)}
        yield _sub_group(one, pod_set, parent)
    for group in node.get("groups") or ():
        one = {"name": group["name"].lower()}
        if group.get("min_sub_group"):
            one["minSubGroup"] = group["min_sub_group"]
        yield _sub_group(one, group, parent)
        yield from _sub_groups(group, one["name"])


def _sub_group(one: Case, given: Case, parent: str) -> Case:
    if parent:
        one["parent"] = parent
    if given.get("topology_constraint"):
        one["topologyConstraint"] = _topology(given["topology_constraint"])
    return one


def _topology(given: Mapping[str, str]) -> Case:
    found = {
        "topology": given.get("topology"),
        "requiredTopologyLevel": given.get("required_level"),
        "preferredTopologyLevel": given.get("preferred_level"),
    }
    return {name: value for name, value in found.items() if value}


def _pod(job: Job, task: Task, state: TaskState) -> Case:
    labels = dict(task.get("pod_affinity_labels") or {})
    if task.get("sub_group_name"):
        labels["kai.scheduler/subgroup-name"] = task["sub_group_name"].lower()
    if "priority" in task:
        labels["kai.scheduler/task-priority"] = str(task["priority"])
    spec: Case = {
        "schedulerName": SCHEDULER,
        "priority": job.get("priority", 0),
        "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "main", "image": "train", "resources": _resources(job, task)}],
        "affinity": _affinity(task),
    }
    claims = [{"name": name, "resourceClaimName": name} for name in _claim_names(task)]
    spec["volumes"] = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}}
        for name in task.get("persistent_volume_claim_names") or ()
    ]
    templates = task.get("resource_claim_templates") or {}
    claims += [{"name": name, "resourceClaimTemplateName": name} for name in templates]
    if claims:
        spec["resourceClaims"] = claims
        resources = spec["containers"][0]["resources"]
        resources["claims"] = [{"name": one["name"]} for one in claims]
    annotations = {"pod-group-name": job_name(job), **(task.get("annotations") or {})}
    share = _share(job, task)
    if share:
        annotations |= share
        if _holds(state) and len(state.groups) == 1:
            labels["runai-gpu-group"] = state.groups[0]
        elif _holds(state):
            labels |= {f"runai-gpu-group/{name}": name for name in state.groups}
    if _holds(state) or (state.node and state.status in ("Failed", "Succeeded")):
        spec["nodeName"] = state.node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(task),
            "namespace": namespace_of(job),
            "labels": labels,
            "annotations": annotations,
            "uid": task_id(task),
            "finalizers": ["example.com/stuck"] if state.status == _STUCK else [],
        },
        "spec": spec,
        "status": {
            **_status(state),
            "resourceClaimStatuses": [
                {"name": name, "resourceClaimName": claim} for name, claim in templates.items()
            ],
        },
    }


def _holds(state: TaskState) -> bool:
    return state.status in _ACTIVE


def _share(job: Job, task: Task) -> Case:
    """Return the annotations of a task that asks for parts of GPUs."""
    gpus = _gpus(job, task)
    found: Case = {}
    if job.get("required_gpu_memory"):
        found["gpu-memory"] = str(int(job["required_gpu_memory"]))
    elif gpus % 1:
        found["gpu-fraction"] = f"{gpus:g}"
    devices = job.get("required_multi_fraction_devices_per_task")
    return {**found, "gpu-fraction-num-devices": str(devices)} if devices and found else found


def _gpus(job: Job, task: Task) -> float:
    return float(task.get("required_gpus", job.get("required_gpus_per_task", 0)) or 0)


def _claim_names(task: Task) -> list[str]:
    return list(task.get("resource_claim_names") or ())


def _status(state: TaskState) -> Case:
    if state.status in ("Failed", "Succeeded"):
        return {"phase": state.status}
    if state.status in ("Running", "Releasing", "StuckInReleasing"):
        since = LONG_AGO + timedelta(seconds=_NOW - 60.0)
        return {"phase": "Running", "startTime": f"{since:%Y-%m-%dT%H:%M:%SZ}"}
    return {"phase": "Pending"}


def _resources(job: Job, task: Task) -> Case:
    gpus = 0 if _share(job, task) else _gpus(job, task)
    amounts: Case = {}
    if not (job.get("is_best_effort") or job.get("qos_class") == "BestEffort"):
        amounts["cpu"] = str(job.get("required_cpus_per_task") or 1)
        amounts["memory"] = str(int(job.get("required_memory_per_task") or 1_000_000_000))
    if gpus:
        amounts[GPU] = f"{gpus:g}"
    instances = task.get("required_mig_instances") or {}
    amounts |= {name: str(count) for name, count in instances.items()}
    guaranteed = job.get("qos_class") == "Guaranteed"
    limits = amounts if guaranteed else {n: a for n, a in amounts.items() if "/" in n}
    return {"requests": amounts, "limits": limits}


def _affinity(task: Task) -> Case:
    affinity: Case = {}
    names = task.get("node_affinity_names")
    if names:
        rule = {"key": "kai.scheduler/type", "operator": "In", "values": names}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    labels = task.get("pod_affinity_labels")
    for kind in ("pod_affinity", "pod_anti_affinity"):
        key = task.get(f"{kind}_topology_key")
        if key and labels:
            term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
            name = "podAffinity" if kind == "pod_affinity" else "podAntiAffinity"
            affinity[name] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return affinity


@dataclass(frozen=True)
class Outcome:
    """What became of a scenario: of its tasks, claims and nodes by name, and of its pods by key."""

    tasks: Mapping[str, TaskState]
    claims: Mapping[str, Case] = field(default_factory=dict)
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    zones: Zones = field(default_factory=dict)


def next_round(scenario: Scenario, found: Outcome) -> Scenario:
    """Return a scenario one cycle later: placed pods run, evicted ones are created again."""
    kept = {task_id(task): job.get("delete_job_in_test", False) for job, task in scenario.jobs_of()}
    tasks = {}
    for name, state in found.tasks.items():
        if state.status == "Binding":
            tasks[name] = dataclasses.replace(state, status="Running")
        elif (state.status == "Releasing" and not kept[name]) or state.status == "Pipelined":
            tasks[name] = TaskState("Pending")
        else:
            tasks[name] = state
    waiting = {object_name(name) for name, state in tasks.items() if state.status == "Pending"}
    return Scenario(
        scenario.case, tasks, {name: _used(one, waiting) for name, one in found.claims.items()}
    )


def _used(status: Case, gone: set[str]) -> Case:
    """Return a claim's status without the pods that have left; nothing when all have."""
    users = [one for one in status.get("reservedFor") or () if one["name"] not in gone]
    return {"allocation": status.get("allocation"), "reserved_for": users} if users else {}

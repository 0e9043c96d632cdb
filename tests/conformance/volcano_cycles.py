"""Volcano's cycles, run by the production scheduler on the objects that they describe."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from tests.conformance.case_format import ApiFields, UnknownFieldError, api_spelling, checked
from tests.conformance.vectors import SHARED

from bayplan.api import ApiObject, Pod, VolcanoPodGroup
from bayplan.migration.volcano import volcano_profile
from bayplan.profiles.loading import load_profiles
from bayplan.queues.tree import AmountRows
from bayplan.testing import Cluster, make_object
from bayplan_plugins.queues.volcano import configuration as configuration_of_volcano
from bayplan_plugins.queues.volcano.admitted_amounts import Inqueue
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.plugins.base import Enqueue, VolcanoPlugin
from bayplan_plugins.queues.volcano.tiers import PLUGINS

Case = dict[str, Any]

_SWITCHES = (
    *("enableJobOrder", "enableJobReady", "enableJobPipelined", "enableJobEnqueued"),
    *("enableJobStarving", "enableTaskOrder", "enablePreemptable", "enableReclaimable"),
    *("enablePreemptive", "enableQueueOrder", "enablePredicate", "enableNodeOrder"),
    *("enabledOverused", "enabledAllocatable", "enabledVictim", "enableHierarchy"),
)
_SCHEDULING = "scheduling.volcano.sh/v1beta1"
_PLACES = ("allocate", "backfill")


class Rejecter(VolcanoPlugin):
    """The plugin that one of Volcano's tests registers: it admits no job named pgA."""

    def enqueueable(
        self, job: Job, row: int, least: AmountRows | None, inqueue: Inqueue
    ) -> Enqueue:
        """Reject pgA."""
        return "rejected" if job.key.endswith("/pga") else None


def volcano_cases(config: pytest.Config, cycles: bool) -> list[Any]:
    """Return Volcano's cycles, or all its other cases, as pytest parameters."""
    given = config.getoption("--queue-vectors", default=None)
    paths = [Path(path) for path in given] if given else [SHARED / "volcano.jsonl"]
    found = [
        pytest.param(named(case), id=case["id"].removeprefix("volcano/"))
        for path in paths
        if path.exists()
        for case in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if case.get("system") == "volcano" and (case["kind"] == "cycle") is cycles
    ]
    if found or given:
        return found
    reason = "the reference's vectors (volcano.jsonl) do not lie beside the project"
    return [pytest.param({}, id="volcano.jsonl", marks=pytest.mark.skip(reason=reason))]


# Objects -----------------------------------------------------------------------------------


def objects(case: Case) -> Iterator[ApiObject]:
    """Yield the objects of a case, as Volcano's own manifests would have them."""
    for one in case.get("priority_classes") or ():
        yield make_object(_priority_class(one))
    for one in case["queues"]:
        yield make_object(_queue(one))
    yield from _unlisted_devices(case)
    for kind, field_name in _EXTRAS.items():
        for one in case.get(field_name) or ():
            yield make_object(checked(_API[kind], kind, _without_version(one)))
    for one in _hypernodes(case):
        yield make_object(_named("topology.volcano.sh/v1alpha1", "HyperNode", one))
    for one in case.get("nodes") or ():
        yield make_object(_node(one))
    for one in case.get("podgroups") or ():
        yield make_object(_group(one))
    for one in case.get("pods") or ():
        yield make_object(_pod(one))


def _filled(one: Case) -> Case:
    """Return a part without what is empty, which a builder of Volcano's tests leaves so."""
    return {name: value for name, value in one.items() if value not in (None, "", [], {})}


def _named(api_version: str, kind: str, one: Case) -> Case:
    """Return an object whose fields are all the API's."""
    fields = ApiFields(api_version, kind, _filled(one))
    return fields.object({}, _place(fields))


def _place(fields: ApiFields) -> Case:
    namespace = fields.take("namespace")
    place = {"name": fields.take("name")}
    return {**place, "namespace": namespace} if namespace else place


def _priority_class(one: Case) -> Case:
    rest = {api_spelling(key): value for key, value in one.items() if key != "name"}
    content = {"metadata": {"name": one["name"]}, "value": 0, **rest}
    return checked("scheduling.k8s.io/v1", "PriorityClass", content)


def _unlisted_devices(case: Case) -> Iterator[ApiObject]:
    """Yield classes and devices where the case has none, because no plugin of it allocates them."""
    wanted: Counter[str] = Counter()
    if "predicates" not in case["plugins"]:
        for claim in case.get("resource_claims") or ():
            for request in claim["spec"]["devices"]["requests"]:
                exactly = request["exactly"]
                wanted[exactly["deviceClassName"]] += exactly.get("count", 1)
    for name, count in wanted.items():
        yield make_object(
            {
                "apiVersion": _API["DeviceClass"],
                "kind": "DeviceClass",
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{name}'"}}]},
            }
        )
        for node in case["nodes"]:
            yield make_object(
                {
                    "apiVersion": _API["ResourceSlice"],
                    "kind": "ResourceSlice",
                    "metadata": {"name": f"{node['name']}-{name}"},
                    "spec": {
                        "driver": name,
                        "nodeName": node["name"],
                        "pool": {"name": node["name"], "generation": 1, "resourceSliceCount": 1},
                        "devices": [{"name": f"device-{index}"} for index in range(count)],
                    },
                }
            )


def _hypernodes(case: Case) -> list[Case]:
    """Return the case's HyperNodes; a few cases give only their tiers and nodes."""
    if case.get("hypernodes") or not case.get("hypernodes_by_tier"):
        return case.get("hypernodes") or []
    nodes = case["hypernode_nodes"]
    return [
        {
            "name": name,
            "tier": int(tier) or 1,
            "members": [
                {"type": "Node", "selector": {"exactMatch": {"name": node}}} for node in nodes[name]
            ],
        }
        for tier, names in case["hypernodes_by_tier"].items()
        for name in names
    ]


_EXTRAS = {
    "StorageClass": "storage_classes",
    "PersistentVolume": "pvs",
    "PersistentVolumeClaim": "pvcs",
    "DeviceClass": "device_classes",
    "ResourceSlice": "resource_slices",
    "ResourceClaim": "resource_claims",
    "ResourceQuota": "resource_quotas",
}
_API = {
    "StorageClass": "storage.k8s.io/v1",
    "PersistentVolume": "v1",
    "PersistentVolumeClaim": "v1",
    "DeviceClass": "resource.k8s.io/v1",
    "ResourceSlice": "resource.k8s.io/v1",
    "ResourceClaim": "resource.k8s.io/v1",
    "ResourceQuota": "v1",
}


def _without_version(content: Case) -> Case:
    meta = {k: v for k, v in content["metadata"].items() if k != "resourceVersion"}
    spec = content.get("spec") or {}
    if "storageClassName" in spec:
        spec = {"accessModes": ["ReadWriteOnce"], **spec}
    return {**content, "metadata": meta, **({"spec": spec} if spec else {})}


def _queue(one: Case) -> Case:
    fields = ApiFields(_SCHEDULING, "Queue", _filled(one))
    spec = {"weight": fields.take("weight") or 1}
    guarantee = fields.take("guarantee")
    if guarantee:
        spec["guarantee"] = {"resource": guarantee}
    return fields.object(spec, _place(fields), {"state": fields.take("state", "Open")})


def _node(one: Case) -> Case:
    fields = ApiFields("v1", "Node", one)
    amounts = fields.take("allocatable", {})
    status = {"allocatable": amounts, "capacity": fields.take("capacity", amounts)}
    labels = {"kubernetes.io/hostname": one["name"], **fields.take("labels", {})}
    return fields.object({}, {**_place(fields), "labels": labels}, status)


def _group(one: Case) -> Case:
    fields = ApiFields(_SCHEDULING, "PodGroup", _filled({"min_member": 0, **one}))
    spec: Case = {"minMember": fields.take("min_member", 0)}
    priority = fields.take("priority_class")
    if priority:
        spec["priorityClassName"] = priority
    policies = fields.take("sub_group_policy")
    if policies:
        spec["subGroupPolicy"] = [
            {api_spelling(key): value for key, value in policy.items()} for policy in policies
        ]
    return fields.object(spec, _place(fields), {"phase": fields.take("phase", "")})


def _pod(one: Case) -> Case:
    fields = ApiFields("v1", "Pod", _filled(one))
    annotations = dict(fields.take("annotations", {}))
    group = fields.take("podgroup")
    if group:
        annotations["scheduling.k8s.io/group-name"] = group
    resources: Case = {"requests": fields.take("requests", {})}
    for other in fields.take("containers_resources_other", ()):
        resources |= other
    container: Case = {"name": "c", "image": "busybox", "resources": resources}
    for other in fields.take("containers_other", ()):
        container |= other
    spec: Case = {"containers": [container], "schedulerName": "volcano"}
    node = fields.take("node")
    if node:
        spec["nodeName"] = node
    metadata = {**_place(fields), "annotations": annotations}
    return fields.object(spec, metadata, {"phase": fields.take("phase", "Pending")})


# Running -----------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What one session did: pods bound, evicted and nominated, and the phases of pod groups."""

    bound: dict[str, str] = field(default_factory=dict)
    evicted: Counter[str] = field(default_factory=Counter)
    nominated: dict[str, str] = field(default_factory=dict)
    phases: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)


def configuration(case: Case) -> Case:
    """Return the case's configuration as the arguments of Queues; a hook not listed is off."""
    tiers = [
        {
            "plugins": [
                {
                    "name": one["name"],
                    **dict.fromkeys(_SWITCHES, False),
                    **{k: v for k, v in one["switches"].items() if k in _SWITCHES},
                    "arguments": one["arguments"],
                }
                for one in tier["plugins"]
                if one["registered"]
            ]
        }
        for tier in case["tiers"]
    ]
    return {"actions": ", ".join(case["actions"]), "tiers": tiers}


def named(case: Case) -> Case:
    """Return a case with names as the API server allows them: Volcano's tests use others."""
    names = {
        one["name"]
        for field_name in ("queues", "podgroups", "pods")
        for one in case.get(field_name) or ()
    }
    text = json.dumps(case)
    for name in sorted(names, key=len, reverse=True):
        allowed = name.lower().replace("_", "-")
        if allowed != name:
            text = re.sub(rf'(?<=["/]){re.escape(name)}(?=")', allowed, text)
    found: Case = json.loads(text)
    return found


def run(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Outcome:
    """Run one session of a case and return what it did."""
    names = frozenset((*configuration_of_volcano.PLUGIN_NAMES, "test-rejecter"))
    monkeypatch.setattr(configuration_of_volcano, "PLUGIN_NAMES", names)
    monkeypatch.setitem(cast(dict[str, type[VolcanoPlugin]], PLUGINS), "test-rejecter", Rejecter)
    profile, _ = volcano_profile(configuration(case), "volcano")
    file = tmp_path / "profile.yaml"
    file.write_text(json.dumps({**_CONFIGURATION, "profiles": [profile]}), encoding="utf-8")
    cluster = Cluster(profiles=load_profiles(file))
    cluster.add(*objects(case))
    cluster.schedule()
    return _outcome(case, cluster)


_CONFIGURATION = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
}


def _outcome(case: Case, cluster: Cluster) -> Outcome:
    api, nominator = cluster.api, cluster.scheduler.nominator
    placed = cluster.snapshot.placed
    found = Outcome()
    before = {
        f"{one['namespace']}/{one['name']}": one.get("node") for one in case.get("pods") or ()
    }
    pods = {pod.key: pod for pod in api.list(Pod)}
    for key, node in before.items():
        pod = pods.get(key)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            found.evicted[key] += 1
        elif key in nominator:
            found.nominated[key] = placed[key][1]
        elif key in placed and not node:
            found.bound[key] = placed[key][1]
        if pod is not None and pod.status.conditions:
            found.messages[key] = pod.status.conditions[0].message
    for group in api.list(VolcanoPodGroup):
        meta = group.metadata
        found.phases[f"{meta.namespace}/{meta.name}"] = group.status.phase
    if not set(_PLACES) & set(case["actions"]):
        # bayplan always places what fits; in such a session Volcano pipelines it.
        found.nominated |= found.bound
        found.bound = {}
        for key, phase in found.phases.items():
            if phase == "Running":
                found.phases[key] = "Inqueue"
    return found


# Comparing ---------------------------------------------------------------------------------


def differences(case: Case, found: Outcome) -> list[str]:
    """Return how an outcome differs from what the case expects; only stated fields count."""
    expected = case["expected"]
    told = []
    if "bind_num" in expected and "task_status_nums" not in expected:
        if len(found.bound) != expected["bind_num"]:
            told.append(f"bound {found.bound}, expected {expected['bind_num']}")
    wanted = expected["bind_map"] if expected["bind_map_checked"] else {}
    if wanted and {key: found.bound.get(key) for key in wanted} != wanted:
        told.append(f"bound {found.bound}, expected {wanted}")
    wanted = expected.get("bind_nums_in_hypernode")
    if wanted is not None and _in_hypernodes(case, found) != sorted(wanted):
        told.append(f"bound {found.bound}, expected {wanted} in hypernodes")
    evicted = Counter(expected.get("evicted") or ())
    if "evicted" in expected and found.evicted != evicted:
        told.append(f"evicted {dict(found.evicted)}, expected {dict(evicted)}")
    if "evicted" not in expected and found.evicted.total() != expected.get("evict_num", 0):
        told.append(f"evicted {dict(found.evicted)}, expected {expected.get('evict_num', 0)}")
    for group, nodes in expected["pipelined"].items():
        own = {found.nominated[key] for key in _members(case, group) if key in found.nominated}
        if not own or not own <= set(nodes):
            told.append(f"{group} nominated to {sorted(own)}, expected some of {nodes}")
    for group, phase in expected["podgroup_phase"].items():
        if found.phases.get(group) != phase:
            told.append(f"{group} is {found.phases.get(group)}, expected {phase}")
    for group, counts in (expected.get("task_status_nums") or {}).items():
        for status, number in counts.items():
            own = _in_status(status, _members(case, group), case, found)
            if len(own) != number:
                told.append(f"{group} has {sorted(own)} {status}, expected {number}")
    return [*told, *(f"{key}: {text}" for key, text in found.messages.items() if told and text)]


def _in_hypernodes(case: Case, found: Outcome) -> list[int]:
    """Return how many pods were bound in each hypernode of the lowest tier that has any."""
    tiers: Mapping[str, Sequence[str]] = case["hypernodes_by_tier"]
    lowest = tiers[min(tiers, key=int)]
    bound = list(found.bound.values())
    counts = (sum(map(bound.count, case["hypernode_nodes"][name])) for name in lowest)
    return sorted(filter(None, counts))


def _in_status(status: str, members: Sequence[str], case: Case, found: Outcome) -> list[str]:
    """Return the members of a group that have one of Volcano's statuses of tasks."""
    stood = {f"{p['namespace']}/{p['name']}" for p in case["pods"] if p.get("node")}
    of_status: Mapping[str, Collection[str]] = {
        "Binding": found.bound,
        "Pipelined": found.nominated,
        "Releasing": found.evicted,
        "Running": stood - found.evicted.keys(),
        "Pending": set(members) - stood - found.bound.keys() - found.nominated.keys(),
    }
    if status not in of_status:
        raise UnknownFieldError(f"nobody counts tasks that are {status}")
    return [key for key in members if key in of_status[status]]


def _members(case: Case, group: str) -> list[str]:
    namespace, name = group.split("/")
    return [
        f"{one['namespace']}/{one['name']}"
        for one in case.get("pods") or ()
        if one["namespace"] == namespace and one.get("podgroup") == name
    ]

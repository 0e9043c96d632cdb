"""Koordinator's tables and scripts of quotas, run on the quotas of the plugin."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.conformance.case_format import ApiFields, UnknownFieldError
from tests.conformance.vectors import SHARED

from bayplan import PodInfo, Unit
from bayplan.api import ElasticQuota, Node, Pod, Quantity
from bayplan.api.objects import decode_part
from bayplan.api.resources import amount_of, pod_requests
from bayplan.dialects.koordinator.elastic_quota import (
    DEFAULT_QUOTA,
    FEATURE_GATES,
    ROOT_QUOTA,
    SYSTEM_QUOTA,
    KoordinatorQueueArgs,
    QuotaDefinition,
    ResourceList,
    definition_of,
    is_preemptible,
)
from bayplan.testing import Cluster, make_node
from bayplan_plugins.queues.koordinator.division import Siblings, divide, scaled_min
from bayplan_plugins.queues.koordinator.eviction_candidates import PreemptCandidates
from bayplan_plugins.queues.koordinator.features import QuotaFeatures
from bayplan_plugins.queues.koordinator.gate import QuotaGate, QuotaRefusal
from bayplan_plugins.queues.koordinator.manager import QuotaManager
from bayplan_plugins.queues.koordinator.overuse import pods_to_revoke
from bayplan_plugins.queues.koordinator.policy import KoordinatorPolicy
from bayplan_plugins.queues.koordinator.quota import CountedPod, Quota
from bayplan_plugins.queues.koordinator.quotas import Quotas
from bayplan_plugins.queues.koordinator.resource_lists import masked, subtracted
from bayplan_plugins.queues.plugin import Queues

Case = dict[str, Any]
Step = dict[str, Any]
NOW = 1_000_000.0
LONG_GONE = "1970-01-02T00:00:00Z"
PREFIX = "quota.scheduling.koordinator.sh/"
BUILTIN = (ROOT_QUOTA, SYSTEM_QUOTA, DEFAULT_QUOTA)
UNMODELLED = {
    "CandidatesToVictimsMap": "it only converts between types of Go's framework",
    "OrderedScoreFuncs": "it gives Go's framework no functions",
    "GetOffsetAndNumCandidates": "it tells Go's framework to look at all nodes",
    "PodEligibleToPreemptOthers": "the vector does not hold the nominated node and its pods",
    "isSchedulableAfterQuotaChanged": "a pod that its quota refused is tried after every change",
    "isSchedulableAfterPodDeletion": "a pod that its quota refused is tried after every change",
    "migratePods": "quotas hand over their pods by settle",
}
"""Operations that no function models, and why."""


class Unmodelled(Exception):
    """A script uses an operation that no function models."""


class Different(Exception):
    """The quotas answer otherwise than Koordinator, for a reason that is known."""


def quota_cases(config: pytest.Config, shared: str, kinds: tuple[str, ...]) -> list[Any]:
    """Return Koordinator's cases of some kinds, as pytest parameters."""
    given = config.getoption("--queue-vectors", default=None)
    paths = [Path(path) for path in given] if given else [SHARED / shared]
    found = [
        pytest.param(case, id=case["id"])
        for path in paths
        if path.exists()
        for case in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if case.get("system") == "koordinator" and case.get("kind") in kinds
    ]
    if found or given:
        return found
    reason = f"the reference's vectors ({shared}) do not lie beside the project"
    return [pytest.param({}, id=shared, marks=pytest.mark.skip(reason=reason))]


# Objects -----------------------------------------------------------------------------------


def amounts(texts: Mapping[str, str] | None) -> ResourceList:
    return {name: amount_of(name, Quantity(text)) for name, text in (texts or {}).items()}


def positive(values: Mapping[str, int] | None) -> ResourceList:
    return {name: amount for name, amount in (values or {}).items() if amount}


def quota_of(fields: Step) -> ElasticQuota:
    own = ApiFields("scheduling.sigs.k8s.io/v1alpha1", "ElasticQuota", fields)
    metadata = _deleting(own, {"name": own.take("name")})
    status = {"used": own.take("status_used")}
    return decode_part(ElasticQuota, own.object({}, metadata, status))


def _deleting(own: ApiFields, metadata: Step) -> Step:
    return {**metadata, "deletionTimestamp": LONG_GONE} if own.take("deleting") else metadata


def pod_of(fields: Step) -> Pod:
    own = ApiFields("v1", "Pod", fields)
    own.take("assigned")
    containers = [
        {"name": f"c{place}", "resources": {"requests": requests}}
        for place, requests in enumerate(own.take("requests", ()))
    ]
    grace = own.take("deletion_grace_seconds")
    metadata = {"name": own.take("name"), "deletionGracePeriodSeconds": grace}
    spec = {"containers": containers, "nodeName": own.take("node")}
    status = {"phase": own.take("phase", "Pending")}
    return decode_part(Pod, own.object(spec, _deleting(own, metadata), status))


def node_of(fields: Step) -> Node:
    own = ApiFields("v1", "Node", fields)
    return decode_part(Node, own.object({}, {"name": own.take("name")}))


# Tables ------------------------------------------------------------------------------------


def run_runtime(case: Case) -> None:
    nodes = case["nodes"]
    siblings = Siblings(
        [one["name"] for one in nodes],
        [one["shared_weight"] for one in nodes],
        [one["request"] for one in nodes],
        [max(one["min"], one["guarantee"]) for one in nodes],
        [one["allow_lent"] for one in nodes],
    )
    parts = divide(siblings, case["total"])
    assert dict(zip(siblings.names, parts, strict=True)) == case["expected"]["runtime"]


def run_scale_min(case: Case) -> None:
    expected = case["expected"]
    applies = bool(case["scale_enabled"]) and case["original_min"] is not None
    assert applies == expected["applies"]
    if applies:
        scaled = scaled_min(
            amounts(case["original_min"]),
            amounts(case["total"]),
            amounts(case["enable_sum"]),
            amounts(case["disable_sum"]),
        )
        assert positive(scaled) == positive(amounts(expected["min"]))


def run_revoke(case: Case) -> None:
    pods = [pod_of(fields) for fields in case["pods"]]
    counted = [
        CountedPod(
            pod,
            dict(pod_requests(pod.spec).effective),
            is_preemptible(pod),
            fields.get("assigned", False),
        )
        for pod, fields in zip(pods, case["pods"], strict=True)
    ]
    revoked = pods_to_revoke(counted, amounts(case["used"]), amounts(case["runtime"]))
    assert [pod.metadata.name for pod in revoked] == case["expected"]["revoked_in_order"]


# Scripts of the scheduler ------------------------------------------------------------------


def features_of(case: Case) -> QuotaFeatures:
    gates = {"MultiQuotaTree": False, **case["feature_gates"]}
    unknown = sorted(gates.keys() - set(FEATURE_GATES))
    if unknown:
        raise UnknownFieldError(f"nobody reads the gate {unknown[0]}")
    return QuotaFeatures.of(gates)


class Script:
    """Quotas that a script changes, and what it has said of their state so far."""

    def __init__(self, case: Case) -> None:
        self.features = features_of(case)
        args: Step = {}
        for step in case["steps"]:
            args |= {
                key[0].lower() + key[1:]: on for key, on in step.get("plugin_args", {}).items()
            }
        self.quotas = Quotas(KoordinatorQueueArgs(**args), self.features)
        if not any(step.get("on") == "Plugin" for step in case["steps"]):
            # A manager alone scales once it is told to, the plugin by its argument's default.
            self.quotas.trees[""].scale_min = False
        self.named = json.dumps([step for step in case["steps"] if "op" in step])
        self.said: dict[str, dict[str, Any]] = {}
        self.scaled: set[str] = set()
        """The quotas whose mins Koordinator has scaled: those that it was asked about."""
        self.asked: dict[str, dict[str, ResourceList]] = {}
        """What the quotas had whose runtime was asked for since the last state, when it was."""

    def play(self, steps: list[Step]) -> None:
        for number, step in enumerate(steps):
            if "op" in step:
                self.operate(number, step)
            elif "set_state" in step:
                self.set_state(step["set_state"])
            elif "state" in step:
                self.check_state(number, step["state"])

    def operate(self, number: int, step: Step) -> None:
        name = step["op"]
        for known in step.get("names_known_to_plugin", ()):
            self.quotas.set_quota(quota_of({"name": known}))
        if name in UNMODELLED or name not in OPERATIONS:
            raise Unmodelled(f"{name}: {UNMODELLED.get(name, 'no function models it')}")
        got = OPERATIONS[name](self, step)
        if got is not NotImplemented:
            assert got == step.get("result"), f"step {number}: {name}"

    def manager(self, quota: str) -> QuotaManager:
        for manager in self.quotas.trees.values():
            if quota in manager.quotas:
                return manager
        return self.quotas.trees[""]

    def located(self, key: str) -> tuple[QuotaManager | None, str]:
        tree, _, name = key.rpartition(":")
        return self.quotas.trees.get(tree), name

    def set_state(self, state: Mapping[str, Any]) -> None:
        for key, fields in state.items():
            manager, name = self.located(key)
            if name == "$total" or fields is None or manager is None:
                # The totals and the built-in quotas are what they are.
                continue
            self.set_fields(manager, name, fields)

    def set_fields(self, manager: QuotaManager, name: str, fields: Step) -> None:
        """Set what a test sets; what pods ask for and use follows from those that are added."""
        quota = manager.quotas.get(name) or Quota(QuotaDefinition(name))
        changes: Step = {
            own: amounts(fields[key])
            for key, own in (("max", "maximum"), ("min", "minimum"), ("shared_weight", "weight"))
            if key in fields and name not in BUILTIN
        }
        if changes:
            manager.set_quota(replace(quota.definition, **changes))
        if "runtime" in fields:
            manager.runtime(name)
            manager.quotas[name].runtime = amounts(fields["runtime"])

    def check_state(self, number: int, state: Mapping[str, Any]) -> None:
        for key, fields in state.items():
            if fields is None:
                self.said.pop(key, None)
                manager, name = self.located(key)
                gone = manager is None or name == "$total" or name not in manager.quotas
                assert gone or name in BUILTIN, f"step {number}: {key} is still there"
                continue
            known = self.said.setdefault(key, {})
            known |= fields
        for key, known in self.said.items():
            manager, name = self.located(key)
            assert manager is not None, f"step {number}: no tree {key}"
            where = f"step {number}: {key}"
            if name == "$total":
                check_totals(manager, known, where)
                continue
            if name not in manager.quotas and f'"{name}"' not in self.named:
                raise Unmodelled("the vector does not hold the quotas that the test makes")
            check_quota(manager.quotas[name], known, where)
            for field, got in self.asked.get(name, {}).items():
                assert positive(got) == positive(amounts(known.get(field))), f"{where}.{field}"
        self.asked.clear()


def check_totals(manager: QuotaManager, known: Step, where: str) -> None:
    if "total" in known:
        assert positive(manager.total) == positive(amounts(known["total"])), f"{where}.total"
    if "total_except_system_default_used" in known:
        expected = amounts(known["total_except_system_default_used"])
        assert positive(manager.available) == positive(expected), f"{where}.available"


def check_quota(quota: Quota, known: Step, where: str) -> None:
    own = quota.definition
    plain = {"parent": own.parent, "is_parent": own.is_parent, "allow_lent": own.lends}
    for key, got in plain.items():
        assert known.get(key, got) == got, f"{where}.{key}"
    for key, values in (
        ("max", own.maximum),
        ("min", own.minimum),
        ("shared_weight", own.weight),
    ):
        if key in known and quota.name not in BUILTIN:
            assert positive(values) == positive(amounts(known[key])), f"{where}.{key}"
    for key, values in {
        "request": quota.request,
        # Koordinator does not sum up what the root's children ask for twice.
        "child_request": quota.asked.every if quota.name != ROOT_QUOTA else {},
        "non_preemptible_request": quota.asked.non_preemptible,
        "used": quota.used.every,
        "non_preemptible_used": quota.used.non_preemptible,
        "self_request": quota.own_asked.every,
        "self_non_preemptible_request": quota.own_asked.non_preemptible,
        "self_used": quota.own_used.every,
        "self_non_preemptible_used": quota.own_used.non_preemptible,
        "allocated": quota.allocated,
        "guaranteed": quota.guaranteed,
    }.items():
        assert positive(values) == positive(amounts(known.get(key))), f"{where}.{key}"
    assigned = {key: counted.assigned for key, counted in quota.pods.items()}
    assert assigned == (known.get("pods_assigned") or {}), f"{where}.pods_assigned"


def status_of(refusal: QuotaRefusal | None) -> Step:
    if refusal is None:
        return {"code": "Success", "reasons": []}
    return {"code": "Unschedulable", "reasons": [refusal.message]}


def add_total(script: Script, step: Step) -> Any:
    script.quotas.add_total("", amounts(step["args"]["deltaRes"]))
    return NotImplemented


def update_quota(script: Script, step: Step) -> Any:
    definition = definition_of(quota_of(step["args"]["quota"]))
    manager = script.quotas.trees[""]
    if step["args"].get("isDelete") or step["op"] == "DeleteQuota":
        manager.delete_quota(definition.name)
    else:
        manager.set_quota(definition)
        # Koordinator takes the new min as it is until somebody asks.
        script.asked.get(definition.name, {}).pop("auto_scale_min", None)
    return NotImplemented if step["op"] == "UpdateQuotaInfo" else None


def update_quota_internal(script: Script, step: Step) -> Any:
    fields = step["args"]["newQuotaInfo"]
    name = step["args"].get("quotaName") or "test1"
    definition = QuotaDefinition(
        name,
        parent=fields["parent"],
        is_parent=fields["is_parent"],
        lends=fields["allow_lent"],
        minimum=amounts(fields.get("min")),
        maximum=amounts(fields.get("max")),
        weight=amounts(fields.get("shared_weight")),
    )
    script.quotas.trees[""].set_quota(definition)
    return NotImplemented


def change_request(script: Script, step: Step) -> Any:
    args = step["args"]
    manager = script.manager(args["quotaName"])
    fixed = amounts(args.get("deltaNonPreemptibleRequest"))
    manager.ask(args["quotaName"], amounts(args["deltaReq"]), fixed)
    return NotImplemented


def change_used(script: Script, step: Step) -> Any:
    args = step["args"]
    manager = script.manager(args["quotaName"])
    fixed = amounts(args.get("deltaNonPreemptibleUsed"))
    manager.use(args["quotaName"], amounts(args["delta"]), fixed)
    return NotImplemented


def refresh_runtime(script: Script, step: Step) -> Any:
    name = step["args"]["quotaName"]
    manager = script.manager(name)
    runtime = manager.runtime(name)
    for quota in manager.path(name):
        if quota.name not in BUILTIN:
            got = {"runtime": dict(quota.runtime), "auto_scale_min": dict(quota.scaled_min)}
            script.asked[quota.name] = got
    expected = amounts(step["result"]) if step["result"] is not None else None
    script.scaled.add(name)
    if runtime != expected and runtime == masked_runtime(manager, name, ()):
        if expected == masked_runtime(manager, name, script.scaled):
            raise Different("the mins of all siblings are scaled when one is asked about")
    assert runtime == expected, name
    return NotImplemented


def masked_runtime(manager: QuotaManager, name: str, scaled: Collection[str]) -> ResourceList:
    """Return what a quota would have if only some siblings' mins were scaled; none for all."""
    quota = manager.quotas[name]
    siblings = manager.children(quota.parent)
    parent = manager.quotas.get(quota.parent)
    if parent is None or not manager.scale_min or quota not in siblings:
        return {}
    total = manager.available if parent.name == ROOT_QUOTA else parent.runtime
    found = {}
    for resource in quota.definition.maximum:
        mins = [
            (one.scaled_min if not scaled or one.name in scaled else one.definition.minimum)
            for one in siblings
        ]
        stakes = Siblings(
            [one.name for one in siblings],
            [one.definition.weight.get(resource, 0) for one in siblings],
            [one.limited_request.get(resource, 0) for one in siblings],
            [one.get(resource, 0) for one in mins],
            [one.definition.lends for one in siblings],
        )
        found[resource] = divide(stakes, total.get(resource, 0))[siblings.index(quota)]
    return found


def cache_pod(script: Script, step: Step) -> Any:
    args = step["args"]
    quota = script.manager(args["quotaName"]).quotas[args["quotaName"]]
    pod = pod_of(args["pod"])
    if args["isAdd"]:
        requests = masked(pod_requests(pod.spec).effective, quota.definition.maximum)
        quota.pods[pod.key] = CountedPod(pod, requests, is_preemptible(pod))
    else:
        quota.pods.pop(pod.key, None)
    return NotImplemented


def mark_assigned(script: Script, step: Step) -> Any:
    args = step["args"]
    quota = script.manager(args["quotaName"]).quotas[args["quotaName"]]
    quota.pods[pod_of(args["pod"]).key].assigned = args["isAssigned"]
    return NotImplemented


def change_of_pod(
    quota: Quota, old: Step | None, new: Step | None
) -> tuple[ResourceList, ResourceList]:
    """Return what a pod's change adds: for all pods, and for those that may not be preempted."""
    found = []
    for fixed in (False, True):
        both: list[ResourceList] = []
        for fields in (new, old):
            pod = pod_of(fields) if fields else None
            counts = pod is not None and not (fixed and is_preemptible(pod))
            both.append(dict(pod_requests(pod.spec).effective) if pod and counts else {})
        found.append(masked(subtracted(*both), quota.definition.maximum))
    return found[0], found[1]


def pod_request(script: Script, step: Step) -> Any:
    args = step["args"]
    manager = script.manager(args["quotaName"])
    quota = manager.quotas[args["quotaName"]]
    manager.ask(quota.name, *change_of_pod(quota, args["oldPod"], args["newPod"]))
    return NotImplemented


def pod_used(script: Script, step: Step) -> Any:
    args = step["args"]
    manager = script.manager(args["quotaName"])
    quota = manager.quotas[args["quotaName"]]
    keys = [pod_of(fields).key for fields in (args["oldPod"], args["newPod"]) if fields]
    if any(key in quota.pods and quota.pods[key].assigned for key in keys):
        manager.use(quota.name, *change_of_pod(quota, args["oldPod"], args["newPod"]))
    return NotImplemented


def set_pod(script: Script, step: Step) -> Any:
    args = step["args"]
    fields = args.get("newPod") or args.get("newObj") or args.get("pod") or args.get("obj")
    if "name" not in fields or "requests" not in fields:
        return NotImplemented
    pod = pod_of(fields)
    name = args.get("newQuotaName") or args.get("quotaName")
    if name is None:
        script.quotas.set_pod(pod, NOW)
        return NotImplemented
    manager, before = script.manager(name), args["oldQuotaName"] or name
    if before != name or not script.features.counts(pod, NOW):
        script.manager(before).remove_pod(before, pod)
    if script.features.counts(pod, NOW):
        manager.set_pod(name, pod)
    return NotImplemented


def remove_pod(script: Script, step: Step) -> Any:
    fields = step["args"].get("pod") or step["args"].get("obj")
    if "requests" not in fields:
        return NotImplemented
    name = step["args"].get("quotaName")
    if name is None:
        script.quotas.remove_pod(pod_of(fields))
    else:
        script.manager(name).remove_pod(name, pod_of(fields))
    return NotImplemented


def assign(script: Script, step: Step) -> Any:
    name = step["args"].get("quotaName")
    pod = pod_of(step["args"].get("p") or step["args"].get("pod"))
    assigned = step["op"] in ("ReservePod", "Reserve")
    if name is not None:
        script.manager(name).assign(name, pod, assigned)
        return NotImplemented
    (script.quotas.reserve if assigned else script.quotas.unreserve)(pod)
    return {"code": "Success", "reasons": []} if assigned else NotImplemented


def migrate(script: Script, step: Step) -> Any:
    args = step["args"]
    pod = pod_of(args["pod"])
    old = script.manager(args["out"])
    counted = old.quotas[args["out"]].pods.get(pod.key)
    old.remove_pod(args["out"], pod)
    script.manager(args["in"]).set_pod(args["in"], pod)
    if counted is not None and counted.assigned:
        script.manager(args["in"]).assign(args["in"], pod)
    return NotImplemented


def change_node(script: Script, step: Step) -> Any:
    args = step["args"]
    fields = args.get("newObj") or args.get("obj") or args.get("newNode") or args.get("node")
    if step["op"] == "OnNodeDelete":
        script.quotas.offer(fields["name"], {})
    elif fields["name"]:
        script.quotas.set_node(node_of(fields))
    return NotImplemented


def change_quota(script: Script, step: Step) -> Any:
    args = step["args"]
    quota = quota_of(args.get("newObj") or args["obj"])
    if step["op"] == "OnQuotaDelete":
        script.quotas.remove_quota(quota.metadata.name)
    else:
        script.quotas.set_quota(quota)
    return NotImplemented


def pre_filter(script: Script, step: Step) -> Any:
    return [None, status_of(script.quotas.refusal(pod_of(step["args"]["pod"])))]


def check_path(script: Script, step: Step) -> Any:
    args = step["args"]
    name = args["curQuotaName"]
    manager = script.manager(name)
    request = amounts(args["podRequest"])
    gate = QuotaGate(manager, name, script.quotas.args.enable_runtime_quota, check_parents=True)
    return status_of(gate.refusal_above(request))


def used_limit(script: Script, step: Step) -> Any:
    fields = step["args"]["quotaInfo"]
    manager = script.quotas.trees[""]
    manager.set_quota(QuotaDefinition("it", maximum=amounts(fields.get("max"))))
    script.set_fields(manager, "it", {"runtime": fields.get("runtime")})
    gate = QuotaGate(manager, "it", script.quotas.args.enable_runtime_quota)
    assert positive(gate.limit) == positive(amounts(step["result"]))
    return NotImplemented


def snapshot_trial(script: Script, step: Step) -> Any:
    """Check nothing: a gate takes its own snapshot when it is made."""
    return NotImplemented


def trial(script: Script, step: Step) -> Any:
    args = step["args"]
    pod = pod_of(args.get("podInfoToRemove") or args["podInfoToAdd"])
    state = step["post_filter_state"]
    gate = script.quotas.gate_of(pod)
    assert gate is not None
    gate.used = amounts(state["used"])
    (gate.remove if args["podInfoToRemove"] else gate.add)(pod)
    assert positive(gate.used) == positive(amounts(step["post_filter_state_after"]["used"]))
    return {"code": "Success", "reasons": []}


def can_preempt(script: Script, step: Step) -> Any:
    pod, victim = pod_of(step["args"]["pod"]), pod_of(step["args"]["victim"])
    if script.quotas.args.disable_default_quota_preemption is False:
        raise Different("pods of the default quota are DefaultPreemption's")
    return candidates(step, pod, [victim]) == [victim.metadata.name]


def select_victims(script: Script, step: Step) -> Any:
    args, expected = step["args"], step["result"]
    if expected[0]:
        raise Unmodelled("SelectVictimsOnNode: victims are searched on all nodes at once")
    on_node = [pod_of(fields) for fields in args["nodeInfo"]["pods"]]
    assert candidates(step, pod_of(args["pod"]), on_node) == []
    return NotImplemented


def candidates(step: Step, pod: Pod, on_node: list[Pod]) -> list[str]:
    """Return the pods that the policy would preempt for a pod, by name, the first one first."""
    cluster = Cluster([make_node("test-node", cpu=1000, memory="1000G")])
    for name in step.get("names_known_to_plugin", ()):
        cluster.add(quota_of({"name": name}))
    cluster.add(*(_made(one) for one in on_node))
    policy = policy_of(cluster)
    unit = Unit("preemptor", [PodInfo(_made(pod, node=""))])
    with cluster.snapshot.trial():
        plan = policy.plan(unit, "preempt")
        assert plan is None or isinstance(plan, PreemptCandidates)
        steps = list(plan.steps()) if plan is not None else []
    return [one.name for pods in steps for one in pods]


def _made(pod: Pod, node: str | None = None) -> Pod:
    """Return a pod as an API server has it, on a node."""
    metadata = msgspec.structs.replace(pod.metadata, namespace="default", uid=pod.metadata.name)
    named = pod.spec.node_name if node is None else node
    spec = msgspec.structs.replace(pod.spec, node_name=named, scheduler_name="default-scheduler")
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec)


def policy_of(cluster: Cluster) -> KoordinatorPolicy:
    (call,) = cluster.profile.runtime["queueing"]
    assert isinstance(call.plugin, Queues)
    return next(one for one in call.plugin.policies if isinstance(one, KoordinatorPolicy))


def named_quota(script: Script, step: Step) -> Any:
    return script.quotas.quota_name(pod_of(step["args"]["pod"]))


def set_total(script: Script, step: Step) -> Any:
    manager = script.quotas.trees[""]
    total = amounts(step["args"]["total"])
    delta = subtracted(total, manager.total)
    manager.total = total
    assert positive(delta) == positive(amounts(step["result"]))
    return NotImplemented


def scale_mins(script: Script, step: Step) -> Any:
    script.quotas.trees[""].scale_min = step["args"]["flag"]
    return NotImplemented


def settle(script: Script, step: Step) -> Any:
    script.quotas.settle(NOW)
    return NotImplemented


def nothing(script: Script, step: Step) -> Any:
    """Do nothing: what this keeps up to date is computed when it is asked for."""
    return NotImplemented


OPERATIONS: dict[str, Callable[[Script, Step], Any]] = {
    "UpdateClusterTotalResource": add_total,
    "updateClusterTotalResourceNoLock": add_total,
    "UpdateQuota": update_quota,
    "DeleteQuota": update_quota,
    "updateQuotaInternalNoLock": update_quota_internal,
    "updateGroupDeltaRequestNoLock": change_request,
    "updateGroupDeltaUsedNoLock": change_used,
    "RefreshRuntime": refresh_runtime,
    "updatePodCacheNoLock": cache_pod,
    "updatePodIsAssignedNoLock": mark_assigned,
    "UpdatePodIsAssigned": mark_assigned,
    "updatePodRequestNoLock": pod_request,
    "updatePodUsedNoLock": pod_used,
    "OnPodAdd": set_pod,
    "OnPodUpdate": set_pod,
    "OnPodDelete": remove_pod,
    "handlePodDelete": remove_pod,
    "ReservePod": assign,
    "UnreservePod": assign,
    "Reserve": assign,
    "Unreserve": assign,
    "MigratePod": migrate,
    "migrateDefaultQuotaGroupsPod": settle,
    "OnNodeAdd": change_node,
    "OnNodeUpdate": change_node,
    "OnNodeDelete": change_node,
    "OnQuotaAdd": change_quota,
    "OnQuotaUpdate": change_quota,
    "OnQuotaDelete": change_quota,
    "PreFilter": pre_filter,
    "checkQuotaRecursive": check_path,
    "getQuotaInfoUsedLimit": used_limit,
    "snapshotPostFilterState": snapshot_trial,
    "AddPod": trial,
    "RemovePod": trial,
    "canPreempt": can_preempt,
    "SelectVictimsOnNode": select_victims,
    "GetQuotaName": named_quota,
    "getPodAssociateQuotaName": named_quota,
    "setScaleMinQuotaEnabled": scale_mins,
    "updateQuotaSnapshot": nothing,
    "updateResourceKeyNoLock": nothing,
    "SetTotalResourceForTree": set_total,
    "UpdateQuotaInfo": update_quota,
    "ResetQuota": nothing,
}


def run_script(case: Case) -> None:
    script = Script(case)
    script.play(case["steps"])
    path = case.get("expected", {}).get("expectedPath")
    if path:
        above = script.manager(path[0]).path(path[0])
        assert [quota.name for quota in above] == path


def run_webhook(case: Case) -> None:
    raise Unmodelled("Koordinator's manager serves the webhook of quotas, bayplan serves none")


RUNNERS: dict[str, Callable[[Case], None]] = {
    "quota-runtime": run_runtime,
    "quota-scale-min": run_scale_min,
    "quota-revoke": run_revoke,
    "quota-script": run_script,
    "quota-webhook": run_webhook,
}

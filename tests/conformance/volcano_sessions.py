"""Volcano's sessions and unit tables: votes, orders and scores of single plugins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.conformance.case_format import UnknownFieldError
from tests.conformance.volcano_cycles import Case, configuration, objects

from bayplan import Plugin
from bayplan.api import VolcanoPodGroup, WatchedLoad, WatchedMetric
from bayplan.api.meta import ObjectMeta
from bayplan.migration.volcano import volcano_profile
from bayplan.testing import Cluster, make_object, refusals, scores
from bayplan.testing.cluster import runtime_of
from bayplan_plugins.queues.plugin import Queues
from bayplan_plugins.queues.volcano.admitted_amounts import AdmittedAmounts
from bayplan_plugins.queues.volcano.binpack import VolcanoBinpack
from bayplan_plugins.queues.volcano.entitlements import dominant_share
from bayplan_plugins.queues.volcano.jobs import Jobs
from bayplan_plugins.queues.volcano.node_groups import VolcanoNodeGroups
from bayplan_plugins.queues.volcano.plugins.base import VolcanoPlugin
from bayplan_plugins.queues.volcano.policy import VolcanoPolicy
from bayplan_plugins.queues.volcano.resource_strategy_fit import VolcanoResourceStrategyFit
from bayplan_plugins.queues.volcano.revocable_nodes import VolcanoRevocableNodes
from bayplan_plugins.queues.volcano.session import Claimant, Victim
from bayplan_plugins.queues.volcano.usage import VolcanoUsage

__all__ = ["RUNNERS", "run_session"]

_UNITS = {"milli_cpu": "cpu", "memory": "memory"}


def _cluster(case: Case) -> Cluster:
    cluster = Cluster(plugins={"Queues": {"volcano": configuration(case)}})
    cluster.add(*objects({"queues": [], **case}))
    return cluster


def _policy(cluster: Cluster) -> VolcanoPolicy:
    plugin: Any = cluster.profile.runtime.plugins["Queues"]
    policy: VolcanoPolicy = next(one for one in plugin.policies if one.system == "volcano")
    return policy


def _voter(policy: VolcanoPolicy) -> VolcanoPlugin:
    return policy.tiers.plugins[0]


# Sessions ----------------------------------------------------------------------------------


def _admission(case: Case) -> tuple[Any, Any]:
    """Ask whether the last pod group is admitted; those before are counted as admitted."""
    for one in case["podgroups"]:
        one["phase"] = "Pending"
    cluster = _cluster(case)
    cluster.snapshot.sync()
    policy = _policy(cluster)
    session = policy.session
    amounts = AdmittedAmounts(session, ())
    inqueue = amounts.now(set())
    answers = []
    for one in case["podgroups"]:
        job = session.jobs.named(f"{one['namespace']}/{one['name']}")
        assert job.row is not None
        if "JobEnqueued" in case["procedure"]:
            owed = amounts.owed(job)
            assert owed is not None
            inqueue.add(job.row, owed)
        least = session.jobs.min_resources(job.key)
        answers.append(policy.tiers.rejection(job, job.row, least, inqueue) is None)
    return all(answers), case["row"].get("expectedEnqueueAble", False)


def _sla(case: Case) -> tuple[Any, Any]:
    """Job 1 has the plugin's waiting time, job 2 an hour; neither is old."""
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
    cluster = Cluster(plugins={"Queues": {"volcano": configuration(case)}})
    queue = {"apiVersion": group["apiVersion"], "kind": "Queue", "metadata": {"name": "q"}}
    cluster.add(make_object({**queue, "spec": {}, "status": {"state": "Open"}}))
    for name, stated in (("job1", {}), ("job2", {"sla-waiting-time": "1h"})):
        meta: dict[str, Any] = {"name": name, "namespace": "default", "annotations": stated}
        meta["creationTimestamp"] = "2000-01-01T00:00:00Z"
        cluster.add(make_object({**group, "metadata": meta, "spec": {"queue": "q"}}))
    policy = _policy(cluster)
    jobs = policy.session.jobs
    first, second = jobs.named("default/job1"), jobs.named("default/job2")
    assert first.row is not None
    order = policy.tiers.job_order(first) < policy.tiers.job_order(second)
    inqueue = AdmittedAmounts(policy.session, ()).now(set())
    rejection = policy.tiers.rejection(first, first.row, None, inqueue)
    row = case["row"]
    return (order, rejection is None), (
        row.get("expectedOrder", False),
        row.get("expectedEnqueueAble", False),
    )


def _tdm(case: Case) -> tuple[Any, Any]:
    return _tdm_victims(case) if "victims" in case["func"] else _tdm_nodes(case)


def _tdm_nodes(case: Case) -> tuple[Any, Any]:
    """The nodes that take each pod, and their scores, at noon."""
    cluster = _cluster(case)
    cluster.api.clock.advance(3600 * 12)
    cluster.snapshot.sync()
    arguments = {"volcano": configuration(case)}
    row, names = case["row"], {one["name"] for one in case["nodes"]}
    found: dict[str, Any] = {}
    wanted: dict[str, Any] = {}
    for key, pod in cluster.snapshot.living.items():
        found[key] = names - refusals(Queues, pod.pod, cluster, arguments).keys()
        wanted[key] = {name for name, takes in row.get("predicatedExpected", {}).items() if takes}
        for name, score in (row.get("scoreExpected") or {}).get(key, {}).items():
            found[f"{key} on {name}"] = scores(VolcanoRevocableNodes, pod.pod, cluster)[name]
            wanted[f"{key} on {name}"] = float(score)
    return found, wanted


def _tdm_victims(case: Case) -> tuple[Any, Any]:
    cluster = _cluster(case)
    cluster.api.clock.advance(3600 * 12)
    cluster.snapshot.sync()
    found = _policy(cluster).overdue()
    return len(found.victims) if found is not None else 0, case["row"].get("want", 0)


def _conformance(case: Case) -> tuple[Any, Any]:
    pods = []
    for one in case["row"]["preemptees"]:
        pod = dict(one["Pod"])
        pod["spec"]["containers"][0] |= {"name": "c", "image": "busybox"}
        pods.append(make_object({"apiVersion": "v1", "kind": "Pod", **pod}))
    cluster = Cluster(plugins={"Queues": {"volcano": configuration(case)}})
    cluster.add(*pods)
    plugin = _voter(_policy(cluster))
    placed = cluster.snapshot.placed
    kept = []
    for one in case["row"]["preemptees"]:
        key = f"{one['Namespace']}/{one['Name']}"
        one_pod = placed[key][0]
        job = _policy(cluster).session.jobs.of(one_pod)
        claimant = Claimant(job, [one_pod], 0, np.zeros(0), 0)
        if plugin.preemptable(claimant, Victim(job, [one_pod], 0, np.zeros(0), False)):
            kept.append(key)
    return kept, [f"{one['Namespace']}/{one['Name']}" for one in case["row"]["expectVictims"]]


def _node_groups(case: Case) -> tuple[Any, Any]:
    plugin = case["tiers"][0]["plugins"][0]
    arguments = {**(plugin.get("arguments") or {})}
    if plugin["switches"].get("enableHierarchy"):
        arguments["enableHierarchy"] = True
    cluster = Cluster()
    cluster.add(*objects(case))
    row = case["row"]
    expected = row.get("expectedStatus", {})
    nodes = {one["name"]: (one.get("labels") or {}) for one in case["nodes"]}
    if "targetTaskName" in row:
        namespace = case["podgroups"][0]["namespace"]
        expected = {f"{namespace}/{row['targetTaskName']}": expected}
    found: dict[str, Any] = {}
    wanted: dict[str, Any] = {}
    for key, by_node in expected.items():
        pod = next(pod for pod in cluster.snapshot.living.values() if pod.key == key)
        refused = refusals(VolcanoNodeGroups, pod.pod, cluster, arguments)
        found[key] = {name: name in refused for name in by_node}
        wanted[key] = {name: code != 0 for name, code in by_node.items()}
        for name, score in (row.get("expected") or {}).get(key, {}).items():
            found[f"{key} on {name}"] = _group_score(cluster, arguments, key, nodes[name])
            wanted[f"{key} on {name}"] = float(score)
    return found, wanted


def _group_score(
    cluster: Cluster, arguments: Mapping[str, Any], key: str, labels: Mapping[str, str]
) -> float:
    group = labels.get("volcano.sh/nodegroup-name")
    if group is None:
        return 0.0
    handle = cluster.scheduler.handle_for("VolcanoNodeGroups", "default-scheduler")
    plugin = VolcanoNodeGroups(VolcanoNodeGroups.Args(**arguments), handle)
    queue = cluster.snapshot.objects(VolcanoPodGroup)[cluster.snapshot.living[key].gang or ""]
    return plugin.rules_of(queue.spec.queue).score(group, plugin.args.enable_preferred_order)


_SCORERS: Mapping[str, tuple[type[Plugin[Any]], str]] = {
    "binpack": (VolcanoBinpack, "VolcanoBinpack"),
    "resource-strategy-fit": (VolcanoResourceStrategyFit, "VolcanoResourceStrategyFit"),
}


def _node_scores(case: Case) -> tuple[Any, Any]:
    """Compare the weighted score of each node, also of those that a pod does not fit."""
    name = case["tiers"][0]["plugins"][0]["name"]
    kind, plugin_name = _SCORERS[name]
    profile, _ = volcano_profile(configuration(case), "volcano")
    (weight,) = (
        one["weight"]
        for one in profile["plugins"]["multiPoint"]["enabled"]
        if one["name"] == plugin_name
    )
    (arguments,) = (one["args"] for one in profile["pluginConfig"] if one["name"] == plugin_name)
    cluster = Cluster()
    cluster.add(*objects(case))
    plugin: Any = runtime_of(kind, cluster, arguments).plugins[plugin_name]
    snapshot = cluster.snapshot
    found = {}
    for key in case["row"]["expected"]:
        column = plugin.score(snapshot.living[key], snapshot.view())
        own = dict(zip(snapshot.nodes.names, column.tolist(), strict=True))
        found[key] = {node: round(own[node] * weight, 5) for node in case["row"]["expected"][key]}
    wanted = {
        key: {node: round(score, 5) for node, score in by_node.items()}
        for key, by_node in case["row"]["expected"].items()
    }
    return found, wanted


def _usage(case: Case) -> tuple[Any, Any]:
    """Compare which nodes are refused, or the weighted score of each."""
    profile, _ = volcano_profile(configuration(case), "volcano")
    (enabled,) = (
        one for one in profile["plugins"]["multiPoint"]["enabled"] if one["name"] == "VolcanoUsage"
    )
    (arguments,) = (one["args"] for one in profile["pluginConfig"] if one["name"] == "VolcanoUsage")
    cluster = Cluster()
    cluster.add(*objects(case))
    cluster.snapshot.sync()
    for name, usage in case["row"]["nodesUsageMap"].items():
        # What has no time is as old as can be.
        age = -usage["MetricsTime"] if "MetricsTime" in usage else 1e9
        metrics = tuple(
            WatchedMetric(kind, "AVG", float(usage[key]["10m"]))
            for kind, key in (("CPU", "CPUUsageAvg"), ("Memory", "MEMUsageAvg"))
        )
        end = cluster.snapshot.unix_time - age
        load = WatchedLoad(ObjectMeta(name=name), end, metrics)
        cluster.snapshot.set_object(name, load)
    plugin: Any = runtime_of(VolcanoUsage, cluster, arguments).plugins["VolcanoUsage"]
    expected = case["row"]["expected"]
    view = cluster.snapshot.view()
    if "predicateStatus" in expected:
        wanted = [one["Reason"] for one in expected["predicateStatus"] if one]
        return [one.reason for one in plugin.filter(view)], wanted
    column = dict(zip(view.names, plugin.score(view).tolist(), strict=True))
    (by_node,) = expected.values()
    found = {name: round(column[name] * enabled["weight"], 5) for name in by_node}
    return found, {name: float(score) for name, score in by_node.items()}


_SESSIONS = {
    "usage": _usage,
    "binpack": _node_scores,
    "resource-strategy-fit": _node_scores,
    "conformance": _conformance,
    "nodegroup": _node_groups,
    "overcommit": _admission,
    "resourcequota": _admission,
    "sla": _sla,
    "tdm": _tdm,
}
_ROWS: Mapping[str, frozenset[str]] = {
    "binpack": frozenset(("arguments", "expected")),
    "usage": frozenset(("arguments", "expected", "nodesUsageMap")),
    "resource-strategy-fit": frozenset(("arguments", "expected")),
    "conformance": frozenset(("preemptees", "expectVictims")),
    "nodegroup": frozenset(
        (
            *("expected", "expectedStatus", "targetTaskName"),
            # These repeat what the case has.
            *("arguments", "enableHierarchy", "name", "queue", "pods", "podGroups"),
        )
    ),
    "overcommit": frozenset(("arguments", "expectedEnqueueAble")),
    "resourcequota": frozenset(("expectedEnqueueAble",)),
    "sla": frozenset(("arguments", "expectedOrder", "expectedEnqueueAble")),
    "tdm": frozenset(("args", "want", "predicatedExpected", "scoreExpected", "pods", "nodes")),
}
"""What a session compares with of the row of its test's table."""
_SCORES = "it compares single scores of nodes, which plugins of the profile give by their own rules"
_OUT_OF_SCOPE = {
    "drf": "the table compares values of different types and can never fail",
    "network-topology-aware": _SCORES,
}


def run_session(case: Case) -> tuple[Any, Any]:
    """Return what a session gives and what it expects."""
    name = case["file"].split("/")[3]
    if name in _OUT_OF_SCOPE:
        pytest.skip(f"out of scope: {_OUT_OF_SCOPE[name]}")
    if name not in _SESSIONS:
        raise UnknownFieldError(f"nobody runs sessions of the plugin {name}")
    unread = case["row"].keys() - _ROWS[name]
    if unread:
        raise UnknownFieldError(f"nobody compares {sorted(unread)[0]} of the plugin {name}")
    return _SESSIONS[name](case)


# Units -------------------------------------------------------------------------------------


def _amounts(given: Mapping[str, Any]) -> dict[str, float]:
    named = {_UNITS[key]: float(value) for key, value in given.items() if key in _UNITS}
    named = {name: amount for name, amount in named.items() if amount}
    return {**named, **{k: float(v) for k, v in given["scalar_resources"].items()}}


def _capacity_share(case: Case) -> tuple[Any, Any]:
    given = case["input"]
    names = sorted({*_amounts(given["allocated"]), *_amounts(given["deserved"])})
    used, deserved = (
        np.array([_amounts(given[key]).get(name, 0.0) for name in names])
        for key in ("allocated", "deserved")
    )
    return float(dominant_share(used, deserved)), pytest.approx(case["expected"]["share"])


def _elastic(case: Case) -> tuple[Any, Any]:
    given = case["input"]
    group = {**given["podgroup"], "queue": "q"}
    pods = [{**pod, "podgroup": group["name"]} for pod in given["pods"]]
    nodes = [
        {"name": name, "allocatable": {"cpu": "64", "memory": "1Ti", "pods": "99"}}
        for name in sorted({pod["node"] for pod in pods})
    ]
    cluster = Cluster(plugins={"Queues": {"volcano": {"policy": "capacity"}}})
    world = {"queues": [{"name": "q"}], "podgroups": [group], "pods": pods, "nodes": nodes}
    cluster.add(*objects({"plugins": [], **world}))
    session = _policy(cluster).session
    jobs: Jobs = session.jobs
    job = jobs.named(f"{group['namespace']}/{group['name']}")
    found = session.tree.amounts(jobs.elastic(job))
    return Counter(found), Counter(_amounts(case["expected"]["elastic"]))


def run_unit(case: Case) -> tuple[Any, Any]:
    """Return what a table's row gives and what it expects."""
    return _UNIT_RUNNERS[case["kind"]](case)


_UNIT_RUNNERS = {"unit:capacity-share": _capacity_share, "unit:elastic-resources": _elastic}
RUNNERS = {"session": run_session, **dict.fromkeys(_UNIT_RUNNERS, run_unit)}
"""What runs a case, by its kind."""

"""LowNodeLoad: whole jobs leave nodes that stay too busy, if they have a place elsewhere."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import ApiObject, Node, NodeMetric, Pod
from bayplan.api.times import rfc3339
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.errors import InputError
from bayplan.profiles.loading import load_profiles
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan_plugins.low_node_load import LowNodeLoad

ROUND = 120.0
LIMITS = {"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 70}}


def deployment(
    name: str, replicas: int, cpu: str = "1", *, spec: Mapping[str, Any] | None = None, **meta: Any
) -> ApiObject:
    main = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    labels = {"app": name, **meta.pop("labels", {})}
    template = {
        "metadata": {"labels": labels, **meta},
        "spec": {"containers": [main], **(spec or {})},
    }
    content = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}}
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}}
    return make_object(head | {"spec": content | {"template": template}})


def gang_job(name: str, pods: int, cpu: str = "1") -> list[ApiObject]:
    """Return a Job whose pods run together or not at all."""
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": pods},
    }
    main = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    labels = {"app": name, "pod-group.scheduling.sigs.k8s.io": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [main], "restartPolicy": "Never"},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    spec = {"parallelism": pods, "completions": pods, "template": template}
    return [make_object(group), make_object(job | {"spec": spec})]


class Stage:
    """Nodes with 10 CPUs each, whose agents report each half minute what their pods use.

    :param uses: the CPUs that each pod of an app uses.
    """

    def __init__(self, *names: str, uses: Mapping[str, float], **args: Any) -> None:
        self.cluster = Cluster(plugins={LowNodeLoad: {**LIMITS, **args}})
        start_controllers(self.cluster.api)
        self.uses = dict(uses)
        self.silent: set[str] = set()
        self.cluster.add(*(make_node(name, 10, "100Gi") for name in names))
        self.cluster.schedule()

    def fill(self, node: str, *objects: ApiObject) -> None:
        """Let a node get pods, though others have room."""
        for only in (True, False):
            for one in self.cluster.api.list(Node):
                closed = only and one.metadata.name != node
                spec = replace(one.spec, unschedulable=closed)
                self.cluster.api.update(replace(one, spec=spec))
            if only:
                self.cluster.add(*objects)
                self.cluster.advance(1)

    def report(self) -> None:
        for node in self.cluster.api.list(Node):
            name = node.metadata.name
            if name in self.silent:
                continue
            pods = [one for one in self.cluster.api.list(Pod) if one.spec.node_name == name]
            measured = {one.metadata.name: self.uses[one.metadata.labels["app"]] for one in pods}
            one = metric(name, self.cluster.scheduler.snapshot.unix_time, measured)
            known = self.cluster.api.get(NodeMetric, name)
            (self.cluster.api.create if known is None else self.cluster.api.update)(one)
        self.cluster.api.deliver()

    def pass_time(self, rounds: float) -> None:
        for _ in range(int(rounds * ROUND / 30)):
            self.report()
            self.cluster.advance(30)

    def on(self, app: str) -> Counter[str]:
        """Return how many pods of an app each node has."""
        pods = self.cluster.api.list(Pod)
        return Counter(one.spec.node_name for one in pods if one.metadata.labels.get("app") == app)

    @property
    def evicted(self) -> list[str]:
        return [one.reason for one in self.cluster.scheduler.evictor.evicted]


def metric(node: str, now: float, pods: Mapping[str, float]) -> ApiObject:
    own = [
        {
            "namespace": "default",
            "name": name,
            "podUsage": {"resources": {"cpu": f"{int(cpu * 1000)}m", "memory": "1Gi"}},
        }
        for name, cpu in pods.items()
    ]
    total = {"cpu": f"{int(sum(pods.values()) * 1000)}m", "memory": f"{len(own)}Gi"}
    status = {
        "updateTime": rfc3339(now),
        "nodeMetric": {"nodeUsage": {"resources": total}},
        "podsMetric": own,
    }
    return make_object(
        {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeMetric",
            "metadata": {"name": node},
            "status": status,
        }
    )


UNLIMITED: Any = {"workload": {"duration": "0s"}}
"""Pods of one controller may go as often as other limits let them."""


def test_pods_leave_a_busy_node_until_it_is_not_and_no_more() -> None:
    stage = Stage("a", "b", uses={"web": 2})
    stage.fill("a", deployment("web", 4))
    assert stage.on("web") == {"a": 4}
    stage.pass_time(12)
    # 80 % are too much, 60 % are not.
    assert stage.on("web") == {"a": 3, "b": 1}
    assert stage.evicted == ["rebalance: a is overutilized, cpu usage 80% > 70%; it fits on b"]


def test_a_node_has_to_be_too_busy_for_more_rounds_in_a_row_than_stated() -> None:
    stage = Stage("a", "b", uses={"web": 2})
    stage.fill("a", deployment("web", 4))
    stage.pass_time(4)
    stage.uses["web"] = 1
    stage.pass_time(1)
    stage.uses["web"] = 2
    stage.pass_time(5)
    assert stage.evicted == []
    stage.pass_time(1)
    assert len(stage.evicted) == 1


def test_the_decision_on_the_pod_that_begins_again_says_why() -> None:
    stage = Stage("a", "b", uses={"web": 2}, anomalyCondition={"consecutiveAbnormalities": 1})
    stage.fill("a", deployment("web", 4))
    stage.pass_time(2)
    moved = next(one for one in stage.cluster.api.list(Pod) if one.spec.node_name == "b")
    notes = stage.cluster.decision(moved.key).pods[moved.key].notes
    assert "rebalance: moved here, a is overutilized, cpu usage 80% > 70%" in notes


def test_what_has_left_since_the_last_report_counts_no_more() -> None:
    often = {"anomalyCondition": {"consecutiveAbnormalities": 1}, "objectLimiters": UNLIMITED}
    stage = Stage("a", "b", uses={"web": 2}, **often)
    stage.fill("a", deployment("web", 5))
    stage.cluster.advance(ROUND)
    stage.report()
    stage.cluster.advance(170)
    # Two rounds with one report: two of five are enough.
    assert stage.on("web") == {"a": 3, "b": 2}
    stage.pass_time(4)
    assert stage.on("web") == {"a": 3, "b": 2}


def test_a_gang_goes_as_a_whole_and_begins_again_as_a_whole() -> None:
    stage = Stage("a", "b", "c", uses={"train": 2, "web": 3})
    stage.fill("a", *gang_job("train", 2))
    stage.fill("a", deployment("web", 1))
    # The one pod of a controller stays.
    stage.cluster.advance(1)
    stage.uses["train"] = 2.5
    stage.pass_time(8)
    assert stage.on("web") == {"a": 1}
    assert stage.on("train")["a"] == 0
    assert sum(stage.on("train").values()) == 2
    assert len(stage.evicted) == 2
    assert all("with all 2 pods of its job" in one for one in stage.evicted)


def test_nothing_goes_that_has_no_place_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bayplan.plugins")
    stage = Stage("a", "b", uses={"web": 2})
    spec = {"nodeSelector": {"kubernetes.io/hostname": "a"}}
    stage.fill("a", deployment("web", 4, spec=spec))
    stage.pass_time(12)
    assert stage.evicted == []
    assert "has no place elsewhere" in caplog.text


def test_no_node_becomes_too_busy_by_what_comes() -> None:
    stage = Stage("a", "b", "c", uses={"web": 4, "other": 1.5}, maxMigratingPerNode=0)
    stage.fill("b", deployment("other", 2))
    stage.fill("a", deployment("web", 4))
    # On b there are 30 %, and 70 % would be with one more; c takes one, too.
    stage.pass_time(12)
    assert stage.on("web") == {"a": 2, "b": 1, "c": 1}


def test_a_dry_run_says_what_would_go(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bayplan.plugins")
    stage = Stage("a", "b", uses={"web": 2}, dryRun=True)
    stage.fill("a", deployment("web", 4))
    stage.pass_time(8)
    assert stage.evicted == []
    assert "dry run: default/web-" in caplog.text
    assert "leaves for b: a is overutilized, cpu usage 80% > 70%" in caplog.text


def test_old_reports_move_nothing() -> None:
    stage = Stage("a", "b", uses={"web": 2})
    stage.fill("a", deployment("web", 4))
    stage.pass_time(2)
    stage.silent = {"a"}
    stage.pass_time(12)
    assert stage.evicted == []


@pytest.mark.parametrize(
    ("args", "most"),
    [
        ({"maxNoOfPodsToEvictPerNode": 1}, 1),
        ({"maxNoOfPodsToEvictPerNamespace": 2}, 2),
        ({"maxNoOfPodsToEvictTotal": 3}, 3),
        ({"maxMigratingPerNode": 1}, 1),
        ({"maxMigratingGlobally": 2}, 2),
        ({"maxMigratingPerNamespace": 1}, 1),
        ({"maxMigratingPerWorkload": "20%"}, 2),
        ({"maxMigratingPerWorkload": None}, 2),
        ({"maxUnavailablePerWorkload": 1}, 1),
        ({}, 3),
    ],
)
def test_at_most_so_many_go_at_a_time(args: dict[str, Any], most: int) -> None:
    """Ten pods use 95 %; without any limit three would go."""
    free = {
        "maxMigratingPerNode": 0,
        "maxMigratingPerWorkload": 9,
        "maxUnavailablePerWorkload": 9,
        "objectLimiters": UNLIMITED,
    }
    stage = Stage("a", "b", uses={"web": 0.95}, **{**free, **args})
    stage.fill("a", deployment("web", 10))
    stage.pass_time(4.5)
    assert stage.evicted == []
    stage.pass_time(1)
    assert len(stage.evicted) == most


def test_the_only_pod_of_a_controller_stays_unless_the_profile_says_otherwise() -> None:
    for args, moved in (({}, 0), ({"skipCheckExpectedReplicas": True}, 1)):
        stage = Stage("a", "b", uses={"web": 4, "db": 4}, **args)
        stage.fill("a", deployment("web", 1), deployment("db", 1))
        stage.pass_time(7)
        assert len(stage.evicted) == moved


@pytest.mark.parametrize(
    ("meta", "spec", "args", "moves"),
    [
        ({}, {"volumes": [{"name": "v", "emptyDir": {}}]}, {}, False),
        ({}, {"volumes": [{"name": "v", "emptyDir": {}}]}, {"evictLocalStoragePods": True}, True),
        ({}, {"priority": 9000}, {"priorityThreshold": {"value": 9000}}, False),
        ({}, {"priority": 2_000_000_000}, {}, False),
        ({}, {"priority": 2_000_000_000}, {"evictSystemCriticalPods": True}, True),
        ({"labels": {"team": "x"}}, {}, {"labelSelector": {"matchLabels": {"team": "y"}}}, False),
        ({}, {}, {"podSelectors": [{"selector": {"matchLabels": {"app": "no"}}}]}, False),
        ({}, {}, {"evictableNamespaces": {"exclude": ["default"]}}, False),
        ({}, {}, {"namespaces": {"include": ["other"]}}, False),
        (
            {"annotations": {"scheduling.koordinator.sh/eviction-cost": "2147483647"}},
            {},
            {},
            False,
        ),
        (
            {"annotations": {"descheduler.alpha.kubernetes.io/evict": "true"}},
            {"priority": 2_000_000_000},
            {},
            True,
        ),
    ],
)
def test_pods_and_profiles_say_who_may_go(
    meta: dict[str, Any], spec: dict[str, Any], args: dict[str, Any], moves: bool
) -> None:
    stage = Stage("a", "b", uses={"web": 2}, **args)
    stage.fill("a", deployment("web", 4, spec=spec, **meta))
    stage.pass_time(7)
    assert bool(stage.evicted) == moves


def test_a_disruption_budget_keeps_pods() -> None:
    stage = Stage("a", "b", uses={"web": 2})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "web"}}},
    }
    stage.cluster.add(make_object(budget))
    stage.fill("a", deployment("web", 4))
    stage.pass_time(8)
    assert stage.evicted == []


def test_a_pod_that_nobody_makes_again_stays() -> None:
    stage = Stage("a", "b", uses={"bare": 4})
    stage.fill("a", *(make_pod(name, 1, labels={"app": "bare"}) for name in ("x", "y")))
    stage.pass_time(8)
    assert stage.evicted == []


def test_the_least_important_pod_goes_first_and_of_equal_ones_that_which_suffices() -> None:
    stage = Stage("a", "b", uses={"web": 1, "batch": 1, "big": 2}, maxMigratingPerNode=1)
    stage.fill(
        "a",
        deployment("web", 2, spec={"priority": 9500}),
        deployment("big", 2, spec={"priority": 5500}),
        deployment("batch", 2, spec={"priority": 5500}),
    )
    stage.pass_time(7)
    # 10 % are too much: one CPU is enough.
    assert stage.on("batch") == {"a": 1, "b": 1}
    assert stage.on("web") == {"a": 2}


def test_usage_of_production_has_thresholds_of_its_own() -> None:
    prod = {"prodLowThresholds": {"cpu": 20}, "prodHighThresholds": {"cpu": 40}}
    stage = Stage("a", "b", uses={"web": 1.5, "batch": 0.5}, **prod)
    stage.fill("a", deployment("web", 3, spec={"priority": 9500}))
    stage.fill("a", deployment("batch", 3, spec={"priority": 5500}))
    stage.pass_time(7)
    assert stage.on("web") == {"a": 2, "b": 1}
    assert stage.on("batch") == {"a": 3}
    assert "prod cpu usage 45% > 40%" in stage.evicted[0]


def test_thresholds_may_be_distances_from_the_mean() -> None:
    args = {
        "useDeviationThresholds": True,
        "lowThresholds": {"cpu": 10},
        "highThresholds": {"cpu": 10},
    }
    stage = Stage("a", "b", uses={"web": 1}, **args)
    stage.fill("a", deployment("web", 4))
    # The mean is 20 %: more than 30 % are too much.
    stage.pass_time(7)
    assert stage.on("web") == {"a": 3, "b": 1}
    assert "cpu usage 40% > 30%" in stage.evicted[0]


def test_pools_have_thresholds_of_their_own() -> None:
    pools = [
        {
            "name": "cool",
            "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "a"}},
        },
        {
            "name": "rest",
            "nodeSelector": {"matchExpressions": [{"key": "no", "operator": "DoesNotExist"}]},
            "highThresholds": {"cpu": 90},
        },
    ]
    stage = Stage("a", "b", uses={"web": 2}, nodePools=pools)
    stage.fill("a", deployment("web", 4))
    stage.pass_time(8)
    # Within its own pool a has nobody to give pods to; in the other 80 % are not too much.
    assert stage.evicted == []
    pools[1]["highThresholds"] = {"cpu": 75}
    stage = Stage("a", "b", uses={"web": 2}, nodePools=pools)
    stage.fill("a", deployment("web", 4))
    stage.pass_time(8)
    assert stage.on("web") == {"a": 3, "b": 1}


def test_enough_nodes_have_to_have_room() -> None:
    stage = Stage("a", "b", uses={"web": 2}, numberOfNodes=1)
    stage.fill("a", deployment("web", 4))
    stage.pass_time(8)
    assert stage.evicted == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"lowThresholds": {"cpu": 80}, "highThresholds": {"cpu": 70}}, "at most highThresholds"),
        ({"maxMigratingPerWorkload": "few"}, "expected a number or percent"),
        ({"evictableNamespaces": {"include": ["a"], "exclude": ["b"]}}, "only one of"),
        ({"deschedulingInterval": "soon"}, "expected a duration"),
        ({"anomalyCondition": {"consecutiveAbnormalities": 0}}, "consecutiveAbnormalities"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Any, args: dict[str, Any], said: str) -> None:
    profile = {
        "schedulerName": "koord-scheduler",
        "plugins": {"multiPoint": {"enabled": [{"name": "LowNodeLoad"}]}},
        "pluginConfig": [{"name": "LowNodeLoad", "args": args}],
    }
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    }
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InputError) as caught:
        load_profiles(path)
    assert said in str(caught.value)


# How often ---------------------------------------------------------------------------------


def frequent(rounds: float, **args: Any) -> int:
    """Return how many of ten pods that use 95 % go in so many rounds, when each round may evict."""
    given = {
        "maxMigratingPerNode": 0,
        "maxMigratingPerWorkload": 9,
        "maxUnavailablePerWorkload": 9,
        "anomalyCondition": {"consecutiveAbnormalities": 1},
        **args,
    }
    stage = Stage("a", "b", uses={"web": 0.95}, **given)
    stage.fill("a", deployment("web", 10))
    stage.pass_time(rounds)
    return len(stage.evicted)


@pytest.mark.parametrize(
    ("limiters", "expected"),
    [
        (UNLIMITED, 3),
        ({"workload": {"duration": "1h", "maxMigrating": 1}}, 1),
        ({"workload": {"duration": "1h", "maxMigrating": "10%", "burst": 2}}, 2),
        ({"namespace": {"duration": "1h", "maxMigrating": 1, "burst": 2}}, 2),
        # A percentage of a namespace is nothing.
        ({"namespace": {"duration": "1h", "maxMigrating": "10%"}}, 3),
        ({"namespace": {"duration": "1h"}}, 3),
    ],
    ids=["none", "one", "two at once", "by namespace", "percent", "no number"],
)
def test_pods_of_one_controller_or_namespace_go_one_after_the_other(
    limiters: Any, expected: int
) -> None:
    assert frequent(2, objectLimiters=limiters) == expected


def test_tokens_come_again_with_time() -> None:
    hourly = {"workload": {"duration": "1h", "maxMigrating": 1}}
    assert frequent(6, objectLimiters=hourly) == 1
    quick = {"workload": {"duration": "2m", "maxMigrating": 1}}
    assert frequent(6, objectLimiters=quick) == 3
    # Usually two of ten in five minutes, one at a time: a round after two minutes comes too early.
    assert frequent(1.5, maxMigratingPerWorkload=None) == 1
    assert frequent(2, maxMigratingPerWorkload=None) == 2


def test_a_gang_does_not_count_for_its_controller() -> None:
    hourly = {"workload": {"duration": "1h", "maxMigrating": 1}}
    stage = Stage("a", "b", "c", uses={"train": 2.5, "web": 3}, objectLimiters=hourly)
    stage.fill("a", *gang_job("train", 2))
    stage.fill("a", deployment("web", 1))
    stage.pass_time(8)
    assert len(stage.evicted) == 2

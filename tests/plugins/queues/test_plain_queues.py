"""Queues without a system of their own: ConfigMaps, and namespaces with a ResourceQuota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.plugins.gpus.gpu_builders import claim, gpu_cluster, pod, request

from bayplan import Args, Plugin, PodInfo, Reads, hookimpl
from bayplan.api import ApiObject, ObjectMeta, Pod
from bayplan.api.configmap import ConfigMap
from bayplan.explain.explanation import explain
from bayplan.testing import Cluster, make_gang, make_node, make_object, make_pod


def queue(name: str, **data: str) -> ApiObject:
    meta = {"name": name, "namespace": "queues", "labels": {"bayplan.dev/queue": name}}
    return make_object({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


def quota(namespace: str, **hard: str) -> ApiObject:
    named = {name.replace("__", "/"): amount for name, amount in hard.items()}
    return make_object(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "quota", "namespace": namespace},
            "spec": {"hard": named},
        }
    )


def gpu_pod(name: str, queue: str, node: str = "", **more: Any) -> Pod:
    return make_pod(
        name, cpu=None, memory=None, labels={"bayplan.dev/queue": queue}, node=node, gpu=1, **more
    )


def run(*objects: ApiObject, args: Mapping[str, Any] | None = None) -> Cluster:
    cluster = Cluster(objects, plugins={"Queues": args or {}})
    cluster.schedule()
    cluster.advance(120.0)
    return cluster


def on_nodes(cluster: Cluster) -> set[str]:
    return set(cluster.placements())


def test_a_queue_takes_no_more_than_its_capacity() -> None:
    limited = queue("lab", maxCapacity="{nvidia.com/gpu: 2}")
    pods = [gpu_pod(f"p{index}", "lab") for index in range(4)]
    cluster = run(make_node("n1", gpu=8), limited, *pods)
    assert len(on_nodes(cluster)) == 2
    waiting = {pod.metadata.name for pod in pods} - on_nodes(cluster)
    assert 'queue "lab": limit of nvidia.com/gpu exceeded' in cluster.message(min(waiting))


def test_a_guaranteed_queue_takes_back_what_another_has_beyond_its_share() -> None:
    running = [gpu_pod(f"r{index}", "lent", node="n1") for index in range(8)]
    asking = [gpu_pod(f"p{index}", "owner") for index in range(4)]
    guaranteed = {"guaranteedCapacity": "{nvidia.com/gpu: 4}"}
    cluster = run(
        make_node("n1", gpu=8),
        queue("lent", **guaranteed),
        queue("owner", **guaranteed),
        *running,
        *asking,
    )
    assert {pod.metadata.name for pod in asking} <= on_nodes(cluster)
    assert len(on_nodes(cluster)) == 8, "four were evicted, and no more"


def test_a_gang_that_would_not_fit_evicts_nobody() -> None:
    running = [gpu_pod(f"r{index}", "lent", node=f"n{index // 4}") for index in range(8)]
    gang = make_gang("job", 2)
    wide = [
        make_pod(f"job-{i}", None, None, {"bayplan.dev/queue": "owner"}, gang="job", gpu=5)
        for i in range(2)
    ]
    cluster = run(
        make_node("n0", gpu=4),
        make_node("n1", gpu=4),
        queue("lent"),
        queue("owner", guaranteedCapacity="{nvidia.com/gpu: 10}"),
        gang,
        *running,
        *wide,
    )
    assert len(on_nodes(cluster)) == 8
    assert not cluster.scheduler.evictor.evicted


def test_a_queue_that_never_gives_back_keeps_its_jobs() -> None:
    running = [gpu_pod(f"r{index}", "kept", node="n1") for index in range(4)]
    cluster = run(
        make_node("n1", gpu=4),
        queue("kept", preemptionPolicy="never"),
        queue("owner", guaranteedCapacity="{nvidia.com/gpu: 4}"),
        *running,
        gpu_pod("p", "owner"),
    )
    assert on_nodes(cluster) == {pod.metadata.name for pod in running}


def test_tenants_belong_to_their_queue_by_namespace() -> None:
    lab = queue("lab", maxCapacity="{nvidia.com/gpu: 0}", tenants="[team-a]")
    pod = make_pod("p", None, None, namespace="team-a", gpu=1)
    cluster = run(make_node("n1", gpu=8), lab, pod)
    assert not on_nodes(cluster)


def test_namespaces_are_queues_only_where_the_profile_says_so() -> None:
    objects = [make_node("n1", cpu=8), quota("team-a", **{"requests.cpu": "1"})]
    pods = [make_pod(f"p{index}", "1", namespace="team-a") for index in range(3)]
    assert len(on_nodes(run(*objects, *pods))) == 3
    assert len(on_nodes(run(*objects, *pods, args={"namespaces": {}}))) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"weight": "0"}, "data[weight]: Input should be greater than 0"),
        ({"wieght": "1"}, "data[wieght]: Extra inputs are not permitted"),
        ({"maxCapacity": "{cpu: lots}"}, "data[maxCapacity].cpu: expected a quantity"),
        ({"maxCapacity": "{cpu: -1}"}, "data[maxCapacity].cpu: expected 0 or more, got -1"),
        ({"maxCapacity": "{cpu: ["}, "data[maxCapacity]:"),
        (
            {"maxCapacity": "{cpu: 1}", "guaranteedCapacity": "{cpu: 2}"},
            "data[guaranteedCapacity]: more cpu than maxCapacity has",
        ),
    ],
)
def test_a_broken_queue_keeps_its_jobs_pending_and_says_why(
    data: dict[str, str], message: str
) -> None:
    cluster = run(make_node("n1", gpu=8), queue("lab", **data), gpu_pod("p", "lab"))
    assert f'queue "lab": {message}' in cluster.message("default/p")


def test_a_missing_queue_is_waited_for() -> None:
    cluster = run(make_node("n1", gpu=8), queue("other"), gpu_pod("p", "lab"))
    assert cluster.message("default/p") == 'waiting for queue "lab", which does not exist'
    cluster.add(queue("lab"))
    cluster.schedule()
    assert on_nodes(cluster) == {"p"}


def test_the_queue_with_the_least_of_its_share_goes_first() -> None:
    pods = [gpu_pod(f"{name}{index}", name) for index in range(8) for name in ("a", "b")]
    cluster = run(make_node("n1", gpu=8), queue("a", weight="1"), queue("b", weight="3"), *pods)
    names = on_nodes(cluster)
    assert sum(name.startswith("a") for name in names) == 2
    assert sum(name.startswith("b") for name in names) == 6


def test_what_would_help_a_job_beyond_its_limit_and_its_node_is_more_of_both() -> None:
    limited = queue("lab", maxCapacity="{nvidia.com/gpu: 2}")
    members = [gpu_pod(f"job-{index}", "lab", gang="job") for index in range(3)]
    cluster = run(make_node("n1", gpu=2), limited, make_gang("job", 3), *members)
    pod = cluster.api.get(Pod, "default/job-0")
    assert pod is not None
    about = explain(cluster.scheduler, pod)
    assert [one.text for one in about.suggestions] == [
        "would be admitted if the cluster had 1 more node like n1, and with 1 more nvidia.com/gpu "
        'in the limit of queue "lab"'
    ]


def test_a_pod_that_two_systems_claim_waits_and_names_both() -> None:
    other = make_object(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": "theirs"},
            "spec": {"weight": 1},
        }
    )
    named = {"scheduling.volcano.sh/queue-name": "theirs"}
    pod = gpu_pod("p", "lab", annotations=named)
    cluster = run(make_node("n1", gpu=8), queue("lab"), other, pod)
    message = cluster.message("default/p")
    assert message == (
        'two systems claim it for a queue: volcano (queue "theirs") and configmap (queue "lab")'
    )


def test_a_job_is_told_which_running_jobs_end_before_it_can_start() -> None:
    running = [
        gpu_pod("short", "lab", annotations={"bayplan.dev/duration": "5m"}),
        gpu_pod("long", "lab", annotations={"bayplan.dev/duration": "1h"}),
    ]
    cluster = Cluster([make_node("n1", gpu=2), queue("lab"), *running])
    cluster.schedule()
    cluster.add(gpu_pod("p", "lab"))
    cluster.schedule()
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    line = explain(cluster.scheduler, pod).line
    assert line is not None
    assert (line.place, line.length) == (1, 1)
    assert [text.partition(",")[0] for text in line.waits_for] == ["default/short"]


def test_what_preempted_in_a_full_queue_takes_the_place_though_others_like_it_were_refused() -> (
    None
):
    limited = queue("lab", maxCapacity="{nvidia.com/gpu: 1}")
    cluster = run(make_node("n1", gpu=2), limited, gpu_pod("low", "lab"))
    urgent = [gpu_pod(f"urgent-{index}", "lab", priority=1) for index in range(2)]
    cluster.add(*urgent)
    cluster.schedule()
    cluster.remove("low")
    cluster.advance(60.0)
    assert on_nodes(cluster) == {"urgent-0"}


def test_a_queue_takes_back_what_a_sibling_borrowed_in_a_parent_that_is_full() -> None:
    share = {"guaranteedCapacity": "{nvidia.com/gpu: 4}"}
    queues = [
        queue("team", **share, maxCapacity="{nvidia.com/gpu: 4}"),
        queue("owner", **share, parent="team"),
        queue("guest", parent="team"),
    ]
    running = [gpu_pod(f"g{index}", "guest", node="n1") for index in range(4)]
    asking = [gpu_pod(f"p{index}", "owner") for index in range(4)]
    for policy in ("fair_share", "capacity"):
        args = {"configmap": {"policy": policy}}
        cluster = run(make_node("n1", gpu=8), *queues, *running, *asking, args=args)
        assert on_nodes(cluster) == {pod.metadata.name for pod in asking}, policy


def test_what_leaves_makes_room_for_one_and_counts_as_gone_for_the_next() -> None:
    share = {"guaranteedCapacity": "{nvidia.com/gpu: 2}"}
    running = [gpu_pod(f"r{index}", "guest", node="n1") for index in range(4)]
    cluster = Cluster([make_node("n1", gpu=4), queue("owner", **share), queue("guest"), *running])
    cluster.schedule()
    for index in range(2):
        cluster.add(gpu_pod(f"p{index}", "owner"))
        cluster.schedule()
    assert len(cluster.scheduler.evictor.evicted) == 2


@pytest.mark.parametrize("steps", range(8))
def test_a_queue_that_goes_while_a_job_tries_its_actions_lets_it_go(steps: int) -> None:
    label = {"bayplan.dev/queue": "a"}
    meta = ObjectMeta(name="queue-a", namespace="default", labels=label)
    pods = [make_pod(f"p{index}", cpu=1, labels=label) for index in range(4)]
    queue = ConfigMap(meta, {"maxCapacity": "{cpu: 3}"})
    cluster = Cluster([make_node("n", cpu=8), queue, *pods])
    for _ in range(steps):
        cluster.api.deliver()
        cluster.scheduler.step()
    cluster.api.delete(ConfigMap, "default/queue-a")
    cluster.advance(30.0)
    assert len(cluster.placements()) == 4


# What jobs of a queue learn from each other ----------------------------------------------------


class OnlyRed(Plugin[Args]):
    """Refuses all pods but red ones, and does not say by what it tells pods apart."""

    reads = Reads.NODE

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> str | None:
        return None if pod.labels.get("colour") == "red" else "it is not red"


class OnlyRedSigned(OnlyRed):
    """Says so."""

    @hookimpl
    def sign(self, pod: PodInfo) -> str | None:
        return pod.labels.get("colour")


def coloured(name: str, colour: str) -> Pod:
    pod = gpu_pod(name, "lab")
    pod.metadata.labels["colour"] = colour
    return pod


def test_of_pods_in_a_queue_that_name_claims_of_equal_specs_one_is_tried() -> None:
    """Of those that fit, each is; and so is one that asks for something else."""
    specs = {name: request() for name in ("c0", "c1", "c2", "c3")}
    specs["rare"] = request(selectors=[{"cel": {"expression": "false"}}])
    names = list(specs)
    pods = [pod(f"p-{name}", from_claim=name) for name in names]
    for one in pods:
        one.metadata.labels["bayplan.dev/queue"] = "lab"
    claims = [claim(name, spec) for name, spec in specs.items()]
    cluster = gpu_cluster({"a": 1}, queue("lab"), *claims)
    cluster.add(*pods)
    cluster.schedule()
    assert on_nodes(cluster) == {"p-c0"}
    assert "cannot allocate all claims" in cluster.message("p-c1")
    assert "equivalent to default/p-c1" in cluster.message("p-c2")
    assert "equivalent to default/p-c1" in cluster.message("p-c3")
    assert "not selected" in cluster.message("p-rare")


@pytest.mark.parametrize("plugin", [OnlyRed, OnlyRedSigned])
def test_a_job_that_a_plugin_tells_apart_is_tried_though_one_of_its_spec_was_refused(
    plugin: type[Plugin[Any]],
) -> None:
    pods = [coloured("first", "blue"), coloured("second", "red"), coloured("third", "blue")]
    cluster = Cluster([make_node("n1", gpu=8), queue("lab"), *pods], plugins=[plugin])
    cluster.schedule()
    assert on_nodes(cluster) == {"second"}
    skipped = "equivalent to" in cluster.message("third")
    assert skipped == (plugin is OnlyRedSigned), "equal pods are tried once, where that is known"

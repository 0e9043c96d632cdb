"""Pods of a silent kubelet stay until it is back, its node is gone, or somebody vouches for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.passing_time import pass_time

from bayplan.api import ApiObject, Node, Pod, Taint
from bayplan.api.node import NodeCondition
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object, make_pod

Content = dict[str, Any]

OUT_OF_SERVICE = Taint("node.kubernetes.io/out-of-service", "NoExecute", "nodeshutdown")
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists"}


def say(cluster: MemoryCluster, ready: str, *taints: Taint, node: str = "n") -> None:
    """Give a node the condition Ready and taints."""
    found = cluster.get(Node, node)
    assert found is not None
    status = replace(found.status, conditions=(NodeCondition("Ready", ready),))
    cluster.update(replace(found, status=status, spec=replace(found.spec, taints=taints)))


class Stage:
    """A node with a pod that takes 30 s to end, and the controllers."""

    def __init__(self, kind: type[MemoryCluster], **spec: Any) -> None:
        self.cluster = kind()
        start_controllers(self.cluster)
        self.cluster.create(make_node("n"))
        self.cluster.create(make_pod("p", spec={"nodeName": "n", **spec}))
        self.advance(0)

    def advance(self, seconds: float) -> None:
        pass_time(self.cluster, seconds)

    @property
    def pod(self) -> Pod | None:
        return self.cluster.get(Pod, "default/p")

    @property
    def is_terminating(self) -> bool:
        return self.pod is not None and self.pod.metadata.deletion_timestamp is not None


@pytest.fixture(params=[MemoryCluster, ServedCluster])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(request.param)


def test_a_deleted_pod_ends_once_its_kubelet_is_back(stage: Stage) -> None:
    say(stage.cluster, "Unknown")
    stage.cluster.delete(Pod, "default/p")
    stage.advance(3600)
    assert stage.is_terminating
    say(stage.cluster, "True")
    stage.advance(29)
    assert stage.is_terminating
    stage.advance(1)
    assert stage.pod is None


def test_a_kubelet_that_falls_silent_in_the_grace_period_ends_nothing(stage: Stage) -> None:
    stage.cluster.delete(Pod, "default/p")
    stage.advance(10)
    say(stage.cluster, "Unknown")
    stage.advance(3600)
    assert stage.is_terminating


def test_a_kubelet_that_is_not_ready_but_speaks_ends_its_pods(stage: Stage) -> None:
    say(stage.cluster, "False")
    stage.cluster.delete(Pod, "default/p")
    stage.advance(30)
    assert stage.pod is None


def test_a_forced_deletion_needs_no_kubelet(stage: Stage) -> None:
    say(stage.cluster, "Unknown")
    stage.cluster.delete(Pod, "default/p")
    stage.advance(60)
    stage.cluster.delete(Pod, "default/p", 0)
    assert stage.pod is None


def test_pods_go_forty_seconds_after_the_node_of_a_silent_kubelet(stage: Stage) -> None:
    say(stage.cluster, "Unknown")
    stage.cluster.delete(Pod, "default/p")
    stage.advance(60)
    stage.cluster.delete(Node, "n")
    stage.advance(39)
    assert stage.is_terminating
    stage.advance(1)
    assert stage.pod is None


def test_a_node_that_is_made_again_ends_the_pods_of_the_one_before(stage: Stage) -> None:
    say(stage.cluster, "Unknown")
    stage.cluster.delete(Pod, "default/p")
    stage.cluster.delete(Node, "n")
    stage.advance(10)
    stage.cluster.create(make_node("n"))
    stage.advance(60)
    assert stage.pod is None


def test_pods_leave_a_dead_node_that_is_out_of_service(stage: Stage) -> None:
    say(stage.cluster, "Unknown", OUT_OF_SERVICE)
    stage.advance(1)
    assert stage.is_terminating
    stage.advance(20)
    assert stage.pod is None


def test_pods_of_a_node_that_lives_end_in_time_though_it_is_out_of_service(stage: Stage) -> None:
    say(stage.cluster, "True", OUT_OF_SERVICE)
    stage.advance(29)
    assert stage.is_terminating
    stage.advance(1)
    assert stage.pod is None


@pytest.mark.parametrize("kind", [MemoryCluster, ServedCluster])
def test_who_tolerates_that_a_node_is_out_of_service_stays(kind: type[MemoryCluster]) -> None:
    stage = Stage(kind, tolerations=[{"operator": "Exists"}])
    say(stage.cluster, "Unknown", OUT_OF_SERVICE)
    stage.advance(3600)
    assert stage.pod is not None
    assert not stage.is_terminating


def test_a_pod_completes_when_its_kubelet_is_back() -> None:
    made = Simulation(default_profiles(), until=1000)
    ends = make_pod("p", annotations={"bayplan.dev/duration": "60s"})
    made.create([make_node("n"), ends])
    phases = []

    def look() -> None:
        pod = made.cluster.get(Pod, "default/p")
        phases.append(pod.status.phase if pod is not None else "")

    made.cluster.clock.call_at(30, lambda: say(made.cluster, "Unknown"))
    made.cluster.clock.call_at(120, look)
    made.cluster.clock.call_at(130, lambda: say(made.cluster, "True"))
    made.cluster.clock.call_at(131, look)
    made.run()
    assert phases == ["Running", "Succeeded"]


def test_a_pod_starts_when_its_kubelet_is_back() -> None:
    made = Simulation(default_profiles(), until=200)
    made.create([make_node("n"), make_pod("p", spec={"tolerations": [UNREACHABLE]})])
    say(made.cluster, "Unknown")
    phases = []

    def look() -> None:
        pod = made.cluster.get(Pod, "default/p")
        assert pod is not None
        phases.append((pod.spec.node_name, pod.status.phase))

    made.cluster.clock.call_at(50, look)
    made.cluster.clock.call_at(60, lambda: say(made.cluster, "True"))
    made.cluster.clock.call_at(61, look)
    made.run()
    assert phases == [("n", "Pending"), ("n", "Running")]


# A snapshot's pods ---------------------------------------------------------------------------


def terminating(since: str, phase: str = "Running") -> ApiObject:
    """Return a pod as a snapshot has it whose deletion ends 30 s after its request."""
    meta: Content = {"name": "old", "deletionTimestamp": since, "deletionGracePeriodSeconds": 30}
    resources = {"requests": {"cpu": "4"}}
    return make_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": resources}]},
            "status": {"phase": phase},
        }
    )


@pytest.mark.parametrize(
    ("ends", "bound"),
    [("1999-12-31T23:00:00Z", 0), ("2000-01-01T00:00:20Z", 20), ("2026-01-01T00:00:00Z", 30)],
)
def test_a_pod_that_a_snapshot_holds_as_terminating_ends(ends: str, bound: float) -> None:
    made = Simulation(default_profiles())
    made.create([make_node("n", cpu=4), terminating(ends), make_pod("new", cpu=4)])
    made.run()
    assert made.placements() == {"default/new": "n"}
    (at,) = [one.at for one in made.timeline() if one.kind == "Bound"]
    assert bound <= at <= bound + 10


def test_a_pod_that_a_snapshot_holds_as_terminating_on_a_dead_node_keeps_its_room() -> None:
    dead = make_node("n", cpu=4)
    status = replace(dead.status, conditions=(NodeCondition("Ready", "Unknown"),))
    waits = make_pod("new", cpu=4, spec={"tolerations": [UNREACHABLE]})
    made = Simulation(default_profiles())
    made.create([replace(dead, status=status), terminating("1999-12-31T23:00:00Z"), waits])
    made.run()
    assert made.placements() == {"default/old": "n"}
    assert "Insufficient cpu" in made.pending()["default/new"][0]


# Replacements --------------------------------------------------------------------------------


def workload(kind: str) -> ApiObject:
    labels = {"app": "x"}
    container = {"name": "c", "resources": {"requests": {"cpu": "4"}}}
    spec: Content = {"containers": [container]}
    content: Content = {"template": {"metadata": {"labels": labels}, "spec": spec}}
    if kind == "Job":
        spec["restartPolicy"] = "Never"
    else:
        content |= {"selector": {"matchLabels": labels}}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    meta = {"name": "x", "uid": "u-x"}
    return make_object({"apiVersion": version, "kind": kind, "metadata": meta, "spec": content})


class Failure:
    """A workload of one pod whose node dies at 100 s, while another node is free."""

    def __init__(self, kind: str) -> None:
        self.made = Simulation(default_profiles(), until=1000)
        self.made.create([make_node("n", cpu=4), workload(kind)])
        self.seen: dict[float, list[tuple[str, bool]]] = {}
        self.at(50, lambda: self.made.create([make_node("spare", cpu=4)]))
        self.at(100, lambda: say(self.made.cluster, "Unknown"))

    def at(self, seconds: float, do: Any) -> None:
        self.made.cluster.clock.call_at(seconds, do)

    def look(self, seconds: float) -> None:
        """Keep where pods are at a time, and which of them are terminating."""
        self.at(seconds, lambda: self.seen.update({seconds: self._pods()}))

    def _pods(self) -> list[tuple[str, bool]]:
        pods = self.made.cluster.list(Pod)
        return [(p.spec.node_name, p.metadata.deletion_timestamp is not None) for p in pods]


@pytest.mark.parametrize("kind", ["Job", "ReplicaSet", "Deployment"])
def test_a_replacement_goes_elsewhere_while_the_old_pod_is_terminating(kind: str) -> None:
    failure = Failure(kind)
    for seconds in (390, 410, 900):
        failure.look(seconds)
    failure.made.run()
    assert failure.seen[390] == [("n", False)]
    assert failure.seen[410] == failure.seen[900] == [("n", True), ("spare", False)]


def test_a_statefulset_waits_for_the_node_to_be_out_of_service() -> None:
    failure = Failure("StatefulSet")
    failure.at(600, lambda: say(failure.made.cluster, "Unknown", OUT_OF_SERVICE))
    for seconds in (390, 590, 660):
        failure.look(seconds)
    failure.made.run()
    assert failure.seen[390] == [("n", False)]
    assert failure.seen[590] == [("n", True)]
    assert failure.seen[660] == [("spare", False)]


def test_a_node_that_comes_has_no_pods_looked_at_but_those_that_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = MemoryCluster()
    cluster.create(make_node("n"))
    cluster.create(make_pod("p", node="n"))
    listed: list[type] = []
    every = MemoryCluster.list

    def listing(self: MemoryCluster, type_: type[Any]) -> list[Any]:
        listed.append(type_)
        return every(self, type_)

    monkeypatch.setattr(MemoryCluster, "list", listing)
    cluster.create(make_node("m"))

    assert Pod not in listed

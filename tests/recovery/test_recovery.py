"""What becomes of jobs when nodes fail: replaced in place, or tried again as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY

from bayplan.api import ApiObject, Node, Pod
from bayplan.api.node import NodeCondition
from bayplan.api.objects import decode_part
from bayplan.api.pod import ContainerStatus
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import InputError
from bayplan.plugin.base import Eviction
from bayplan.profiles.loading import default_profiles
from bayplan.queues.lost_work import gpu_hours
from bayplan.testing import Cluster, make_gang, make_node, make_object, make_pod

GPU = "nvidia.com/gpu"
BROKEN_SINCE = "bayplan.dev/broken-since"


def job(name: str, count: int, **spec: Any) -> ApiObject:
    """Return a Job of a gang of the same name, whose pods take a node each."""
    main = {"name": "main", "image": "x", "resources": {"limits": {GPU: "8"}}}
    labels = {"pod-group.scheduling.sigs.k8s.io": name}
    pod = {"containers": [main], "restartPolicy": "Never", "terminationGracePeriodSeconds": 10}
    template = {"metadata": {"labels": labels}, "spec": {**pod, **spec}}
    content = {"parallelism": count, "completions": count, "backoffLimit": 1000}
    content["template"] = template
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    return make_object(head | {"spec": content})


class World:
    """Nodes with eight GPUs each, jobs, and a scheduler that can be killed."""

    def __init__(self, nodes: int, **args: Any) -> None:
        named = default_profiles(scheduler_names=("default-scheduler",))
        self.cluster = Cluster((), named, {"Recovery": args})
        start_controllers(self.cluster.api)
        self.add(*(make_node(f"n{number}", gpu=8) for number in range(nodes)))
        self.evicted: list[Eviction] = []

    @property
    def api(self) -> MemoryCluster:
        return self.cluster.api

    def add(self, *objects: ApiObject) -> None:
        self.cluster.add(*objects)

    def gang(self, name: str, count: int, **spec: Any) -> None:
        self.add(make_gang(name, count), job(name, count, **spec))

    def passes(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    def ready(self, name: str, status: str) -> None:
        """Let a kubelet fall silent (Unknown), or come back (True)."""
        self.condition(name, "Ready", status)

    def condition(self, name: str, type_: str, status: str) -> None:
        node = self.api.get(Node, name)
        assert node is not None
        others = [one for one in node.status.conditions if one.type != type_]
        conditions = (*others, NodeCondition(type_, status))
        self.api.update(replace(node, status=replace(node.status, conditions=conditions)))

    def where(self) -> dict[str, str]:
        """Return the node of each pod that does not end, by the pod's uid."""
        return {
            pod.metadata.uid: pod.spec.node_name
            for pod in self.api.list(Pod)
            if pod.metadata.deletion_timestamp is None
        }

    def on(self, *names: str) -> set[str]:
        return {uid for uid, node in self.where().items() if node in names}

    def reasons(self) -> list[str]:
        return [one.reason for one in self.cluster.scheduler.evictor.evicted]

    def kill(self) -> None:
        """Begin again with what the cluster says."""
        self.evicted += self.cluster.scheduler.evictor.evicted
        self.cluster.restart()


def test_the_fifth_node_takes_over_and_three_pods_keep_running() -> None:
    world = World(5)
    world.gang("train", 4)
    world.passes(60)
    (spare,) = {f"n{i}" for i in range(5)} - set(world.where().values())
    (dead, *others) = sorted(set(world.where().values()))
    before = world.on(*others)
    world.ready(dead, "Unknown")
    world.passes(29)
    assert world.reasons() == []
    world.passes(6)
    assert world.reasons() == [f"recovery: node {dead} is lost, its kubelet is silent"]
    assert len(world.on(spare)) == 1
    world.passes(600)
    assert world.on(*others) == before
    assert len(world.reasons()) == 1


def test_without_a_spare_the_gang_is_tried_again_as_a_whole() -> None:
    world = World(4)
    world.gang("train", 4)
    world.passes(60)
    world.ready("n0", "Unknown")
    world.passes(50)
    assert len(world.on("n1", "n2", "n3")) == 3, "they wait for a node to come"
    world.passes(60)
    broken = "recovery: PodGroup default/train is broken, 3 of the 4 members that it needs are left"
    assert world.reasons()[1:] == [broken] * 3
    assert set(world.where().values()) == {""}, "nobody holds a GPU for nothing"
    world.add(make_node("n4", gpu=8))
    world.passes(30)
    assert set(world.where().values()) == {"n1", "n2", "n3", "n4"}


def test_a_node_that_comes_in_time_saves_the_gang() -> None:
    world = World(4)
    world.gang("train", 4)
    world.passes(60)
    world.ready("n0", "Unknown")
    world.passes(60)
    world.add(make_node("n4", gpu=8))
    world.passes(300)
    assert len(world.reasons()) == 1
    assert set(world.where().values()) == {"n1", "n2", "n3", "n4"}


def test_a_grace_period_goes_on_though_the_scheduler_is_killed() -> None:
    world = World(4)
    world.gang("train", 4)
    world.passes(60)
    world.ready("n0", "Unknown")
    for _ in range(4):
        world.passes(25)
        world.kill()
    world.passes(25)
    assert set(world.where().values()) == {""}
    pods = [one.pod for one in world.evicted + list(world.cluster.scheduler.evictor.evicted)]
    assert len(pods) == len(set(pods)) == 4, "nobody is evicted twice"


def test_what_is_whole_again_says_so_no_more() -> None:
    world = World(4)
    world.gang("train", 4)
    world.passes(60)
    world.ready("n0", "Unknown")
    world.passes(40)
    said = [pod for pod in world.api.list(Pod) if BROKEN_SINCE in pod.metadata.annotations]
    assert len(said) == 1
    world.add(make_node("n4", gpu=8))
    world.passes(10)
    said = [pod for pod in world.api.list(Pod) if BROKEN_SINCE in pod.metadata.annotations]
    assert said == []


def test_a_gang_of_another_scheduler_is_left_alone() -> None:
    world = World(3)
    members = [
        make_pod(f"m{n}", gang="other", gpu=8, node=f"n{n}", spec={"schedulerName": "someone"})
        for n in range(3)
    ]
    world.add(make_gang("other", 3), *members)
    world.passes(10)
    world.ready("n0", "Unknown")
    world.passes(200)
    assert world.reasons() == []


def test_a_minimum_that_is_raised_breaks_nothing() -> None:
    world = World(4)
    world.gang("train", 3)
    world.passes(60)
    world.api.delete(type(make_gang("train", 3)), "default/train")
    world.add(make_gang("train", 4))
    world.passes(300)
    assert world.reasons() == []
    assert len(world.on("n0", "n1", "n2", "n3")) == 3


def test_members_that_ended_well_are_not_missed() -> None:
    world = World(2)
    world.gang("train", 2)
    world.passes(60)
    first = next(pod for pod in world.api.list(Pod) if pod.spec.node_name == "n0")
    world.api.update(replace(first, status=replace(first.status, phase="Succeeded")))
    world.passes(300)
    assert world.reasons() == []


# Which nodes are trusted -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_a_node_with_a_fatal_condition_gets_no_new_pods(count: int) -> None:
    world = World(1)
    world.condition("n0", "KernelDeadlock", "True")
    world.gang("train", count)
    world.passes(30)
    assert set(world.where().values()) == {""}
    pods = [pod.key for pod in world.api.list(Pod)]
    assert "node(s) are sick (it has the condition KernelDeadlock)" in world.cluster.message(
        pods[0].partition("/")[2]
    )
    world.condition("n0", "KernelDeadlock", "False")
    world.add(make_node("n1", gpu=8))
    world.passes(30)
    assert "" not in world.where().values()


def test_nvsentinels_quarantine_keeps_pods_off() -> None:
    world = World(0)
    labels = {"dgxc.nvidia.com/nvsentinel-state": "quarantined"}
    world.add(make_node("n0", gpu=8, labels=labels), make_pod("p", gpu=1))
    world.passes(10)
    assert "node(s) are sick (NVSentinel: quarantined)" in world.cluster.message("p")
    node = world.api.get(Node, "n0")
    assert node is not None
    well = {"dgxc.nvidia.com/nvsentinel-state": "remediation-succeeded"}
    world.api.update(replace(node, metadata=replace(node.metadata, labels=well)))
    world.passes(10)
    assert set(world.where().values()) == {"n0"}


def test_a_node_that_flaps_is_distrusted_for_longer_each_time() -> None:
    world = World(1, distrust=300)
    world.add(make_node("without-gpus"))
    world.passes(1)
    for number, pause in enumerate((300, 600, 1200)):
        world.ready("n0", "Unknown")
        world.passes(60)
        world.ready("n0", "True")
        world.passes(1)
        world.gang(f"gang-{number}", 1)
        world.passes(pause - 10)
        assert set(world.where().values()) == {""}
        waiting = [pod.metadata.name for pod in world.api.list(Pod) if not pod.spec.node_name]
        assert "node(s) are not trusted yet (it failed " in world.cluster.message(waiting[0])
        world.passes(15)
        assert set(world.where().values()) == {"n0"}
        world.api.delete(type(job("x", 1)), f"default/gang-{number}")
        world.passes(30)


def test_a_node_that_failed_lately_still_takes_single_pods() -> None:
    world = World(2)
    world.passes(1)
    world.ready("n0", "Unknown")
    world.passes(60)
    world.ready("n0", "True")
    world.add(make_pod("single", gpu=8), make_pod("other", gpu=8))
    world.passes(10)
    assert set(world.where().values()) == {"n0", "n1"}


def test_a_node_that_joins_before_it_is_ready_has_not_failed() -> None:
    world = World(1)
    condition = NodeCondition("Ready", "False")
    node = make_node("new", gpu=8)
    world.add(replace(node, status=replace(node.status, conditions=(condition,))))
    world.gang("train", 2)
    world.passes(20)
    world.ready("new", "True")
    world.passes(10)
    assert set(world.where().values()) == {"n0", "new"}


def test_when_most_nodes_fail_together_nobody_is_evicted() -> None:
    """Then it is the network, or the control plane."""
    world = World(4)
    world.gang("train", 4)
    world.passes(60)
    for number in range(4):
        world.ready(f"n{number}", "Unknown")
        world.passes(2)
    world.passes(200)
    for number in range(4):
        world.ready(f"n{number}", "True")
    world.gang("next", 1)
    world.passes(30)
    assert world.reasons() == []
    assert len(world.on("n0", "n1", "n2", "n3")) == 4


# What reviews found ----------------------------------------------------------------------------


def test_after_a_kill_the_members_of_a_gang_come_back_all_or_none() -> None:
    world = World(4)
    world.gang("train", 4, terminationGracePeriodSeconds=300)
    world.passes(60)
    world.ready("n0", "Unknown")
    world.passes(95)
    assert len(world.reasons()) == 4
    world.kill()
    world.add(make_node("spare", gpu=8))
    world.passes(60)
    assert set(world.where().values()) == {""}
    world.passes(300)
    assert set(world.where().values()) == {"n1", "n2", "n3", "spare"}


def test_a_gang_whose_member_nobody_makes_again_ends_after_a_while() -> None:
    world = World(4, endingGrace=600)
    world.add(make_gang("g", 4), *(make_pod(f"m{n}", gang="g", gpu=8) for n in range(4)))
    world.passes(10)
    world.ready("n0", "Unknown")
    world.passes(500)
    assert len(world.on("n1", "n2", "n3")) == 3
    world.passes(200)
    assert world.on("n1", "n2", "n3") == set()


@pytest.mark.parametrize("least", [4, 8])
def test_a_kill_does_not_break_gangs_whose_minimum_was_raised(least: int) -> None:
    world = World(4)
    world.gang("train", 3)
    world.passes(60)
    world.api.delete(type(make_gang("train", 3)), "default/train")
    world.add(make_gang("train", least))
    world.passes(10)
    world.kill()
    world.passes(300)
    assert world.reasons() == []


def test_a_gang_waits_for_its_node_as_long_as_that_is_not_lost() -> None:
    world = World(4, lostAfter=300)
    world.gang("train", 4)
    world.passes(60)
    world.ready("n0", "Unknown")
    for pod in world.api.list(Pod):
        meta = replace(pod.metadata, annotations={"note": "changed"})
        world.api.update(replace(pod, metadata=meta))
    world.passes(200)
    world.ready("n0", "True")
    world.passes(300)
    assert world.reasons() == []


def test_an_annotation_that_was_left_over_takes_no_grace_away() -> None:
    world = World(4)
    world.gang("train", 4)
    world.passes(60)
    pod = world.api.list(Pod)[0]
    old = replace(pod.metadata, annotations={BROKEN_SINCE: "2000-01-01T00:00:01Z"})
    world.api.update(replace(pod, metadata=old))
    world.kill()
    world.passes(60)
    assert not any(BROKEN_SINCE in one.metadata.annotations for one in world.api.list(Pod))
    world.ready("n0", "Unknown")
    world.passes(60)
    assert len(world.on("n1", "n2", "n3")) == 3


def test_a_gang_that_lost_a_member_goes_before_one_that_has_waited_longer() -> None:
    world = World(4)
    world.gang("train", 4)
    world.passes(60)
    world.gang("older", 1)
    world.passes(10)
    world.ready("n0", "Unknown")
    world.passes(40)
    world.add(make_node("n4", gpu=8))
    world.passes(10)
    assert len(world.on("n1", "n2", "n3", "n4")) == 4
    waiting = [pod.metadata.name for pod in world.api.list(Pod) if not pod.spec.node_name]
    assert [name.partition("-")[0] for name in waiting] == ["older"]


def test_a_disruption_budget_keeps_a_broken_gang_as_a_whole() -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {
            "maxUnavailable": 2,
            "selector": {"matchLabels": {"pod-group.scheduling.sigs.k8s.io": "train"}},
        },
    }
    world = World(4)
    world.add(make_object(budget))
    world.gang("train", 4)
    world.passes(60)
    world.ready("n0", "Unknown")
    world.passes(400)
    assert len(world.on("n1", "n2", "n3")) == 3, "a part of it would be of no use"
    world.cluster.api.delete(type(make_object(budget)), "default/train")
    world.passes(100)
    assert world.on("n1", "n2", "n3") == set()


# Spares ----------------------------------------------------------------------------------------


def racks(*sizes: int) -> list[ApiObject]:
    """Return nodes in racks a, b, ..., so many each."""
    return [
        make_node(f"{'abc'[rack]}{number}", gpu=8, labels={"rack": "abc"[rack]})
        for rack, size in enumerate(sizes)
        for number in range(size)
    ]


def test_the_last_node_of_each_rack_is_kept_for_jobs_that_lose_one() -> None:
    world = World(0, spares=[{"layer": "rack", "nodes": 1}])
    world.add(*racks(3, 3))
    world.gang("first", 4)
    world.gang("second", 1)
    world.passes(30)
    assert sorted(world.where().values()) == ["", "a0", "a1", "b0", "b1"]
    waiting = next(pod for pod in world.api.list(Pod) if not pod.spec.node_name)
    message = world.cluster.message(waiting.metadata.name)
    assert "2 node(s) are spares for jobs that lose a node" in message
    world.ready("a0", "Unknown")
    world.passes(40)
    assert sorted(world.where().values()) in (
        ["", "a1", "a2", "b0", "b1"],
        ["", "a1", "b0", "b1", "b2"],
    )


def test_what_is_preemptible_uses_a_spare_until_a_job_needs_it() -> None:
    world = World(0, spares=[{"nodes": 1}])
    world.add(*racks(3))
    world.gang("train", 2, priority=10)
    world.passes(30)
    world.add(make_pod("filler", gpu=8, priority=-1))
    world.passes(30)
    assert sorted(world.where().values()) == ["a0", "a1", "a2"]
    assert world.cluster.placements()["filler"] == "a2"
    world.ready("a0", "Unknown")
    world.passes(120)
    assert sorted(world.where().values()) == ["a1", "a2"], "the filler went"
    assert len(world.reasons()) == 2


def test_a_gang_that_restarts_as_a_whole_may_use_the_spare() -> None:
    world = World(0, spares=[{"layer": "rack", "nodes": "25%"}])
    world.add(*racks(4))
    world.gang("train", 3)
    world.passes(30)
    assert sorted(world.where().values()) == ["a0", "a1", "a2"]
    world.ready("a0", "Unknown")
    for pod in world.api.list(Pod):
        world.cluster.remove(pod.metadata.name)
    world.passes(30)
    assert sorted(world.where().values()) == ["a1", "a2", "a3"]


@pytest.mark.parametrize(
    "nodes", ["-1", -1, "x", "101%", "1.5", 1.5, True, "9999999999999999999", "%", "", []]
)
def test_a_number_of_spares_that_is_none_is_refused(nodes: object) -> None:
    with pytest.raises(InputError, match='expected a number of nodes, or a part such as "10%"'):
        World(0, spares=[{"nodes": nodes}])


def test_a_layer_that_nobody_knows_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(0, spares=[{"layer": "rak"}])
    world.add(*racks(2))
    world.add(make_pod("a", gpu=8), make_pod("b", gpu=8))
    world.passes(10)
    assert set(world.where().values()) == {"a0", "a1"}
    (said,) = [one.getMessage() for one in caplog.records if "spares" in one.getMessage()]
    assert 'Recovery keeps no spares in layer "rak": ' in said


def test_a_gang_whose_member_fails_by_itself_holds_nothing_for_long() -> None:
    """Nothing happened to the gang between its start and the crash, and no node takes the next."""
    world = World(3, grace=60)
    world.gang("train", 3)
    world.passes(300)
    node = world.api.get(Node, "n0")
    assert node is not None
    world.api.update(replace(node, spec=replace(node.spec, unschedulable=True)))
    (crashed,) = (pod for pod in world.api.list(Pod) if pod.spec.node_name == "n0")
    failed = replace(crashed.status, phase="Failed")
    world.api.update(replace(crashed, status=failed))
    world.passes(30)
    failing = crashed.metadata.uid
    left = [node for uid, node in world.where().items() if uid != failing and node]
    assert len(left) == 2
    world.passes(60)
    assert not any(node for uid, node in world.where().items() if uid != failing)


def test_another_member_says_that_the_gang_is_broken_when_the_first_is_gone() -> None:
    """Otherwise a restart would take what is left of the gang for one that never ran."""
    world = World(4, grace=600)
    world.gang("train", 4)
    world.passes(60)
    for _ in range(2):
        said = [one for one in world.api.list(Pod) if BROKEN_SINCE in one.metadata.annotations]
        gone = said[0].spec.node_name if said else "n3"
        world.api.vanish_node(gone)
        world.passes(60)
    (said_now,) = (
        one
        for one in world.api.list(Pod)
        if BROKEN_SINCE in one.metadata.annotations and not one.metadata.deletion_timestamp
    )
    world.kill()
    world.passes(700)
    assert not any(world.where().values()), said_now


def says_of_its_gpu(world: World, uid: str, health: str) -> None:
    """Let the kubelet say how a GPU of a pod is."""
    (pod,) = (one for one in world.api.list(Pod) if one.metadata.uid == uid)
    gpu = {"resourceID": "GPU-1", "health": health}
    resources = [{"name": GPU, "resources": [gpu]}]
    stated = decode_part(ContainerStatus, {"name": "main", "allocatedResourcesStatus": resources})
    world.api.update(replace(pod, status=replace(pod.status, container_statuses=(stated,))))


def test_a_member_whose_gpu_has_failed_gets_another_one() -> None:
    world = World(5)
    world.gang("train", 4)
    world.passes(10)
    before = world.where()
    victim = min(before)
    says_of_its_gpu(world, victim, "Unhealthy")
    world.passes(20)
    assert world.where() == before, "it may be well again"
    world.passes(60)
    after = world.where()
    assert victim not in after
    assert len([node for node in after.values() if node]) == 4
    assert {uid: node for uid, node in before.items() if uid != victim}.items() <= after.items()
    assert world.reasons() == [f"recovery: its devices have failed: {GPU} GPU-1"]


@pytest.mark.parametrize("health", ["Healthy", "Unknown", "nonsense"])
def test_a_device_of_which_nothing_bad_is_known_changes_nothing(health: str) -> None:
    world = World(5)
    world.gang("train", 4)
    world.passes(10)
    before = world.where()
    says_of_its_gpu(world, min(before), health)
    world.passes(120)
    assert world.where() == before


def test_a_device_that_is_well_again_in_time_costs_nothing() -> None:
    world = World(5)
    world.gang("train", 4)
    world.passes(10)
    before = world.where()
    says_of_its_gpu(world, min(before), "Unhealthy")
    world.passes(20)
    says_of_its_gpu(world, min(before), "Healthy")
    world.passes(120)
    assert world.where() == before


def ray_cluster(workers: int) -> ApiObject:
    """Return a cluster of Ray whose head and workers take a node each."""
    main = {"name": "main", "image": "x", "resources": {"limits": {GPU: "8"}}}
    template = {"spec": {"containers": [main], "terminationGracePeriodSeconds": 10}}
    group = {"rayStartParams": {}, "template": template}
    sized = {"replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    spec = {"headGroupSpec": group, "workerGroupSpecs": [{"groupName": "w", **sized, **group}]}
    head = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "ray"}}
    return make_object(head | {"spec": spec})


@pytest.mark.parametrize("vouched", [True, False])
def test_a_worker_of_ray_that_cannot_end_is_waited_for_longer(vouched: bool) -> None:
    """KubeRay makes no other one before it is gone."""
    world = World(4, lostAfter=2, grace=30, endingGrace=300)
    world.add(ray_cluster(2))
    world.passes(10)
    before = world.where()
    dead = max(before.values())
    kept = {uid: node for uid, node in before.items() if node != dead}
    world.ready(dead, "Unknown")
    world.passes(200)
    assert world.where() == kept
    if vouched:
        (gone,) = (pod for pod in world.api.list(Pod) if pod.metadata.deletion_timestamp)
        world.api.delete(Pod, gone.key, 0)
        world.passes(30)
        assert kept.items() <= world.where().items()
        assert len(world.where()) == 3
        assert all(world.where().values())
    else:
        world.passes(200)
        assert kept.keys().isdisjoint(world.where())


def volcano_job() -> ApiObject:
    """Return a Volcano job of two pods that restarts as a whole when one is evicted."""
    main = {"name": "main", "image": "x", "resources": {"limits": {GPU: "8"}}}
    pod = {"containers": [main], "restartPolicy": "Never", "terminationGracePeriodSeconds": 10}
    spec = {
        "schedulerName": "default-scheduler",
        "minAvailable": 2,
        "policies": [{"event": "PodEvicted", "action": "RestartJob"}],
        "tasks": [{"name": "w", "replicas": 2, "template": {"spec": pod}}],
    }
    head = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"}}
    return make_object(head | {"spec": spec})


def in_one_rack(count: int) -> list[ApiObject]:
    return [make_node(f"n{i}", gpu=8, labels={"rack": "r"}) for i in range(count)]


def test_a_job_that_its_controller_restarts_may_use_the_spare() -> None:
    world = World(0, spares=[{"layer": "rack", "nodes": 1}])
    world.add(*in_one_rack(3), volcano_job())
    world.passes(10)
    before = world.where()
    assert sorted(before.values()) == ["n0", "n1"]
    world.ready("n0", "Unknown")
    world.passes(40)
    (gone,) = (pod for pod in world.api.list(Pod) if pod.metadata.deletion_timestamp)
    world.api.delete(Pod, gone.key, 0)
    world.passes(60)
    assert sorted(world.where().values()) == ["n1", "n2"]
    assert world.where().keys().isdisjoint(before)


def test_what_waits_for_a_node_gets_it_once_that_is_trusted_again() -> None:
    world = World(0, distrust=300)
    world.add(*in_one_rack(2))
    world.passes(5)
    world.ready("n0", "Unknown")
    world.passes(60)
    world.ready("n0", "True")
    world.passes(5)
    world.gang("train", 2)
    world.passes(100)
    assert set(world.where().values()) == {""}
    world.passes(250)
    assert sorted(world.where().values()) == ["n0", "n1"]


def test_what_a_member_had_not_saved_is_counted_and_told() -> None:
    def counted() -> float:
        name = "bayplan_recovery_lost_gpu_hours_total"
        return REGISTRY.get_sample_value(name, {"reason": "recovery"}) or 0.0

    world = World(5)
    world.cluster.profile.runtime.plugins["Recovery"].declare_metrics()
    world.gang("train", 4)
    world.passes(60)
    before = counted()
    world.ready(min(set(world.where().values())), "Unknown")
    world.passes(3600)
    (eviction,) = world.cluster.scheduler.evictor.evicted
    # It ran for about 90 seconds on eight GPUs.
    assert gpu_hours(eviction.lost) == pytest.approx(8 * 90 / 3600, abs=0.03)
    assert counted() - before == pytest.approx(gpu_hours(eviction.lost))

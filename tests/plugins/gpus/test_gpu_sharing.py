"""GPUSharing: pods that share GPUs in KAI's words, from their annotations to their reservations."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.paths import ROOT

from bayplan import PodInfo
from bayplan.api import KaiQueue, Node, Pod
from bayplan.api.configmap import ConfigMap
from bayplan.api.pod import PodStatus
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.protocol import Bind
from bayplan.dialects.kai.shares import GROUP_LABEL, INDEX_ANNOTATION, RESERVATIONS, reservation_pod
from bayplan.errors import Conflict
from bayplan.profiles.loading import load_profiles
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan_plugins.gpus.vendors.kai.groups import GpuGroups

GPU = 80_000
SIZE = "nvidia.com/gpu.memory"
TOO_LITTLE = "Insufficient shares of GPUs."


def node(name: str = "n", gpus: int = 2, gpu: int = GPU, **labels: str) -> Node:
    return make_node(name, gpu=gpus, labels={SIZE: str(gpu), **labels})


def sharer(name: str, fraction: str = "", memory: str = "", devices: str = "", **more: Any) -> Pod:
    given = {"gpu-fraction": fraction, "gpu-memory": memory, "gpu-fraction-num-devices": devices}
    annotations = {key: text for key, text in given.items() if text}
    return make_pod(name, annotations=annotations, **more)


def sharing(*objects: Any, **args: Any) -> Cluster:
    """Return a cluster whose kubelet runs pods, with GPUSharing in its profile."""
    # What GPUFragmentation packs besides outweighs where GPUSharing would put pods.
    cluster = Cluster(plugins={"GPUSharing": args, "GPUFragmentation": {}})
    start_controllers(cluster.api)
    cluster.add(*objects)
    cluster.schedule()
    return cluster


def pod_of(cluster: Cluster, name: str) -> Pod:
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    return found


def group_of(cluster: Cluster, name: str) -> str:
    return pod_of(cluster, name).metadata.labels[GROUP_LABEL]


def reservations(cluster: Cluster) -> list[Pod]:
    return [pod for pod in cluster.api.list(Pod) if pod.metadata.namespace == RESERVATIONS]


# Stories -----------------------------------------------------------------------------------


def test_pods_share_a_gpu_that_a_reservation_pod_holds() -> None:
    cluster = sharing(node(), sharer("a", "0.5"), sharer("b", memory="30000"))
    assert group_of(cluster, "a") == group_of(cluster, "b")
    (reservation,) = reservations(cluster)
    assert reservation.spec.node_name == "n"
    assert reservation.metadata.labels[GROUP_LABEL] == group_of(cluster, "a")
    annotations = pod_of(cluster, "b").metadata.annotations
    assert annotations["received-resource-type"] == "Fraction"
    name = annotations["runai/shared-gpu-configmap"]
    told = cluster.api.get(ConfigMap, f"default/{name}-0")
    assert told is not None
    assert told.data == {
        "NVIDIA_VISIBLE_DEVICES": "0",
        "RUNAI_NUM_OF_GPUS": "0.38",
        "GPU_PORTION": "0.38",
    }


def test_a_shared_gpu_is_taken_for_pods_with_whole_gpus() -> None:
    cluster = sharing(node(), sharer("a", "0.1"), make_pod("whole", gpu=2))
    assert "Insufficient nvidia.com/gpu" in cluster.message("whole")
    cluster.add(make_pod("one", gpu=1), sharer("b", "0.5"))
    assert {"one", "b"} <= cluster.schedule().keys()
    assert group_of(cluster, "a") == group_of(cluster, "b")


def test_a_pod_that_runs_with_an_unreadable_share_holds_its_whole_gpu() -> None:
    running = sharer("a", "half", labels={GROUP_LABEL: "g"}, node="n")
    held = reservation_pod("n", "g", running)
    cluster = sharing(node(gpus=1), held, running, sharer("b", "0.1"))
    assert TOO_LITTLE in cluster.message("b")
    assert cluster.snapshot.problems["n", "shares of default/a"].startswith(
        "annotation gpu-fraction"
    )
    cluster.remove("a")
    cluster.schedule()
    assert not cluster.snapshot.problems


def test_the_last_pod_that_ends_gives_the_gpu_back() -> None:
    cluster = sharing(node(gpus=1), sharer("a", "0.5"), sharer("b", "0.5"), make_pod("c", gpu=1))
    cluster.remove("a")
    assert "c" not in cluster.schedule()
    assert len(reservations(cluster)) == 1
    cluster.remove("b")
    assert cluster.advance(2) == {"c": "n"}
    assert reservations(cluster) == []


def test_what_does_not_fit_is_said_and_waits_for_a_share() -> None:
    cluster = sharing(node(gpus=1), sharer("a", "0.6"), sharer("b", "0.5"))
    assert cluster.message("b").startswith(f"0/1 nodes are available: 1 {TOO_LITTLE}")
    cluster.remove("a")
    assert "b" in cluster.advance(10)


def test_a_remedy_says_how_much_is_missing_on_which_gpu() -> None:
    cluster = sharing(node(), sharer("a", "0.6"), sharer("b", "0.7"), sharer("c", "0.5"))
    call = next(c for c in cluster.profile.runtime["remedies"] if c.name == "GPUSharing")
    view = cluster.snapshot.view()
    (remedy,) = call(PodInfo(pod_of(cluster, "c")), view, None)
    assert remedy.text == (
        "would fit if 8000 MiB more were free on one GPU of n; "
        "its shared GPUs have 32000 MiB, 24000 MiB left: fragmented"
    )


def test_a_remedy_for_several_gpus_says_on_how_many_it_is_missing() -> None:
    cluster = sharing(node(), sharer("a", "0.8"), sharer("b", "0.8"))
    cluster.add(sharer("c", "0.3", devices="2"))
    cluster.schedule()
    call = next(c for c in cluster.profile.runtime["remedies"] if c.name == "GPUSharing")
    (told,) = call(PodInfo(pod_of(cluster, "c")), cluster.snapshot.view())
    assert told.text.startswith("would fit if 8000 MiB more were free on each of 2 GPUs of n")


def test_several_devices_are_different_gpus() -> None:
    cluster = sharing(node(), sharer("a", "0.5", devices="2"), sharer("b", "0.5", devices="2"))
    labels = pod_of(cluster, "a").metadata.labels
    groups = [text for key, text in labels.items() if key.startswith(f"{GROUP_LABEL}/")]
    assert len(set(groups)) == 2
    assert pod_of(cluster, "b").metadata.labels == labels
    assert len(reservations(cluster)) == 2
    cluster.add(sharer("c", "0.1", devices="3"), sharer("d", "0.1"))
    cluster.schedule()
    assert cluster.message("c").startswith(f"0/1 nodes are available: 1 {TOO_LITTLE}")
    assert "Insufficient" in cluster.message("d")


@pytest.mark.parametrize(("placement", "shared"), [("pack", True), ("spread", False)])
def test_gpus_are_packed_or_pods_are_spread(placement: str, shared: bool) -> None:
    cluster = sharing(node(), sharer("a", "0.3"), sharer("b", "0.3"), gpus=placement)
    assert (group_of(cluster, "a") == group_of(cluster, "b")) == shared


@pytest.mark.parametrize(("nodes", "chosen"), [("pack", "n"), ("spread", "m")])
def test_nodes_are_packed_or_pods_are_spread(nodes: str, chosen: str) -> None:
    cluster = sharing(node("n"), sharer("a", "0.3"), nodes=nodes)
    cluster.add(node("m"), sharer("b", "0.3"))
    assert cluster.schedule()["b"] == chosen


def test_the_fullest_gpu_that_fits_comes_first() -> None:
    pods = [sharer("a", "0.6"), sharer("b", "0.5"), sharer("c", "0.4")]
    cluster = sharing(node(), *pods)
    assert group_of(cluster, "c") == group_of(cluster, "a")


def test_a_share_that_cannot_be_read_keeps_its_pod_pending() -> None:
    cluster = sharing(node(), sharer("a", "2"))
    problem = 'annotation gpu-fraction: expected a number above 0 and below 1, got "2"'
    assert cluster.message("a") == problem


def test_nodes_with_partitions_share_no_gpus() -> None:
    labelled = node("a", **{"node-role.kubernetes.io/runai-mig-enabled": "true"})
    partitioned = make_node("b", gpu=1, **{"nvidia.com/mig-1g.10gb": 7})
    cluster = sharing(labelled, partitioned, sharer("p", "0.1"))
    assert cluster.message("p").startswith(f"0/2 nodes are available: 2 {TOO_LITTLE}")


# Restarts and crashes ----------------------------------------------------------------------


def restarted(cluster: Cluster) -> Cluster:
    """Return a cluster with the same objects and a new scheduler."""
    kept = [obj for type_ in (Node, Pod) for obj in cluster.api.list(type_)]
    fresh = Cluster(plugins=["GPUSharing"])
    start_controllers(fresh.api)
    fresh.add(*kept)
    fresh.schedule()
    return fresh


def test_a_restart_reads_the_groups_back() -> None:
    cluster = sharing(node(), sharer("a", "0.5"), make_pod("whole", gpu=1))
    again = restarted(cluster)
    again.add(sharer("b", "0.5"), sharer("c", "0.5"))
    again.schedule()
    assert group_of(again, "b") == group_of(cluster, "a")
    assert len(reservations(again)) == 1
    assert "Insufficient shares of GPUs" in again.message("c")


def test_a_gpu_that_another_scheduler_filled_meanwhile_is_not_shared() -> None:
    cluster = Cluster([node(gpus=1), sharer("ours", "0.6")], plugins=["GPUSharing"])
    cluster.schedule()
    (reservation,) = reservations(cluster)
    group = reservation.metadata.labels[GROUP_LABEL]
    cluster.add(sharer("theirs", "0.6", labels={GROUP_LABEL: group}, node="n"))
    # Only now does the reservation say which GPU it got.
    meta = replace(reservation.metadata, annotations={INDEX_ANNOTATION: "0"})
    cluster.api.update(replace(reservation, metadata=meta))
    cluster.schedule()
    assert "ours" not in cluster.placements()
    assert "Insufficient shares of GPUs" in cluster.message("ours")


def test_a_reservation_that_nobody_uses_is_removed_when_no_scheduler_can_be_about_to() -> None:
    left = reservation_pod("n", "left", make_pod("gone"), "image")
    cluster = sharing(node(), left)
    cluster.advance(50)
    assert len(reservations(cluster)) == 1
    cluster.advance(20)
    assert reservations(cluster) == []


def test_a_reservation_of_another_scheduler_stays_until_its_pods_have_come_and_gone() -> None:
    made = reservation_pod("n", "theirs", make_pod("first"), "image")
    cluster = sharing(node(), made)
    cluster.advance(10)
    labels = {GROUP_LABEL: "theirs"}
    bound = make_pod("first", node="n", labels=labels, annotations={"gpu-fraction": "0.5"})
    cluster.add(bound)
    cluster.advance(100)
    assert len(reservations(cluster)) == 1
    cluster.remove("first")
    cluster.schedule()
    assert reservations(cluster) == []


def test_a_pod_whose_labels_stand_from_a_failed_try_gets_those_of_its_groups() -> None:
    old = {f"{GROUP_LABEL}/old": "old", "app": "web"}
    cluster = sharing(node(), sharer("a", "0.5", labels=old))
    labels = pod_of(cluster, "a").metadata.labels
    assert labels == {"app": "web", GROUP_LABEL: group_of(cluster, "a")}


def test_a_reservation_that_never_tells_its_gpu_gives_the_node_back() -> None:
    cluster = Cluster(plugins=["GPUSharing"])  # without a kubelet
    cluster.add(node(), sharer("a", "0.5"))
    cluster.schedule()
    (first,) = reservations(cluster)
    cluster.advance(41)
    assert "a" not in cluster.placements()
    cluster.advance(10)
    # The next try names its group otherwise, so that the first reservation is not in its way.
    assert [one.key for one in reservations(cluster)] != [first.key]


def answering(reservation: Pod, index: int) -> Pod:
    """Return a reservation pod that says which GPU it got."""
    meta = replace(reservation.metadata, annotations={INDEX_ANNOTATION: str(index)})
    return replace(reservation, metadata=meta)


@pytest.mark.parametrize("fails", [True, False])
def test_a_pod_whose_reservation_goes_does_not_wait_for_it(fails: bool) -> None:
    cluster = Cluster([node(gpus=1), sharer("a", "0.5")], plugins=["GPUSharing"])
    cluster.schedule()
    (first,) = reservations(cluster)
    if fails:
        # The kubelet has no GPU for it, as another scheduler was faster.
        cluster.api.update(replace(first, status=PodStatus(phase="Failed")))
    else:
        cluster.api.delete(Pod, first.key)
    cluster.advance(2)
    second = reservations(cluster)[-1]
    assert second.key != first.key
    told = [event.message for _, event in cluster.api.events if event.pod == "default/a"]
    assert any("the reservation pod of its GPU is gone" in message for message in told)


def test_a_refused_binding_leaves_its_reservation_for_the_next_try() -> None:
    cluster = Cluster([node(gpus=1), sharer("a", "0.5")], plugins=["GPUSharing"])
    cluster.schedule()
    (reservation,) = reservations(cluster)
    cluster.api.faults.fail_next(Bind, Conflict("another pod came first"))
    cluster.api.update(answering(reservation, 0))
    cluster.schedule()
    assert "a" not in cluster.placements()
    assert "a" in cluster.advance(10)
    assert [one.key for one in reservations(cluster)] == [reservation.key]


def test_no_pod_opens_a_reservation_on_a_node_that_has_too_few_gpus() -> None:
    """The reservation pod of a group with pods went, and another one got its GPU."""
    lost = sharer("lost", "0.9", labels={GROUP_LABEL: "lost"}, node="n")
    other = answering(reservation_pod("n", "other", make_pod("first"), "image"), 0)
    cluster = sharing(node(gpus=1), other, lost, sharer("a", "0.5"))
    assert "a" not in cluster.placements()
    assert cluster.message("a").startswith(f"0/1 nodes are available: 1 {TOO_LITTLE}")


# Trials ------------------------------------------------------------------------------------


def state(groups: GpuGroups, node: str) -> dict[str, tuple[list[str], str]]:
    return {
        name: (sorted(group.pods), group.reservation)
        for name, group in groups.on_node(node).items()
    }


@pytest.mark.parametrize("seed", range(20))
def test_trials_leave_no_trace_and_no_gpu_is_above_its_memory(seed: int) -> None:
    rng = random.Random(seed)
    cluster = sharing(node("n", 3), node("m", 2, 40_000))
    groups = cluster.snapshot.shared(GpuGroups, GpuGroups)
    for turn in range(25):
        name = f"p{turn}"
        fraction = str(rng.choice([0.1, 0.3, 0.5, 0.9]))
        asks = [sharer(name, fraction, devices=rng.choice(["1", "2"])), make_pod(name, gpu=1)]
        cluster.add(asks[rng.random() < 0.2])
        cluster.schedule()
        here = [
            key
            for key, (pod, _) in cluster.snapshot.placed.items()
            if pod.namespace != RESERVATIONS
        ]
        before = {node: state(groups, node) for node in ("n", "m")}
        used = cluster.snapshot.nodes.used("nvidia.com/gpu").copy()
        with cluster.snapshot.trial():
            for key in rng.sample(here, min(len(here), 3)):
                pod = cluster.snapshot.remove_pod(key)
                assert pod is not None
                if rng.random() < 0.7:
                    cluster.snapshot.add_pod(pod, rng.choice(["n", "m"]))
        assert before == {node: state(groups, node) for node in ("n", "m")}
        assert (used == cluster.snapshot.nodes.used("nvidia.com/gpu")).all()
        for name in ("n", "m"):
            gpu = groups.gpu_memory(name)
            assert all(one.memory(gpu) <= gpu for one in groups.on_node(name).values())
            assert groups.free_gpus(name) >= 0
        for key in here:
            if rng.random() < 0.2:
                cluster.remove(key.removeprefix("default/"))
        cluster.schedule()
    fresh = GpuGroups(cluster.snapshot)
    assert {n: state(fresh, n) for n in ("n", "m")} == {n: state(groups, n) for n in ("n", "m")}
    live = {group.reservation for n in ("n", "m") for group in groups.on_node(n).values()}
    assert live == {pod.key for pod in reservations(cluster)}


def test_a_whole_gpu_pod_preempts_the_pods_that_share_a_gpu() -> None:
    cluster = sharing(node(gpus=1), sharer("a", "0.5"), sharer("b", "0.5"))
    cluster.add(make_pod("urgent", gpu=1, priority=10))
    cluster.schedule()
    assert cluster.advance(60) == {"urgent": "n"}


def evicted(cluster: Cluster) -> list[str]:
    """Return the pods that were evicted for others, by name, and not reservation pods."""
    found = (one.pod for one in cluster.scheduler.evictor.evicted if one.unit)
    return sorted(key.partition("/")[2] for key in found)


def test_no_more_pods_go_while_the_reservation_of_those_that_went_is_going() -> None:
    four = [sharer(f"a{number}", "0.5") for number in range(4)]
    cluster = sharing(node(gpus=2), *four)
    cluster.add(make_pod("urgent", gpu=1, priority=10))
    cluster.schedule()
    cluster.advance(120)
    assert cluster.placements()["urgent"] == "n"
    assert len(evicted(cluster)) == 2


def test_nobody_shares_the_gpu_that_a_nominated_pod_only_seems_to_have() -> None:
    cluster = sharing(node(gpus=1), sharer("a0", "0.5"), sharer("a1", "0.5"))
    cluster.add(sharer("urgent", "0.3", priority=10))
    cluster.schedule()
    cluster.add(sharer("late", "0.5"))
    cluster.schedule()
    assert len(reservations(cluster)) == 1
    assert cluster.message("late").startswith(f"0/1 nodes are available: 1 {TOO_LITTLE}")
    cluster.advance(60)
    assert "urgent" in cluster.placements()
    assert "late" not in cluster.placements()
    assert len(evicted(cluster)) == 1


def test_what_is_freed_on_several_gpus_is_kept_for_the_pod_that_preempts() -> None:
    four = [sharer(f"a{number}", "0.5") for number in range(4)]
    cluster = sharing(node(gpus=2), *four)
    cluster.add(sharer("urgent", "0.6", devices="2", priority=10))
    cluster.schedule()
    cluster.add(sharer("late", "0.5"))
    cluster.schedule()
    cluster.advance(120)
    assert cluster.placements()["urgent"] == "n"
    assert "late" not in cluster.placements()


# Queues ------------------------------------------------------------------------------------


def queue(limit: float) -> Any:
    unlimited = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    gpu = {"quota": limit, "limit": limit, "overQuotaWeight": 1}
    return make_object(
        {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": "team"},
            "spec": {"resources": {"gpu": gpu, "cpu": unlimited, "memory": unlimited}},
        }
    )


def kai_cluster(*objects: Any) -> Cluster:
    cluster = Cluster(profiles=load_profiles(ROOT / "configs/profiles/kai.yaml"))
    start_controllers(cluster.api)
    cluster.add(*objects)
    cluster.schedule()
    return cluster


def of_team(pod: Pod) -> Pod:
    meta = replace(pod.metadata, labels={"kai.scheduler/queue": "team"})
    return replace(pod, metadata=meta, spec=replace(pod.spec, scheduler_name="kai-scheduler"))


def test_a_queue_counts_the_parts_of_gpus() -> None:
    pods = [sharer("a", "0.5"), sharer("b", memory="30000"), sharer("c", "0.2")]
    cluster = kai_cluster(node(), queue(1), *map(of_team, pods))
    assert cluster.message("c") == (
        'queue "team": limit of nvidia.com/gpu exceeded: 0.2 requested, 0.88 of 1 used, '
        "0.08 missing."
    )
    cluster.add(of_team(sharer("d", "0.1")))
    assert "d" in cluster.schedule()


def test_pods_of_one_spec_that_ask_for_less_are_tried_after_one_that_is_refused() -> None:
    pods = [sharer("a", "0.6"), sharer("b", "0.6"), sharer("c", "0.4")]
    cluster = kai_cluster(node(gpus=1), queue(4), *map(of_team, pods))
    assert {"a", "c"} <= cluster.placements().keys()
    assert "b" not in cluster.placements()


def allocated(cluster: Cluster) -> float:
    found = cluster.api.get(KaiQueue, "team")
    assert found is not None
    return float(found.status.allocated["nvidia.com/gpu"].amount)


def test_memory_counts_by_the_node_that_a_pod_gets() -> None:
    cluster = kai_cluster(node("big", 1, 80_000), queue(1), of_team(sharer("a", memory="20000")))
    assert allocated(cluster) == 0.25
    cluster.add(node("small", 1, 40_000), of_team(sharer("b", memory="70000")))
    cluster.schedule()
    assert "limit of nvidia.com/gpu exceeded: 0.88 requested, 0.25 of 1" in cluster.message("b")
    cluster.add(of_team(sharer("c", memory="30000", spec={"nodeSelector": {SIZE: "40000"}})))
    cluster.schedule()
    assert allocated(cluster) == 1.0


def test_partitions_of_mig_count_their_compute_slices() -> None:
    offered = make_node("m", **{"nvidia.com/mig-2g.20gb": 2})
    asks = [make_pod(name, **{"nvidia.com/mig-2g.20gb": 1}) for name in "ab"]
    cluster = kai_cluster(offered, queue(3), *map(of_team, asks))
    assert allocated(cluster) == 2.0
    assert cluster.message("b").startswith('queue "team": limit of nvidia.com/gpu exceeded')

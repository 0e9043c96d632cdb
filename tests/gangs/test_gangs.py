"""Gangs: match policies, groups, modes, late members, waiting, and what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan import Args, NodeRow, Plugin, hookimpl
from bayplan.api import (
    ApiObject,
    ClusterNetworkTopology,
    NativePodGroup,
    Node,
    Pod,
    PodGroup,
    VolcanoPodGroup,
)
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_gang,
    make_network,
    make_node,
    make_object,
    make_pod,
)

KOORD = "gang.scheduling.koordinator.sh/"
SPEC = f"{KOORD}network-topology-spec"


def racks(**sizes: int) -> list[Node]:
    names = [rack for rack, size in sizes.items() for _ in range(size)]
    return [make_node(f"n{i}", cpu=1, labels={"rack": rack}) for i, rack in enumerate(names)]


def must(layer: str = "rack", **more: Any) -> dict[str, str]:
    rule = {"layer": layer, "strategy": "MustGather", **more}
    return {SPEC: json.dumps({"gatherStrategy": [rule]})}


def members(name: str, *indices: int, cpu: str = "1", **fields: Any) -> list[Pod]:
    return [make_pod(f"{name}-{i}", cpu, None, gang=name, **fields) for i in indices]


# Match policies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "placed"),
    [("once-satisfied", True), ("waiting-and-running", True), ("only-waiting", False)],
)
def test_what_counts_for_one_member_that_is_made_anew(policy: str, placed: bool) -> None:
    cluster = Cluster([make_node("n", cpu=8)])
    cluster.add(make_gang("job", 3, {f"{KOORD}match-policy": policy}), *members("job", 0, 1, 2))
    assert len(cluster.schedule()) == 3
    cluster.remove("job-1")
    cluster.add(*members("job", 9))
    assert ("job-9" in cluster.schedule()) == placed


def test_a_satisfied_gang_takes_members_one_by_one() -> None:
    cluster = Cluster([make_node("n", cpu=4)])
    cluster.add(make_gang("job", 3), *members("job", 0, 1, 2))
    cluster.schedule()
    for index in (0, 1):
        cluster.remove(f"job-{index}")
    cluster.add(make_pod("other", "2", None, priority=1), *members("job", 7, 8))
    # One core is left beside the other pod: one of two comes back.
    assert {"job-7", "job-8"} & set(cluster.schedule()) == {"job-7"}


def test_waiting_and_running_counts_who_is_left() -> None:
    cluster = Cluster([make_node("n", cpu=4)])
    policy = {f"{KOORD}match-policy": "waiting-and-running"}
    cluster.add(make_gang("job", 3, policy), *members("job", 0, 1, 2))
    cluster.schedule()
    for index in (0, 1):
        cluster.remove(f"job-{index}")
    cluster.add(make_pod("other", "2", None, priority=1), *members("job", 7, 8))
    assert not {"job-7", "job-8"} & set(cluster.schedule())


def test_the_status_of_the_group_tells_that_it_was_complete() -> None:
    content = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"minMember": 3},
        "status": {"phase": "Running"},
    }
    cluster = Cluster([make_node("n", cpu=8), make_object(content)])
    cluster.add(*members("job", 4))
    assert_placed(cluster, job_4="n")


def test_the_status_of_a_gang_of_another_scheduler_is_left_to_it() -> None:
    profiles = replace(default_profiles(), any_scheduler=False)
    cluster = Cluster([make_node("n", cpu=8)], profiles)
    ours = profiles.profiles[0].scheduler_name
    for gang, scheduler in (("ours", ours), ("theirs", "another")):
        spec = {"schedulerName": scheduler}
        cluster.add(
            make_gang(gang, 2),
            *(make_pod(f"{gang}-{i}", node="n", gang=gang, spec=spec) for i in range(2)),
        )
    cluster.schedule()
    phases = {
        name: group.status.phase
        for name in ("ours", "theirs")
        if isinstance(group := cluster.api.get(PodGroup, f"default/{name}"), PodGroup)
    }
    assert phases == {"ours": "Scheduled", "theirs": ""}


# Late members ------------------------------------------------------------------------------


def test_a_member_made_anew_stays_in_the_domain_of_the_others() -> None:
    cluster = Cluster([*racks(a=2, b=4), make_network(rack="rack")])
    cluster.add(make_gang("job", 2, must()), *members("job", 0, 1))
    assert cluster.schedule() == {"job-0": "n0", "job-1": "n1"}
    cluster.remove("job-0")
    cluster.add(make_pod("thief", "1", None, node="n0"), *members("job", 5))
    assert_pending(cluster, "job-5", "desiredOfferSlot: 1", "rack/a: 0")
    cluster.remove("thief")
    assert cluster.advance(20)["job-5"] == "n0"


def test_a_late_member_goes_next_to_the_others_where_it_may_go_anywhere() -> None:
    nodes = [
        make_node(f"n{i}", cpu=1, labels={"spine": "ab"[i // 4], "rack": f"r{i // 2}"})
        for i in range(8)
    ]
    cluster = Cluster([*nodes, make_network(spine="spine", rack="rack")])
    rules = [{"layer": layer, "strategy": "PreferGather"} for layer in ("rack", "spine")]
    spec = {SPEC: json.dumps({"gatherStrategy": rules})}
    cluster.add(make_gang("job", 2, spec), *members("job", 0, node="n4"))
    cluster.add(*members("job", 1, node="n5"), *members("job", 2))
    # Its rack is full; of the others, r3 is under the same spine.
    assert cluster.schedule()["job-2"] == "n6"


def test_slices_that_were_begun_are_completed_where_they_are() -> None:
    nodes = [make_node("x1", labels={"rack": "a"}), make_node("x2", labels={"rack": "a"})]
    nodes += [make_node(f"y{i}", cpu=i, labels={"rack": "b"}) for i in (1, 2)]
    cluster = Cluster([*nodes, make_network(rack="rack")])
    rule = {"layer": "rack", "podCountMultiple": 2}
    spec = {SPEC: json.dumps({"gatherStrategy": [rule]})}
    cluster.add(make_gang("job", 4, spec))
    cluster.add(*members("job", 0, node="x1"), *members("job", 1, node="x2"))
    cluster.add(*members("job", 2, node="y1"), *members("job", 3))
    assert cluster.schedule()["job-3"] == "y2"


# One cycle ---------------------------------------------------------------------------------


def test_two_gangs_that_each_fit_alone_do_not_lock_each_other() -> None:
    cluster = Cluster([make_node(f"n{i}", cpu=1) for i in range(4)])
    cluster.add(make_gang("a", 3), make_gang("b", 3))
    for index in range(3):
        cluster.add(*members("a", index), *members("b", index))
    placed = cluster.schedule()
    assert sorted(placed) == ["a-0", "a-1", "a-2"]
    assert cluster.snapshot.nodes.used("pods").sum() == 3, "the other holds nothing"


class Broken(Plugin[Args]):
    """Nodes look good to every filter, but n0 and n1 refuse in the last moment."""

    @hookimpl
    def reserve(self, node: NodeRow) -> str | None:
        return "the GPU does not answer" if node.name in ("n0", "n1") else None


def test_what_a_node_cannot_keep_is_planned_anew() -> None:
    cluster = Cluster([*racks(a=4, b=5), make_network(rack="rack")], plugins=[Broken])
    cluster.add(make_gang("job", 3, must()), *members("job", 0, 1, 2))
    assert cluster.schedule() == {"job-0": "n4", "job-1": "n5", "job-2": "n6"}


def test_slices_are_planned_anew_as_a_whole() -> None:
    nodes = [make_node(f"n{i}", cpu=2, labels={"rack": "a"}) for i in range(5)]
    cluster = Cluster([*nodes, make_network(rack="rack")], plugins=[Broken])
    rules = [
        {"layer": "rack", "strategy": "MustGather"},
        {"layer": "NodeTopologyLayer", "podCountMultiple": 2},
    ]
    spec = {SPEC: json.dumps({"gatherStrategy": rules})}
    cluster.add(make_gang("job", 4, spec), *members("job", 0, 1, 2, 3))
    assert sorted(cluster.schedule().values()) == ["n2", "n2", "n3", "n3"]


def test_differing_pods_are_sliced_by_rank() -> None:
    nodes = [make_node(f"n{i}", cpu=5, labels={"rack": "ab"[i // 2]}) for i in range(4)]
    cluster = Cluster([*nodes, make_network(rack="rack")])
    rules = [{"layer": "rack", "podCountMultiple": 2}]
    spec = {SPEC: json.dumps({"gatherStrategy": rules})}
    sizes = ["4", "3", "5", "2"]
    pods = [make_pod(f"job-{i}", cpu, None, gang="job") for i, cpu in enumerate(sizes)]
    cluster.add(make_gang("job", 4, spec), *pods)
    where = cluster.schedule()
    rack = {node.metadata.name: node.metadata.labels["rack"] for node in nodes}
    assert rack[where["job-0"]] == rack[where["job-1"]]
    assert rack[where["job-2"]] == rack[where["job-3"]]


def test_members_of_other_schedulers_are_told_on_the_group() -> None:
    first = default_profiles().profiles[0]
    other = replace(first, scheduler_name="other")
    cluster = Cluster([make_node("n")], ProfileSet((first, other)))
    spec = {"schedulerName": "other"}
    cluster.add(make_gang("job", 2), *members("job", 0), *members("job", 1, spec=spec))
    assert_pending(cluster, "job-0", "name different schedulers: default-scheduler, other")
    told = [event.message for _, event in cluster.api.events if event.about == "PodGroup"]
    assert any("name different schedulers" in text for text in told)


# Groups of gangs ---------------------------------------------------------------------------


def test_interleaved_gangs_of_two_groups_do_not_lock_each_other() -> None:
    cluster = Cluster([make_node("n", cpu=4)])
    for one, other in (("a", "b"), ("c", "d")):
        groups = {f"{KOORD}groups": json.dumps([f"default/{one}", f"default/{other}"])}
        for name in (one, other):
            cluster.add(make_gang(name, 2, groups))
    for index in (0, 1):
        for name in ("a", "c", "b", "d"):
            cluster.add(*members(name, index))
    placed = {pod.split("-")[0] for pod in cluster.schedule()}
    assert placed == {"a", "b"}
    assert len(cluster.placements()) == 4


def test_a_group_that_is_taken_apart_runs_in_parts() -> None:
    groups = {f"{KOORD}groups": '["default/a", "default/b"]'}
    cluster = Cluster([make_node("n", cpu=4), make_gang("a", 1, groups)])
    cluster.add(*members("a", 0))
    assert_pending(cluster, "a-0", 'waiting for PodGroup "default/b"')
    group = cluster.api.get(PodGroup, "default/a")
    assert group is not None
    cluster.api.update(make_gang("a", 1))
    assert_placed(cluster, a_0="n")


# NonStrict ---------------------------------------------------------------------------------


def test_a_gang_that_is_not_strict_holds_what_it_found_for_a_while() -> None:
    cluster = Cluster([make_node("n", cpu=4)])
    cluster.add(make_pod("long", "1", None, node="n"))
    mode = {f"{KOORD}mode": "NonStrict", f"{KOORD}waiting-time": "60s"}
    cluster.add(make_gang("job", 4, mode), *members("job", 0, 1, 2, 3))
    cluster.add(make_pod("late", "1", None))
    assert cluster.advance(5) == {"long": "n"}
    cluster.remove("long")
    assert {f"job-{i}" for i in range(4)} <= set(cluster.advance(20))


def test_what_a_gang_holds_without_getting_further_goes_back() -> None:
    cluster = Cluster([make_node("n", cpu=4)])
    cluster.add(make_pod("long", "1", None, node="n"))
    mode = {f"{KOORD}mode": "NonStrict", f"{KOORD}waiting-time": "60s"}
    cluster.add(make_gang("job", 4, mode), *members("job", 0, 1, 2, 3))
    cluster.add(make_pod("late", "2", None))
    assert "late" not in cluster.advance(50)
    assert cluster.advance(40)["late"] == "n"


def test_a_gang_whose_members_do_not_come_in_time_says_so() -> None:
    cluster = Cluster([make_node("n")])
    cluster.add(make_gang("job", 2, {f"{KOORD}waiting-time": "60s"}), *members("job", 0))
    cluster.advance(59)
    assert "longer" not in cluster.message("job-0")
    cluster.advance(2)
    assert "for longer than the 60 s that it allows" in cluster.message("job-0")
    told = [event.message for _, event in cluster.api.events if event.about == "PodGroup"]
    assert "for longer than the 60 s" in told[-1]
    cluster.add(*members("job", 1))
    assert set(cluster.schedule()) == {"job-0", "job-1"}


# What is wrong -----------------------------------------------------------------------------


BAD = [
    (make_gang("job", 0), "spec.minMember: expected 1 or more, got 0"),
    (make_gang("job", 2), 'gang "default/job" is waiting for members: 1 of 2 exist'),
    (make_gang("job", 1, {SPEC: "{"}), "network-topology-spec: not JSON"),
    (make_gang("job", 1, must("Rackk")), 'there is no network layer "Rackk" (rack, Node'),
    (make_gang("job", 1, {f"{KOORD}mode": "Lax"}), 'expected Strict or NonStrict, got "Lax"'),
    (make_gang("job", 1, {f"{KOORD}match-policy": "x"}), "expected one of once-satisfied"),
    (make_gang("job", 1, {f"{KOORD}waiting-time": "soon"}), "expected a duration"),
    (make_gang("job", 3, {f"{KOORD}total-number": "2"}), "at least the minimum 3"),
    (make_gang("job", 1, {f"{KOORD}groups": '["x"]'}), 'expected "namespace/name" in the list'),
    (make_gang("job", 1, {f"{KOORD}groups": '["default/x"]'}), "does not name default/job itself"),
    (make_gang("job", 1, must(podCountMultiple="a")), "podCountMultiple: expected an integer"),
]


@pytest.mark.parametrize(("group", "message"), BAD)
def test_a_gang_with_a_fault_says_so_on_pods_and_group(group: PodGroup, message: str) -> None:
    cluster = Cluster([*racks(a=2), make_network(rack="rack"), group, *members("job", 0)])
    assert_pending(cluster, "job-0", message)
    told = [event.message for _, event in cluster.api.events if event.about == "PodGroup"]
    assert any(message in text for text in told)


def test_groups_that_disagree_name_each_other() -> None:
    both = '["default/a", "default/b"]'
    cluster = Cluster([*racks(a=2, b=2), make_network(rack="rack")])
    cluster.add(make_gang("a", 1, {f"{KOORD}groups": both, **must()}))
    cluster.add(make_gang("b", 1, {f"{KOORD}groups": both}))
    cluster.add(*members("a", 0), *members("b", 0))
    for pod in ("a-0", "b-0"):
        assert_pending(cluster, pod, "ask for different network topologies")


def test_a_comma_in_a_name_makes_no_group() -> None:
    cluster = Cluster([make_node("n")])
    cluster.add(make_pod("p", annotations={"scheduling.k8s.io/group-name": "a,b"}))
    assert_pending(cluster, "p", 'waiting for PodGroup "default/a,b", which does not exist')
    assert cluster.scheduler.pending_unit("default/a,b") is not None


def test_a_gang_that_two_objects_define_is_refused() -> None:
    volcano = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "job", "namespace": "default"},
    }
    cluster = Cluster([make_node("n"), make_gang("job", 1), make_object(volcano)])
    cluster.add(*members("job", 0))
    assert_pending(cluster, "job-0", "is defined by a PodGroup of scheduling.sigs.k8s.io and by a")


def test_hypernodes_in_a_cycle_are_told() -> None:
    def hypernode(name: str, tier: int, child: str) -> ApiObject:
        member = {"type": "HyperNode", "selector": {"exactMatch": {"name": child}}}
        return make_object(
            {
                "apiVersion": "topology.volcano.sh/v1alpha1",
                "kind": "HyperNode",
                "metadata": {"name": name},
                "spec": {"tier": tier, "members": [member]},
            }
        )

    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"minMember": 1, "networkTopology": {"mode": "hard", "highestTierAllowed": 2}},
    }
    cluster = Cluster([make_node("n"), hypernode("a", 1, "b"), hypernode("b", 2, "a")])
    cluster.add(make_object(group))
    cluster.add(make_pod("p", annotations={"scheduling.k8s.io/group-name": "job"}))
    assert_pending(cluster, "p", "the sets contain each other: a -> b -> a")
    found = cluster.api.get(VolcanoPodGroup, "default/job")
    assert found is not None
    assert "a -> b -> a" in found.status.conditions[0].message


@pytest.mark.parametrize(
    ("tier", "placed"), [("rack", {"p": "n0"}), ("spine", {})], ids=["known", "unknown"]
)
def test_a_hard_topology_of_an_unknown_tier_name_waits(tier: str, placed: dict[str, str]) -> None:
    """Volcano drops the constraint; a job that is spread by a typing error is slow unnoticed."""
    rack = {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": "r0"},
        "spec": {
            "tier": 1,
            "tierName": "rack",
            "members": [{"type": "Node", "selector": {"exactMatch": {"name": "n0"}}}],
        },
    }
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"minMember": 1, "networkTopology": {"mode": "hard", "highestTierName": tier}},
        "status": {"phase": "Inqueue"},
    }
    cluster = Cluster([make_node("n0"), make_object(rack), make_object(group)])
    cluster.add(make_pod("p", annotations={"scheduling.k8s.io/group-name": "job"}))
    assert cluster.schedule() == placed
    if not placed:
        assert 'there is no network layer "spine" (tier-1, ' in cluster.message("p")


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"required-topology": "rack", "preferred-topology": "rack"}, "exclude each other"),
        ({"slice-required-topology": "rack"}, "belong together"),
        ({"slice-required-topology": "rack", "slice-size": "3"}, "not whole slices of 3"),
        ({"unconstrained-topology": "yes"}, 'expected "true", got "yes"'),
        ({"slice-required-topology-constraints": "{}"}, "expected [{"),
        ({"required-topology": "nowhere"}, 'there is no network layer "nowhere"'),
    ],
)
def test_kueue_annotations_with_a_fault_say_so(annotations: dict[str, str], message: str) -> None:
    own = {f"kueue.x-k8s.io/podset-{key}": value for key, value in annotations.items()}
    own["kueue.x-k8s.io/pod-group-total-count"] = "1"
    labels = {"kueue.x-k8s.io/pod-group-name": "g"}
    cluster = Cluster([*racks(a=1), make_network(rack="rack")])
    cluster.add(make_pod("p", "1", None, labels=labels, annotations=own))
    assert_pending(cluster, "p", message)


def test_sub_groups_of_kai_that_contain_themselves_are_refused() -> None:
    subs = [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"minMember": 1, "subGroups": subs},
    }
    cluster = Cluster([make_node("n"), make_object(group)])
    cluster.add(make_pod("p", annotations={"pod-group-name": "job"}))
    assert_pending(cluster, "p", "is part of itself")


# What is told ------------------------------------------------------------------------------


def test_a_pod_group_passes_through_its_phases() -> None:
    cluster = Cluster([make_node("n", cpu=2)])
    VirtualKubelet(cluster.api)
    cluster.add(make_gang("job", 2), *members("job", 0))

    def phase() -> str:
        group = cluster.api.get(PodGroup, "default/job")
        assert group is not None
        return group.status.phase

    cluster.schedule()
    assert phase() == "Pending"
    cluster.add(make_pod("busy", "1", None, node="n"), *members("job", 1))
    cluster.schedule()
    assert phase() == "PreScheduling"
    cluster.remove("busy")
    cluster.advance(20)
    assert phase() == "Running"


def test_a_kubernetes_pod_group_has_its_condition() -> None:
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    cluster = Cluster([make_node("n", cpu=1), make_object(group)])
    spec = {"schedulingGroup": {"podGroupName": "job"}}
    cluster.add(*(make_pod(f"p-{i}", "1", None, spec=spec) for i in range(2)))
    cluster.schedule()
    found = cluster.api.get(NativePodGroup, "default/job")
    assert found is not None
    (condition,) = found.status.conditions
    assert (condition.type, condition.status) == ("PodGroupScheduled", "False")
    assert "members it needs have a node" in condition.message
    cluster.add(make_node("m", cpu=1))
    cluster.advance(20)
    found = cluster.api.get(NativePodGroup, "default/job")
    assert found is not None
    assert found.status.conditions[0].status == "True"


def test_the_topology_lists_its_domains_as_koordinator_does() -> None:
    cluster = Cluster([*racks(b=1, a=2), make_network(rack="rack")])
    cluster.schedule()

    def details() -> list[tuple[str, str, tuple[str, ...], int | None]]:
        found = cluster.api.get(ClusterNetworkTopology, "default")
        assert found is not None
        return [
            (
                f"{d.topology_info.topology_layer}/{d.topology_info.topology_name}",
                d.child_topology_layer,
                d.child_topology_names,
                d.node_num,
            )
            for d in found.status.detail_status
        ]

    assert details() == [
        ("ClusterTopologyLayer/", "rack", ("a", "b"), 3),
        ("rack/a", "NodeTopologyLayer", (), 2),
        ("rack/b", "NodeTopologyLayer", (), 1),
    ]
    cluster.api.delete(Node, "n0")
    cluster.schedule()
    assert [entry[0] for entry in details()] == ["ClusterTopologyLayer/", "rack/a"]


def test_a_gang_that_lost_members_goes_before_pods_that_came_earlier() -> None:
    cluster = Cluster([make_node("n", cpu=3)])
    cluster.add(make_gang("job", 3), *members("job", 0, 1, 2))
    cluster.schedule()
    cluster.remove("job-1")
    cluster.add(make_pod("earlier", "1", None), *members("job", 7))
    assert "job-7" in cluster.schedule()
    assert "earlier" not in cluster.placements()

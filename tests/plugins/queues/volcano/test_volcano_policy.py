"""The policy for Volcano's queues: configuration, votes, trees, victims and turns."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.plugins.queues.volcano.volcano_worlds import (
    cluster_of,
    evictions,
    group,
    phase,
    pods,
    queue,
    settle,
)

from bayplan.api import ApiObject, Pod
from bayplan.errors import InputError
from bayplan.testing import make_node, make_object, make_pod

PREEMPT = {
    "actions": "enqueue, allocate, preempt",
    "tiers": [
        {"plugins": [{"name": name} for name in ("conformance", "gang", "priority", "proportion")]}
    ],
}
GANG_PREEMPT = {**PREEMPT, "actions": "enqueue, allocate, gangpreempt"}
TREE = {
    "tiers": [{"plugins": [{"name": "gang"}, {"name": "capacity", "enableHierarchy": True}]}],
}
HDRF = {
    "tiers": [{"plugins": [{"name": "drf", "enableHierarchy": True}]}],
}


def priority_class(name: str, value: int) -> ApiObject:
    return make_object(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
    )


CLASSES = [priority_class("low", 1), priority_class("high", 10)]


# Configuration -----------------------------------------------------------------------------


def test_an_unknown_action_or_plugin_is_told() -> None:
    with pytest.raises(InputError, match='"shred" is no action'):
        cluster_of([], {"actions": "enqueue, shred"})
    with pytest.raises(InputError, match='Volcano has no plugin "gnag"'):
        cluster_of([], {"tiers": [{"plugins": [{"name": "gnag"}]}]})


def test_two_divisions_of_one_cluster_exclude_each_other() -> None:
    plugins = [{"name": "drf", "enableHierarchy": True}, {"name": "proportion"}]
    with pytest.raises(InputError, match="exclude each other"):
        cluster_of([], {"tiers": [{"plugins": plugins}]})


def test_a_stock_configuration_neither_reclaims_nor_preempts() -> None:
    cluster = cluster_of(
        [
            make_node("n0", gpu=8),
            queue("q1"),
            queue("q2"),
            group("a", "q1", 0),
            *pods("a", 8, ["n0"] * 8, gpu=1),
            group("b", "q2"),
            *pods("b", 1, gpu=1),
        ],
        {"actions": "", "tiers": []},
    )
    cluster.schedule()
    assert evictions(cluster) == []


# Trees -------------------------------------------------------------------------------------


def test_a_broken_queue_holds_back_its_own_jobs_only() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("x", parent="y"),
            queue("y", parent="x"),
            queue("z", parent="nope"),
            queue("ok"),
            group("a", "x"),
            *pods("a", 1, cpu=1),
            group("b", "z"),
            *pods("b", 1, cpu=1),
            group("c", "ok"),
            *pods("c", 1, cpu=1),
        ],
        TREE,
    )
    assert cluster.schedule() == {"c-0": "n0"}
    assert "x -> y -> x" in cluster.message("a-0")
    assert 'its parent "nope" does not exist' in cluster.message("b-0")


def test_an_ancestor_bounds_its_queues_together() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("team", capability={"cpu": 3}),
            queue("a", parent="team"),
            queue("b", parent="team"),
            group("ja", "a", 2),
            *pods("ja", 2, cpu=1),
            group("jb", "b", 2),
            *pods("jb", 2, cpu=1),
        ],
        TREE,
    )
    assert cluster.schedule() == {"ja-0": "n0", "ja-1": "n0"}
    text = 'queue "b" (ancestor "team"): capability of cpu exceeded: 2 requested, 2 of 3 used'
    assert text in cluster.message("jb-0")


def test_a_queue_with_queues_below_it_takes_no_jobs() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("team"),
            queue("a", parent="team"),
            group("j", "team"),
            *pods("j", 1, cpu=1),
        ],
        TREE,
    )
    assert cluster.schedule() == {}
    assert "has child queues and takes no jobs itself" in cluster.message("j-0")


def test_what_is_guaranteed_to_one_is_no_others() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("a", guarantee={"cpu": 5}),
            queue("b"),
            group("j", "b", 0),
            *pods("j", 8, cpu=1),
        ]
    )
    assert len(cluster.schedule()) == 3


def org(path: str, weights: str) -> ApiObject:
    made = queue(path.replace("/", "-"))
    content = {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}
    made.metadata.annotations.update(content)
    return made


def shared(
    cpu: int, memory: int, jobs: dict[str, tuple[str, ApiObject]], each: int, *others: ApiObject
) -> list[int]:
    """Return how many of ``each`` pods of every job get a node; they ask for cpu or memory."""
    objects = [make_node("n0", cpu=cpu, memory=f"{memory}G"), *others]
    objects += {one.metadata.name: one for _, one in jobs.values()}.values()
    for name, (kinds, made) in jobs.items():
        asked = {kind: {"cpu": 1, "memory": "1G"}[kind] for kind in kinds.split()}
        objects += [group(name, made.metadata.name, 0), *pods(name, each, **asked)]
    found = [name.partition("-")[0] for name in cluster_of(objects, HDRF).schedule()]
    return [found.count(name) for name in jobs]


def test_hierarchical_shares_divide_by_weight_at_every_level() -> None:
    jobs = {
        "sci": ("cpu", org("root/sci", "100/50")),
        "dev": ("cpu", org("root/eng/dev", "100/50/50")),
        "prod": ("cpu", org("root/eng/prod", "100/50/50")),
    }
    sci, dev, prod = shared(9, 9, jobs, 9)
    assert sci in (4, 5)
    assert abs(dev - prod) <= 1
    jobs["sci"] = ("cpu", org("root/sci", "100/100"))
    assert shared(12, 12, jobs, 12) == [8, 2, 2]


def test_a_queue_whose_children_want_different_resources_counts_once_for_them() -> None:
    jobs = {
        "sci": ("cpu memory", org("root/sci", "100/50")),
        "dev": ("cpu", org("root/eng/dev", "100/50/50")),
        "prod": ("memory", org("root/eng/prod", "100/50/50")),
    }
    assert shared(10, 10, jobs, 10) == [5, 5, 5]


def test_a_queue_whose_sibling_is_full_is_not_blocked_by_it() -> None:
    jobs = {
        "one": ("cpu", org("root/one", "100/25")),
        "two": ("cpu", org("root/two", "100/25")),
        "left": ("cpu", org("root/three/left", "100/25/50")),
        "right": ("memory", org("root/three/right", "100/25/50")),
        "four": ("memory", org("root/four", "100/25")),
    }
    assert shared(30, 30, jobs, 30) == [10, 10, 10, 15, 15]


def test_the_jobs_of_one_queue_are_compared_with_each_other_not_with_its_sum() -> None:
    both = org("root/both", "100/50")
    jobs = {
        "a": ("cpu", both),
        "b": ("memory", both),
        "c": ("cpu", org("root/other", "100/50")),
    }
    assert shared(10, 10, jobs, 10) == [5, 10, 5]


def test_weights_below_one_count_as_one_and_parents_stand_for_annotations() -> None:
    jobs = {
        "light": ("cpu", org("root/light", "1/0.25")),
        "plain": ("cpu", queue("plain", weight=2)),
        "child": ("cpu", queue("below", parent="above", weight=9)),
    }
    assert shared(8, 8, jobs, 8, queue("above", weight=1)) == [2, 4, 2]


def test_reclaim_by_hierarchical_shares_ends_before_the_other_queue_would_come_first() -> None:
    tiers = [{"plugins": [{"name": "priority"}]}, *HDRF["tiers"]]
    configuration = {"actions": "allocate, reclaim", "tiers": tiers}
    light, heavy = org("root/light", "1/1"), org("root/heavy", "1/3")
    running = [group("first", "root-light", 0), *pods("first", 8, ["n0"] * 8, cpu=1)]
    objects = [make_node("n0", cpu=8), light, heavy, *running]
    late = [group("late", "root-heavy", 0), *pods("late", 8, cpu=1)]
    cluster = cluster_of([*objects, *late], configuration)
    settle(cluster)
    found = [name.partition("-")[0] for name in cluster.placements()]
    assert (found.count("first"), found.count("late")) == (3, 5)


# Victims -----------------------------------------------------------------------------------


def test_room_on_another_node_is_made_where_the_queue_allows_it() -> None:
    """The first node has room without its pod, but the queue does not."""
    cluster = cluster_of(
        [
            *CLASSES,
            make_node("n1", cpu=3),
            make_node("n2", cpu=4),
            queue("q", capability={"cpu": 6}),
            group("a", "q", 0, priorityClassName="low"),
            *pods("a", 1, ["n1"], cpu=1),
            group("b", "q", 0, priorityClassName="low"),
            *pods("b", 1, ["n2"], cpu=4),
            group("c", "q", 1, priorityClassName="high"),
            *pods("c", 1, cpu=3),
        ],
        PREEMPT,
    )
    cluster.schedule()
    assert evictions(cluster) == ["b-0"]


def test_a_gang_at_its_minimum_is_preempted_as_a_whole_by_gangpreempt_only() -> None:
    def world() -> list[ApiObject]:
        return [
            *CLASSES,
            make_node("n0", cpu=8),
            queue("q"),
            group("a", "q", 4, priorityClassName="low"),
            *pods("a", 8, ["n0"] * 8, cpu=1),
            group("c", "q", 6, priorityClassName="high"),
            *pods("c", 6, cpu=1),
        ]

    cluster = cluster_of(world(), PREEMPT)
    cluster.schedule()
    assert evictions(cluster) == []
    cluster = cluster_of(world(), GANG_PREEMPT)
    cluster.schedule()
    assert sorted(evictions(cluster)) == [f"a-{index}" for index in range(8)]


def test_protected_pods_stay_whatever_tier_decides() -> None:
    tiers = [["conformance"], ["drf"]]
    cluster = cluster_of(
        [
            make_node("n0", cpu=2),
            queue("q"),
            group("a", "q", 0),
            *(
                make_pod(
                    f"a-{index}",
                    memory=None,
                    node="n0",
                    annotations={"scheduling.k8s.io/group-name": "a"},
                    spec={"priorityClassName": "system-cluster-critical"},
                )
                for index in range(2)
            ),
            group("b", "q"),
            *pods("b", 1, cpu=1),
        ],
        {
            "actions": "allocate, preempt",
            "tiers": [
                {"plugins": [{"name": "gang", "enablePreemptable": False}]},
                *({"plugins": [{"name": name} for name in tier]} for tier in tiers),
            ],
        },
    )
    cluster.schedule()
    assert evictions(cluster) == []


def test_a_search_for_room_ends_when_nobody_has_anything_left_to_give() -> None:
    cluster = cluster_of(
        [
            *CLASSES,
            make_node("n0", cpu=2),
            queue("q"),
            group("a", "q", 0, priorityClassName="low"),
            *pods("a", 2, ["n0"] * 2, cpu=1),
            group("b", "q", 1, priorityClassName="high"),
            *pods("b", 1, cpu=5),
        ],
        {"actions": "allocate, preempt", "tiers": [{"plugins": [{"name": "priority"}]}]},
    )
    cluster.schedule()
    assert evictions(cluster) == []


def test_surplus_pods_go_first_and_only_as_many_as_needed() -> None:
    cluster = cluster_of(
        [
            *CLASSES,
            make_node("n0", cpu=8),
            queue("q"),
            group("a", "q", 4, priorityClassName="low"),
            *pods("a", 8, ["n0"] * 8, cpu=1),
            group("c", "q", 2, priorityClassName="high"),
            *pods("c", 6, cpu=1),
        ],
        GANG_PREEMPT,
    )
    settle(cluster)
    assert evictions(cluster) == ["a-7", "a-6"]
    assert {"c-0", "c-1"} <= cluster.placements().keys()


@pytest.mark.parametrize("gang_votes", [True, False])
def test_the_gang_plugin_gives_other_queues_what_a_job_has_beyond_its_minimum(
    gang_votes: bool,
) -> None:
    """Nodes of other schedulers count in what queues deserve, so no queue has more than that."""
    gang = {"name": "gang", "enableReclaimable": gang_votes}
    cluster = cluster_of(
        [
            make_node("n0", cpu=2),
            make_node("elsewhere", cpu=8, taints=["example.com/other:NoSchedule"]),
            queue("owner"),
            queue("newcomer"),
            group("elastic", "owner", 1),
            *pods("elastic", 2, ["n0"] * 2, cpu=1),
            group("new", "newcomer", 1),
            *pods("new", 1, cpu=1),
        ],
        {
            "actions": "enqueue, allocate, reclaim",
            "tiers": [
                {"plugins": [{"name": "priority"}, gang, {"name": "conformance"}]},
                {"plugins": [{"name": "proportion"}]},
            ],
        },
    )
    settle(cluster)
    assert evictions(cluster) == (["elastic-1"] if gang_votes else [])
    assert ("new-0" in cluster.placements()) is gang_votes


# Turns -------------------------------------------------------------------------------------


def test_every_job_gets_its_minimum_before_any_gets_more() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("q"),
            group("a", "q", 2),
            *pods("a", 8, cpu=1),
            group("b", "q", 2),
            *pods("b", 8, cpu=1),
        ]
    )
    names = [name[0] for name in cluster.schedule()]
    assert names.count("a") >= 2
    assert names.count("b") >= 2
    assert len(names) == 8


@pytest.mark.parametrize(("strategy", "placed"), [("traverse", {"b-0"}), ("fifo", set())])
def test_the_dequeue_strategy_says_whether_the_first_job_holds_back_the_others(
    strategy: str, placed: set[str]
) -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=4),
            queue("q", dequeueStrategy=strategy),
            group("a", "q", 1),
            *pods("a", 1, cpu=8),
            group("b", "q", 1),
            *pods("b", 1, cpu=1),
        ]
    )
    assert cluster.schedule().keys() == placed


def test_groups_are_admitted_while_the_queue_has_room_for_them() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("q", capability={"cpu": 5}),
            *(group(name, "q", 1, {"cpu": 2}, phase="Pending") for name in ("a", "b", "c")),
        ]
    )
    cluster.schedule()
    assert [phase(cluster, name) for name in ("a", "b", "c")] == ["Inqueue", "Inqueue", "Pending"]


CONTROLLER = {
    "pods": 2,
    "count/pods": 2,
    "cpu": 2,
    "requests.cpu": 2,
    "limits.cpu": 4,
    "memory": "2Gi",
    "requests.memory": "2Gi",
    "gpu": 2,
    "requests.nvidia.com/gpu": 2,
}
"""What Volcano's controller writes as the ``minResources`` of a job of two pods."""


def test_names_of_quotas_in_min_resources_are_nothing_that_nodes_lack() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8, memory="8Gi", gpu=8),
            queue("q", capability={"cpu": 4, "requests.cpu": 1, "count/pods": 1}),
            group("a", "q", 2, CONTROLLER, phase="Pending"),
            *pods("a", 2, cpu=1, memory="1Gi", gpu=1),
        ],
        {"policy": "proportion"},
    )
    assert cluster.schedule().keys() == {"a-0", "a-1"}


def test_a_number_of_pods_bounds_no_queue() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("q", capability={"cpu": 8, "pods": 1}),
            group("a", "q", 2, {"cpu": 2, "pods": 2}, phase="Pending"),
            *pods("a", 2, cpu=1),
        ]
    )
    assert cluster.schedule().keys() == {"a-0", "a-1"}


@pytest.mark.parametrize("policy", ["capacity", "proportion"])
@pytest.mark.parametrize(
    ("gates", "placed"),
    [
        ([], set()),
        (["example.com/wait"], {"next-0"}),
        (["scheduling.volcano.sh/queue-allocation-gate"], set()),
    ],
)
def test_pods_with_gates_keep_no_other_job_out(
    policy: str, gates: list[str], placed: set[str]
) -> None:
    annotations = {"scheduling.k8s.io/group-name": "gated"}
    spec = {"schedulingGates": [{"name": gate} for gate in gates]}
    waiting = [
        make_pod(f"gated-{index}", cpu=2, annotations=annotations, spec=spec) for index in range(4)
    ]
    cluster = cluster_of(
        [
            # Another member is missing, so that the pods wait without gates, too.
            make_node("n0", cpu=8),
            queue("q"),
            group("gated", "q", 5, {"cpu": 10}),
            *waiting,
            group("next", "q", 1, {"cpu": 4}, phase="Pending"),
            *pods("next", 1, cpu=4),
        ],
        {"policy": policy},
    )
    assert cluster.schedule().keys() == placed


@pytest.mark.parametrize(("hard", "admitted"), [("3", "Inqueue"), ("1", "Pending")])
@pytest.mark.parametrize("name", ["requests.cpu", "cpu", "count/pods", "requests.nvidia.com/gpu"])
def test_a_quota_of_the_namespace_holds_by_any_of_its_names(
    name: str, hard: str, admitted: str
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "space", "namespace": "default"},
        "spec": {"hard": {name: hard}},
    }
    cluster = cluster_of(
        [
            make_node("n0", cpu=8, memory="8Gi", gpu=8),
            queue("q"),
            make_object(quota),
            group("a", "q", 2, CONTROLLER, phase="Pending"),
        ],
        {"actions": "enqueue, allocate", "tiers": [{"plugins": [{"name": "resourcequota"}]}]},
    )
    cluster.schedule()
    assert phase(cluster, "a") == admitted


def test_a_claim_that_pods_share_counts_once() -> None:
    def device(name: str, kind: str, spec: object, **meta: str) -> ApiObject:
        api = "resource.k8s.io/v1"
        return make_object(
            {"apiVersion": api, "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}
        )

    def user(name: str, claim: str) -> list[ApiObject]:
        meta = {
            "name": name,
            "namespace": "default",
            "annotations": {"scheduling.k8s.io/group-name": "g"},
        }
        claims = [{"name": "gpu", "resourceClaimName": claim}]
        container = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {"containers": [container], "resourceClaims": claims}
        return [make_object({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})]

    wanted = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.com"}}]}}
    pool = {"name": "n0", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{index}"} for index in range(4)]
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            device("gpu.com", "DeviceClass", {"selectors": []}),
            device(
                "n0",
                "ResourceSlice",
                {"driver": "gpu.com", "nodeName": "n0", "pool": pool, "devices": devices},
            ),
            device("shared", "ResourceClaim", wanted, namespace="default"),
            device("other", "ResourceClaim", wanted, namespace="default"),
            queue("q", capability={"deviceclass/gpu.com": 1}),
            group("g", "q", 0),
            *user("a", "shared"),
            *user("b", "shared"),
            *user("c", "other"),
        ]
    )
    assert cluster.schedule().keys() == {"a", "b"}
    assert "capability of deviceclass/gpu.com exceeded" in cluster.message("c")


@pytest.mark.parametrize(
    ("scheduler", "annotated", "placed"),
    [("volcano", "", 2), ("volcano", "team", 1), ("bayplan", "team", 4)],
)
def test_pods_of_volcanos_scheduler_have_a_queue_before_they_have_a_group(
    scheduler: str, annotated: str, placed: int
) -> None:
    """Else all pods of a Deployment had nodes before its group said what bounds them."""
    marks = {"scheduling.volcano.sh/queue-name": annotated} if annotated else {}
    namespace = {"apiVersion": "v1", "kind": "Namespace"}
    cluster = cluster_of(
        [
            make_object({**namespace, "metadata": {"name": "default", "annotations": marks}}),
            make_node("n0", cpu=8),
            queue("default", capability={"cpu": 2}),
            queue("team", capability={"cpu": 1}),
            *(make_pod(f"p{index}", spec={"schedulerName": scheduler}) for index in range(4)),
        ]
    )
    assert len(cluster.advance(5)) == placed


def test_a_pod_of_volcanos_scheduler_waits_a_moment_for_its_group() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("default"),
            make_pod("late", spec={"schedulerName": "volcano"}),
            make_pod("never", spec={"schedulerName": "volcano"}),
        ],
        {"actions": "enqueue, allocate", "tiers": [{"plugins": [{"name": "gang"}]}]},
    )
    assert cluster.advance(1) == {}
    assert "PodGroup" in cluster.message("late")
    found = cluster.api.get(Pod, "default/late")
    assert found is not None
    marks = {"scheduling.k8s.io/group-name": "job"}
    cluster.api.update(replace(found, metadata=replace(found.metadata, annotations=marks)))
    cluster.add(group("job", "default", 1, phase="Pending"))
    assert cluster.advance(0.5) == {"late": "n0"}
    assert phase(cluster, "job") == "Running"
    assert cluster.advance(5) == {"late": "n0", "never": "n0"}


def test_a_job_that_holds_nodes_below_its_minimum_comes_before_younger_and_smaller_ones() -> None:
    """Its nodes are idle until the member that it lost is back."""
    cluster = cluster_of(
        [
            make_node("n0", cpu=4),
            queue("q"),
            group("large", "q", 3, phase="Running"),
            *pods("large", 3, ["n0"] * 2, cpu=1),
            group("small", "q", 1),
            *pods("small", 1, cpu=2),
        ],
        {
            "actions": "allocate",
            "tiers": [{"plugins": [{"name": "gang"}]}, {"plugins": [{"name": "drf"}]}],
        },
    )
    assert cluster.schedule().keys() == {"large-0", "large-1", "large-2"}

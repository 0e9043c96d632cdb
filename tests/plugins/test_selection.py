"""NodeAffinity, TaintToleration, NodePorts, NodeName, NodeUnschedulable, ImageLocality and the
queue plugins behave as in kube-scheduler 1.36."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api.node import ContainerImage
from bayplan.testing import Cluster, assert_pending, make_node, make_pod, refusals, scores
from bayplan_plugins.image_locality import ImageLocality
from bayplan_plugins.node_affinity import NodeAffinity
from bayplan_plugins.node_name import NodeName
from bayplan_plugins.node_ports import NodePorts
from bayplan_plugins.node_unschedulable import NodeUnschedulable
from bayplan_plugins.taint_toleration import TaintToleration

NO_MATCH = "node(s) didn't match Pod's node affinity/selector"


def affinity(*terms: dict[str, Any], preferred: Any = ()) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {
        "affinity": {
            "nodeAffinity": {
                **({"requiredDuringSchedulingIgnoredDuringExecution": required} if terms else {}),
                "preferredDuringSchedulingIgnoredDuringExecution": list(preferred),
            }
        }
    }


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def term(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": list(expressions)}


NODES = [
    make_node("ssd", labels={"disk": "ssd", "size": "10"}),
    make_node("hdd", labels={"disk": "hdd", "size": "x"}),
    make_node("bare"),
]


@pytest.mark.parametrize(
    ("required", "allowed"),
    [
        (expression("disk", "In", "ssd", "nvme"), {"ssd"}),
        (expression("disk", "NotIn", "ssd"), {"hdd", "bare"}),
        (expression("disk", "Exists"), {"ssd", "hdd"}),
        (expression("disk", "DoesNotExist"), {"bare"}),
        (expression("size", "Gt", "9"), {"ssd"}),
        (expression("size", "Gt", "10"), set()),
        (expression("size", "Lt", "11"), {"ssd"}),
    ],
)
def test_every_operator(required: dict[str, Any], allowed: set[str]) -> None:
    pod = make_pod("p", spec=affinity(term(required)))
    refused = refusals(NodeAffinity, pod, Cluster(NODES))
    assert {"ssd", "hdd", "bare"} - set(refused) == allowed
    assert set(refused.values()) <= {NO_MATCH}


def test_terms_are_alternatives_and_expressions_are_not() -> None:
    both = term(expression("disk", "Exists"), expression("size", "Gt", "1"))
    pod = make_pod("p", spec=affinity(both, term(expression("disk", "DoesNotExist"))))
    assert set(refusals(NodeAffinity, pod, Cluster(NODES))) == {"hdd"}


def test_an_empty_term_matches_nothing() -> None:
    pod = make_pod("p", spec=affinity({}))
    assert len(refusals(NodeAffinity, pod, Cluster(NODES))) == 3


def test_node_selector_and_affinity_both_have_to_hold() -> None:
    spec = {"nodeSelector": {"disk": "hdd"}, **affinity(term(expression("size", "Exists")))}
    assert set(refusals(NodeAffinity, make_pod("p", spec=spec), Cluster(NODES))) == {"ssd", "bare"}


def test_match_fields_select_by_name() -> None:
    fields = {"matchFields": [expression("metadata.name", "In", "bare")]}
    pod = make_pod("p", spec=affinity(fields))
    assert set(refusals(NodeAffinity, pod, Cluster(NODES))) == {"ssd", "hdd"}


def test_added_affinity_has_a_reason_of_its_own() -> None:
    required = {"nodeSelectorTerms": [term(expression("disk", "Exists"))]}
    args = {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    spec = {"nodeSelector": {"disk": "ssd"}}
    assert refusals(NodeAffinity, make_pod("p", spec=spec), Cluster(NODES), args) == {
        "bare": "node(s) didn't match scheduler-enforced node affinity",
        "hdd": NO_MATCH,
    }


def test_preferred_weights_are_scaled_to_the_largest() -> None:
    preferred = [
        {"weight": 20, "preference": term(expression("disk", "Exists"))},
        {"weight": 60, "preference": term(expression("disk", "In", "ssd"))},
    ]
    pod = make_pod("p", spec=affinity(preferred=preferred))
    assert scores(NodeAffinity, pod, Cluster(NODES)) == {"ssd": 100, "hdd": 25, "bare": 0}


# Taints ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taint", "toleration", "tolerated"),
    [
        ("k=v:NoSchedule", {"key": "k", "operator": "Equal", "value": "v"}, True),
        ("k=v:NoSchedule", {"key": "k", "value": "v"}, True),
        ("k=v:NoSchedule", {"key": "k", "value": "w"}, False),
        ("k=v:NoSchedule", {"key": "k", "operator": "Exists"}, True),
        ("k=v:NoSchedule", {"operator": "Exists"}, True),
        ("k=v:NoSchedule", {"value": "v"}, False),
        ("k=v:NoExecute", {"key": "k", "operator": "Exists", "effect": "NoSchedule"}, False),
        ("k=v:NoExecute", {"key": "k", "operator": "Exists"}, True),
        ("k=v:PreferNoSchedule", {"key": "other"}, True),
        ("k:NoSchedule", {"key": "k", "operator": "Equal"}, True),
        ("k=7:NoSchedule", {"key": "k", "operator": "Gt", "value": "5"}, True),
        ("k=7:NoSchedule", {"key": "k", "operator": "Lt", "value": "5"}, False),
    ],
)
def test_tolerations(taint: str, toleration: dict[str, str], tolerated: bool) -> None:
    cluster = Cluster([make_node("n", taints=[taint])])
    pod = make_pod("p", spec={"tolerations": [toleration]})
    assert (refusals(TaintToleration, pod, cluster) == {}) is tolerated


def test_untolerated_taints_are_refused_in_kube_schedulers_words() -> None:
    cluster = Cluster([make_node("n", taints=["a=1:NoSchedule", "b=2:NoExecute", "c:NoSchedule"])])
    pod = make_pod("p", spec={"tolerations": [{"key": "a", "operator": "Exists"}]})
    assert refusals(TaintToleration, pod, cluster) == {"n": "node(s) had untolerated taint(s)"}


def test_the_sentence_of_the_whole_cluster() -> None:
    nodes = [make_node(f"t-{i}", taints=["key=value:NoSchedule"]) for i in range(3)]
    cluster = Cluster([*nodes, make_node("a", cpu=1), make_node("b", cpu=1)])
    cluster.add(make_pod("p", "2", None))
    assert_pending(
        cluster,
        "p",
        "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).",
    )


def test_preferences_lower_the_score() -> None:
    soft = "PreferNoSchedule"
    nodes = [
        make_node("none"),
        make_node("one", taints=[f"a:{soft}"]),
        make_node("two", taints=[f"a:{soft}", f"b:{soft}"]),
    ]
    found = scores(TaintToleration, make_pod("p"), Cluster(nodes))
    assert found == {"none": 100, "one": 50, "two": 0}
    spec = {"tolerations": [{"key": "b", "operator": "Exists", "effect": "NoSchedule"}]}
    # A toleration of another effect does not help here.
    assert scores(TaintToleration, make_pod("p", spec=spec), Cluster(nodes))["two"] == 0


# Ports -------------------------------------------------------------------------------------


def with_port(ip: str = "", protocol: str = "TCP", port: int = 80) -> dict[str, Any]:
    entry = {"containerPort": 8080, "hostPort": port, "hostIP": ip, "protocol": protocol}
    return {"containers": [{"name": "c", "ports": [entry]}]}


@pytest.mark.parametrize(
    ("held", "wanted", "conflict"),
    [
        (with_port(), with_port(), True),
        (with_port(), with_port(port=81), False),
        (with_port(), with_port(protocol="UDP"), False),
        (with_port("127.0.0.1"), with_port("127.0.0.1"), True),
        (with_port("127.0.0.1"), with_port("127.0.0.2"), False),
        (with_port("127.0.0.1"), with_port(), True),
        (with_port("0.0.0.0"), with_port("127.0.0.1"), True),
        (
            {"hostNetwork": True, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]},
            with_port(),
            True,
        ),
        ({"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}, with_port(), False),
    ],
)
def test_host_ports(held: dict[str, Any], wanted: dict[str, Any], conflict: bool) -> None:
    cluster = Cluster([make_node("n")])
    cluster.add(make_pod("old", spec=held, node="n"))
    reason = "node(s) didn't have free ports for the requested pod ports"
    expected = {"n": reason} if conflict else {}
    assert refusals(NodePorts, make_pod("p", spec=wanted), cluster) == expected
    cluster.remove("old")
    assert refusals(NodePorts, make_pod("p", spec=wanted), cluster) == {}


# Name and cordon ---------------------------------------------------------------------------


def test_a_named_node_is_the_only_one() -> None:
    found = refusals(NodeName, make_pod("p", node="ssd"), Cluster(NODES))
    reason = "node(s) didn't match the requested node name"
    assert found == {"hdd": reason, "bare": reason}


def test_cordoned_nodes_are_for_pods_that_tolerate_it() -> None:
    cluster = Cluster([make_node("n", unschedulable=True)])
    found = refusals(NodeUnschedulable, make_pod("p"), cluster)
    assert found == {"n": "node(s) were unschedulable"}
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    pod = make_pod("p", spec={"tolerations": [toleration]})
    assert refusals(NodeUnschedulable, pod, cluster) == {}


# Images ------------------------------------------------------------------------------------

MB = 1024 * 1024


def with_image(name: str, image: str, size: int) -> Any:
    node = make_node(name)
    images = (ContainerImage((image,), size),)
    return replace(node, status=replace(node.status, images=images))


def test_images_count_by_size_and_by_how_many_nodes_hold_them() -> None:
    # 500 MB on one of two nodes counts 250 MB: 100 * (250 - 23) / (1000 - 23) = 23.
    cluster = Cluster([with_image("a", "train:1", 500 * MB), make_node("b")])
    pod = make_pod("p", spec={"containers": [{"name": "c", "image": "train:1"}]})
    assert scores(ImageLocality, pod, cluster) == {"a": 23, "b": 0}


def test_an_image_has_the_size_that_the_first_node_reports() -> None:
    nodes = [with_image("a", "train:1", 500 * MB), with_image("b", "train:1", 900 * MB)]
    pod = make_pod("p", spec={"containers": [{"name": "c", "image": "train:1"}]})
    # 100 * (500 - 23) / (1000 - 23) = 48.
    assert scores(ImageLocality, pod, Cluster(nodes)) == {"a": 48, "b": 48}


def test_an_image_without_a_tag_means_latest() -> None:
    cluster = Cluster([with_image("a", "registry:5000/train:latest", 1000 * MB)])
    pod = make_pod("p", spec={"containers": [{"name": "c", "image": "registry:5000/train"}]})
    assert scores(ImageLocality, pod, cluster) == {"a": 100}


def test_nodes_that_no_term_names_are_left_to_nobody_else() -> None:
    cluster = Cluster([make_node("a", cpu=1), make_node("b", taints=["k:NoSchedule"])])
    field = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    cluster.add(make_pod("p", "2", spec=affinity({"matchFields": [field]})))
    assert_pending(
        cluster,
        "p",
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) "
        "[NodeAffinity]. ",
    )


def test_terms_that_name_no_node_at_all_conflict() -> None:
    cluster = Cluster([make_node("a"), make_node("b")])
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in "ab"]
    cluster.add(make_pod("p", spec=affinity({"matchFields": fields})))
    assert_pending(cluster, "p", "0/2 nodes are available: pod affinity terms conflict. ")


# Queue -------------------------------------------------------------------------------------


def test_the_highest_priority_is_placed_first_then_the_first_to_come() -> None:
    cluster = Cluster()
    for name, priority in (("late", 0), ("early", 0), ("urgent", 10)):
        cluster.add(make_pod(name, "1", None, priority=priority))
    cluster.add(make_node("n", cpu=2))
    assert sorted(cluster.schedule()) == ["late", "urgent"]

"""PodTopologySpread behaves as in kube-scheduler 1.36."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from msgspec.structs import replace

from bayplan.api import Node, OwnerReference, Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod, refusals, scores
from bayplan_plugins.pod_topology_spread import PodTopologySpread

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
CROWDED = "node(s) didn't match pod topology spread constraints"
NO_LABEL = f"{CROWDED} (missing required label)"
APP = {"app": "web"}
ZONE_RULE = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}


def rule(key: str = ZONE, skew: int = 1, hard: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        "labelSelector": {"matchLabels": APP},
        **more,
    }


def web(*rules: dict[str, Any], name: str = "p", **more: Any) -> Pod:
    spec = {"topologySpreadConstraints": list(rules), **more.pop("spec", {})}
    return make_pod(name, labels={**APP, **more.pop("labels", {})}, spec=spec, **more)


def zones(**counts: int) -> Cluster:
    """One node a zone, with so many pods of the app on each."""
    cluster = Cluster([make_node(f"n-{zone}", labels={ZONE: zone}) for zone in counts])
    for zone, count in counts.items():
        for index in range(count):
            cluster.add(make_pod(f"{zone}-{index}", labels=APP, node=f"n-{zone}"))
    return cluster


def refused(pod: Pod, cluster: Cluster, args: dict[str, Any] | None = None) -> set[str]:
    return {name.removeprefix("n-") for name in refusals(PodTopologySpread, pod, cluster, args)}


@pytest.mark.parametrize(
    ("counts", "skew", "expected"),
    [
        ({"a": 0, "b": 0}, 1, set()),
        ({"a": 1, "b": 0}, 1, {"a"}),
        ({"a": 1, "b": 0}, 2, set()),
        ({"a": 3, "b": 2, "c": 1}, 2, {"a"}),
        ({"a": 3, "b": 2, "c": 1}, 1, {"a", "b"}),
    ],
)
def test_skew(counts: dict[str, int], skew: int, expected: set[str]) -> None:
    assert refused(web(rule(skew=skew)), zones(**counts)) == expected


def test_a_pod_that_does_not_match_its_own_selector_adds_nothing() -> None:
    pod = make_pod("p", spec={"topologySpreadConstraints": [rule()]})
    # 1 + 0 - 0 = 1 is allowed.
    assert refused(pod, zones(a=1, b=0)) == set()


def test_fewer_domains_than_min_domains_make_the_minimum_zero() -> None:
    cluster = zones(a=1, b=1)
    assert refused(web(rule()), cluster) == set()
    assert refused(web(rule(minDomains=2)), cluster) == set()
    assert refused(web(rule(minDomains=3)), cluster) == {"a", "b"}


def test_a_node_without_the_key_is_refused_for_its_own_reason() -> None:
    cluster = zones(a=0)
    cluster.add(make_node("n-bare"))
    assert refusals(PodTopologySpread, web(rule()), cluster) == {"n-bare": NO_LABEL}


def test_every_constraint_has_to_hold() -> None:
    cluster = Cluster([make_node(f"n-{i}", labels={ZONE: "ab"[i // 2]}) for i in range(4)])
    cluster.add(make_pod("x", labels=APP, node="n-0"))
    # By zone a is too full; by host only n-0.
    assert refused(web(rule(HOST)), cluster) == {"0"}
    assert refused(web(rule(HOST), rule(ZONE)), cluster) == {"0", "1"}


def test_nodes_that_lack_another_constraints_key_do_not_count() -> None:
    cluster = zones(a=1, b=1)
    cluster.add(make_node("n-c", labels={ZONE: "c"}), make_node("n-d", labels={ZONE: "d"}))
    # c and d are empty zones, but c lacks the rack that the second constraint needs.
    for name in ("n-a", "n-b", "n-d"):
        node = cluster.api.get(Node, name)
        assert node is not None
        labels = {**node.metadata.labels, "rack": "r"}
        cluster.api.update(replace(node, metadata=replace(node.metadata, labels=labels)))
    found = refusals(PodTopologySpread, web(rule(), rule("rack", skew=5)), cluster)
    assert found == {"n-a": CROWDED, "n-b": CROWDED, "n-c": NO_LABEL}


def test_only_pods_of_the_namespace_that_are_not_going_count() -> None:
    cluster = zones(a=0, b=0)
    cluster.add(make_pod("elsewhere", labels=APP, namespace="other", node="n-a"))
    cluster.add(make_pod("going", labels=APP, node="n-a"))
    assert refused(web(rule()), cluster) == {"a"}
    cluster.api.delete(Pod, "default/going")
    assert refused(web(rule()), cluster) == set()


def test_node_affinity_policy() -> None:
    cluster = Cluster([make_node(f"n-{z}", labels={ZONE: z, "pool": "ab"[z > "b"]}) for z in "abc"])
    cluster.add(make_pod("x", labels=APP, node="n-a"), make_pod("y", labels=APP, node="n-b"))
    spec = {"nodeSelector": {"pool": "a"}}
    # Zone c is empty but cannot be used: with Honor it does not set the minimum.
    assert refused(web(rule(), spec=spec), cluster) == set()
    ignore = rule(nodeAffinityPolicy="Ignore")
    assert refused(web(ignore, spec=spec), cluster) == {"a", "b"}


def test_node_taints_policy() -> None:
    taints = {"c": ["k=v:NoSchedule"]}
    cluster = Cluster(
        [make_node(f"n-{z}", labels={ZONE: z}, taints=taints.get(z, ())) for z in "abc"]
    )
    cluster.add(make_pod("x", labels=APP, node="n-a"), make_pod("y", labels=APP, node="n-b"))
    assert refused(web(rule()), cluster) == {"a", "b"}
    assert refused(web(rule(nodeTaintsPolicy="Honor")), cluster) == set()


def test_match_label_keys_narrow_the_selector() -> None:
    cluster = zones(a=0, b=0)
    cluster.add(make_pod("old", labels={**APP, "version": "1"}, node="n-a"))
    keys = rule(matchLabelKeys=["version", "absent"])
    assert refused(web(keys, labels={"version": "2"}), cluster) == set()
    assert refused(web(keys, labels={"version": "1"}), cluster) == {"a"}
    assert refused(web(keys), cluster) == {"a"}


def test_empty_and_absent_selectors() -> None:
    cluster = zones(a=1, b=0)
    # An empty selector counts no pod, as in kube-scheduler, but the pod itself.
    assert refused(web(rule(labelSelector={})), cluster) == set()
    assert refused(web(rule(labelSelector={}, minDomains=3)), cluster) == set()
    # An absent selector matches no pod, not even the pod itself.
    assert refused(web(rule(labelSelector=None)), cluster) == set()


# Scores ------------------------------------------------------------------------------------


def test_soft_constraints_prefer_domains_with_fewer_pods() -> None:
    # Weight log(3 + 2) = 1.609; scores 3.22, 1.61, 0 rounded: 3, 2, 0.
    # Normalised: 100 * (3 + 0 - s) / 3.
    found = scores(PodTopologySpread, web(rule(hard=False)), zones(a=2, b=1, c=0))
    assert found == {"n-a": 0, "n-b": 33, "n-c": 100}


def test_max_skew_softens_the_difference() -> None:
    # Each score grows by maxSkew - 1 = 4: 7.22, 5.61, 4 rounded: 7, 6, 4.
    found = scores(PodTopologySpread, web(rule(hard=False, skew=5)), zones(a=2, b=1, c=0))
    assert found == {"n-a": 57, "n-b": 71, "n-c": 100}


def test_no_pods_anywhere_give_everyone_the_most() -> None:
    found = scores(PodTopologySpread, web(rule(hard=False)), zones(a=0, b=0))
    assert found == {"n-a": 100, "n-b": 100}


def test_nodes_without_the_keys_score_nothing() -> None:
    cluster = zones(a=1, b=0)
    cluster.add(make_node("n-bare"))
    assert scores(PodTopologySpread, web(rule(hard=False)), cluster)["n-bare"] == 0


def test_the_hostname_counts_node_by_node() -> None:
    cluster = Cluster([make_node(f"n-{i}", labels={ZONE: "a"}) for i in range(3)])
    cluster.add(make_pod("x", labels=APP, node="n-0"))
    # log(3 + 2) rounds to 2.
    found = scores(PodTopologySpread, web(rule(HOST, hard=False)), cluster)
    assert found == {"n-0": 0, "n-1": 100, "n-2": 100}


# Defaults ----------------------------------------------------------------------------------


def service() -> Any:
    return make_object(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": APP},
        }
    )


def owned(kind: str) -> tuple[Any, Pod]:
    selector = {"matchLabels": APP}
    template = {"metadata": {"labels": APP}, "spec": {"containers": [{"name": "c"}]}}
    owner = make_object(
        {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": "web"},
            "spec": {"selector": selector, "replicas": 0, "template": template},
        }
    )
    pod = make_pod("p", labels=APP)
    reference = OwnerReference(kind, "web", controller=True)
    return owner, replace(pod, metadata=replace(pod.metadata, owner_references=(reference,)))


def test_pods_of_a_service_are_spread_by_default() -> None:
    cluster = zones(a=2, b=0)
    assert set(scores(PodTopologySpread, make_pod("p", labels=APP), cluster).values()) == {0}
    cluster.add(service())
    found = scores(PodTopologySpread, make_pod("p", labels=APP), cluster)
    assert found["n-b"] == 100 > found["n-a"]


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
def test_pods_of_a_controller_are_spread_by_default(kind: str) -> None:
    cluster = zones(a=2, b=0)
    owner, pod = owned(kind)
    cluster.add(owner)
    found = scores(PodTopologySpread, pod, cluster)
    assert found["n-b"] == 100 > found["n-a"]


def test_own_constraints_replace_the_defaults() -> None:
    cluster = zones(a=2, b=0)
    cluster.add(service())
    assert refused(web(rule()), cluster) == {"a"}
    # Hard constraints only: nothing is scored.
    assert scores(PodTopologySpread, web(rule()), cluster) == {"n-b": 0}


def test_listed_defaults() -> None:
    args = {"defaultingType": "List", "defaultConstraints": [ZONE_RULE]}
    cluster = zones(a=1, b=0)
    cluster.add(service())
    assert refused(make_pod("p", labels=APP), cluster, args) == {"a"}
    assert refused(make_pod("p", labels=APP), cluster, {"defaultingType": "List"}) == set()


@pytest.mark.parametrize(
    "args",
    [
        {"defaultingType": "Sometimes"},
        {"defaultConstraints": [ZONE_RULE]},
        {"defaultingType": "List", "defaultConstraints": [{**ZONE_RULE, "maxSkew": 0}]},
    ],
)
def test_bad_arguments_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        PodTopologySpread.Args.model_validate(args)

"""InterPodAffinity behaves as in kube-scheduler 1.36."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod, refusals, scores
from bayplan_plugins.inter_pod_affinity import InterPodAffinity

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
NEAR = "node(s) didn't match pod affinity rules"
FAR = "node(s) didn't match pod anti-affinity rules"
UNWELCOME = "node(s) didn't satisfy existing pods anti-affinity rules"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def term(key: str = ZONE, app: str | None = "web", **more: Any) -> dict[str, Any]:
    selector = {"labelSelector": {"matchLabels": {"app": app}}} if app else {}
    return {"topologyKey": key, **selector, **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: list(terms)}}}


def far(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: list(terms)}}}


def soft(side: str, weight: int, wanted: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {side: {PREFERRED: [{"weight": weight, "podAffinityTerm": wanted}]}}}


def app(name: str, label: str, node: str = "", namespace: str = "default", **spec: Any) -> Pod:
    return make_pod(name, labels={"app": label}, node=node, namespace=namespace, spec=spec)


def cluster() -> Cluster:
    """Two nodes in zone a, one in zone b, one without a zone; a web pod on the first."""
    nodes = [make_node(f"a{i}", labels={ZONE: "a"}) for i in range(2)]
    made = Cluster([*nodes, make_node("b0", labels={ZONE: "b"}), make_node("bare")])
    made.add(app("web-0", "web", "a0"))
    return made


def refused(pod: Pod, on: Cluster) -> dict[str, str]:
    return refusals(InterPodAffinity, pod, on)


def namespace(name: str, **labels: str) -> Any:
    metadata = {"name": name, "labels": labels}
    return make_object({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def test_affinity_asks_for_the_domain_of_a_match() -> None:
    found = refused(make_pod("p", spec=near(term())), cluster())
    assert found == {"b0": NEAR, "bare": NEAR}
    found = refused(make_pod("p", spec=near(term(HOST))), cluster())
    assert found == {"a1": NEAR, "b0": NEAR, "bare": NEAR}


def test_anti_affinity_refuses_the_domain_of_a_match() -> None:
    assert refused(make_pod("p", spec=far(term())), cluster()) == {"a0": FAR, "a1": FAR}
    assert refused(make_pod("p", spec=far(term(HOST))), cluster()) == {"a0": FAR}


def test_all_affinity_terms_have_to_be_met_by_one_kind_of_pod() -> None:
    on = cluster()
    on.add(make_pod("db-0", labels={"app": "db"}, node="a0"))
    # No single pod is both web and db.
    both = make_pod("p", spec=near(term(), term(app="db")))
    assert len(refused(both, on)) == 4
    on.add(make_pod("both", labels={"app": "web", "tier": "x"}, node="b0"))
    tier = term(app=None, labelSelector={"matchLabels": {"tier": "x"}})
    found = refused(make_pod("p", spec=near(term(), tier)), on)
    assert set(found) == {"a0", "a1", "bare"}


def test_the_first_of_its_kind_may_go_anywhere_that_has_the_key() -> None:
    on = cluster()
    pod = app("p", "new", **near(term(app="new")))
    assert refused(pod, on) == {"bare": NEAR}
    on.add(app("new-0", "new", "b0"))
    assert set(refused(pod, on)) == {"a0", "a1", "bare"}


def test_anti_affinity_is_symmetric() -> None:
    on = cluster()
    on.add(app("guard", "guard", "b0", **far(term())))
    assert refused(app("p", "web"), on) == {"b0": UNWELCOME}
    assert refused(app("p", "db"), on) == {}
    on.remove("guard")
    assert refused(app("p", "web"), on) == {}


def test_the_first_reason_counts() -> None:
    on = cluster()
    on.add(app("guard", "guard", "a0", **far(term(HOST))))
    spec = {
        "affinity": {
            "podAffinity": {REQUIRED: [term()]},
            "podAntiAffinity": {REQUIRED: [term(HOST)]},
        }
    }
    assert refused(app("p", "web", **spec), on) == {"a0": FAR, "b0": NEAR, "bare": NEAR}


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ({}, False),
        ({"namespaces": ["other"]}, True),
        ({"namespaces": ["third"]}, False),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "y"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, True),
        ({"namespaces": ["third"], "namespaceSelector": {"matchLabels": {"team": "x"}}}, True),
    ],
)
def test_namespaces(more: dict[str, Any], seen: bool) -> None:
    on = Cluster([namespace("other", team="x"), make_node("a0", labels={ZONE: "a"})])
    on.add(app("web-0", "web", "a0", namespace="other"))
    assert bool(refused(make_pod("p", spec=far(term(**more))), on)) is seen


@pytest.mark.parametrize("held", [False, True], ids=["by its own term", "by a placed pod's"])
def test_relabelling_a_namespace_changes_who_is_meant(held: bool) -> None:
    from msgspec.structs import replace

    from bayplan.api import Namespace

    on = Cluster([namespace("other"), make_node("a0", labels={ZONE: "a"})])
    apart = far(term(namespaceSelector={"matchLabels": {"team": "x"}}))
    if held:
        on.add(make_pod("placed", spec=apart, node="a0"))
        pod = app("web-0", "web", namespace="other")
    else:
        on.add(app("web-0", "web", "a0", namespace="other"))
        pod = make_pod("p", spec=apart)
    assert not refused(pod, on)
    found = on.api.get(Namespace, "other")
    assert found is not None
    on.api.update(replace(found, metadata=replace(found.metadata, labels={"team": "x"})))
    assert refused(pod, on)


@pytest.mark.parametrize(("selector", "seen"), [({}, True), (None, False)])
def test_empty_and_absent_selectors(selector: Any, seen: bool) -> None:
    pod = make_pod("p", spec=far({"topologyKey": ZONE, "labelSelector": selector}))
    assert bool(refused(pod, cluster())) is seen


def test_match_label_keys() -> None:
    on = cluster()
    on.add(make_pod("v1", labels={"app": "api", "version": "1"}, node="a0"))
    labels = {"app": "api", "version": "2"}
    same = far(term(app="api", matchLabelKeys=["version"]))
    other = far(term(app="api", mismatchLabelKeys=["version"]))
    assert refused(make_pod("p", labels=labels, spec=same), on) == {}
    assert set(refused(make_pod("p", labels=labels, spec=other), on)) == {"a0", "a1"}


def test_own_preferences_are_stretched_from_lowest_to_highest() -> None:
    pod = make_pod("p", spec=soft("podAffinity", 50, term()))
    assert scores(InterPodAffinity, pod, cluster()) == {"a0": 100, "a1": 100, "b0": 0, "bare": 0}
    pod = make_pod("p", spec=soft("podAntiAffinity", 50, term()))
    assert scores(InterPodAffinity, pod, cluster()) == {"a0": 0, "a1": 0, "b0": 100, "bare": 100}


def test_preferences_of_placed_pods_count() -> None:
    on = cluster()
    on.add(app("fan", "fan", "b0", **soft("podAffinity", 30, term())))
    on.add(app("foe", "foe", "a0", **soft("podAntiAffinity", 10, term())))
    # a: -10, b: +30, bare: 0; stretched: 0, 100, 25.
    found = scores(InterPodAffinity, app("p", "web"), on)
    assert found == {"a0": 0, "a1": 0, "b0": 100, "bare": 25}
    args = {"ignorePreferredTermsOfExistingPods": True}
    assert set(scores(InterPodAffinity, app("p", "web"), on, args).values()) == {0}
    # A pod with preferences of its own counts those of the others, too: a -10 + 2, b 30.
    own = app("p", "web", **soft("podAffinity", 1, term()))
    found = scores(InterPodAffinity, own, on, args)
    assert found == {"a0": 0, "a1": 0, "b0": 100, "bare": 23}


@pytest.mark.parametrize(("weight", "score"), [(None, 100), (0, 0), (100, 100)])
def test_hard_affinity_of_placed_pods_attracts(weight: int | None, score: float) -> None:
    on = cluster()
    on.add(app("needy", "needy", "a0", **near(term())))
    args = {} if weight is None else {"hardPodAffinityWeight": weight}
    found = scores(InterPodAffinity, app("p", "web"), on, args)
    assert (found["a0"], found["b0"]) == (score, 0)


def test_weights_add_up_pod_by_pod() -> None:
    on = cluster()
    on.add(app("web-1", "web", "a1"), app("web-2", "web", "b0"))
    pod = make_pod("p", spec=soft("podAffinity", 10, term()))
    # Zone a has two, b one, bare none: 20, 10, 0.
    assert scores(InterPodAffinity, pod, on) == {"a0": 100, "a1": 100, "b0": 50, "bare": 0}


def test_one_pod_a_host_fills_every_host_once() -> None:
    on = Cluster([make_node(f"n-{i}") for i in range(4)])
    on.add(*(app(f"p-{i}", "p", **far(term(HOST, "p"))) for i in range(6)))
    placed = on.schedule()
    assert len(placed) == 4
    assert len(set(placed.values())) == 4

"""Gangs of owners in domains of the network, as annotations of owners and templates say."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.gangs.test_owned import add, job, owned_by

from bayplan.api import ApiObject, Pod
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.testing import Cluster, make_node, make_object, make_pod, make_pods_of

TOPOLOGY = "kai.scheduler/topology"
REQUIRED = "kai.scheduler/topology-required-placement"
PODSET = "kueue.x-k8s.io/podset-required-topology"
GROUP = "kueue.x-k8s.io/podset-group-name"


def racks(**free: int) -> list[ApiObject]:
    """Return nodes of one core each, so many in each rack."""
    return [
        make_node(f"{rack}{index}", cpu=1, labels={"rack": rack})
        for rack, count in free.items()
        for index in range(count)
    ]


def template(**annotations: str) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}


def training(masters: dict[str, Any], workers: dict[str, Any], **annotations: str) -> ApiObject:
    replicas = {
        "Master": {"replicas": 1, "template": masters},
        "Worker": {"replicas": 2, "template": workers},
    }
    return make_object(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "XGBoostJob",
            "metadata": {"name": "x", "annotations": annotations},
            "spec": {"xgbReplicaSpecs": replicas},
        }
    )


def started(owner: ApiObject, **free: int) -> Cluster:
    made = Cluster(racks(**free))
    above = add(made, owner)
    made.add(*make_pods_of(above))
    return made


def racks_of(made: Cluster) -> dict[str, str]:
    """Return the rack of each pod that has a node."""
    made.schedule()
    pods = made.api.list(Pod)
    return {pod.metadata.name: pod.spec.node_name[0] for pod in pods if pod.spec.node_name}


@pytest.mark.parametrize(("a", "placed"), [(2, 0), (3, 3)])
def test_a_job_lies_in_the_domain_that_it_requires(a: int, placed: int) -> None:
    owner = training(template(), template(), **{TOPOLOGY: "t", REQUIRED: "rack"})
    made = started(owner, a=a, b=2)
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    topology = {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": "t"},
    }
    made.add(make_object({**topology, "spec": {"levels": levels}}))
    found = racks_of(made)
    assert len(found) == placed
    assert set(found.values()) <= {"a"}


def test_each_role_lies_in_a_domain_of_its_own() -> None:
    owner = training(template(**{PODSET: "rack"}), template(**{PODSET: "rack"}))
    found = racks_of(started(owner, a=1, b=2))
    assert found == {"x-master-0": "a", "x-worker-0": "b", "x-worker-1": "b"}


def test_roles_of_one_group_of_pod_sets_share_a_domain() -> None:
    asked = {PODSET: "rack", GROUP: "g"}
    owner = training(template(**asked), template(**asked))
    assert racks_of(started(owner, a=2, b=2)) == {}
    assert set(racks_of(started(owner, a=2, b=3)).values()) == {"b"}


def test_only_the_role_that_asks_is_gathered() -> None:
    owner = training(template(), template(**{PODSET: "rack"}))
    found = racks_of(started(owner, a=2, b=1))
    assert (found["x-worker-0"], found["x-worker-1"]) == ("a", "a")


def test_the_workers_of_each_group_of_a_leader_lie_together() -> None:
    owner = make_object(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "l"},
            "spec": {
                "replicas": 2,
                "leaderWorkerTemplate": {
                    "size": 3,
                    "leaderTemplate": template(**{PODSET: "rack", GROUP: "g"}),
                    "workerTemplate": template(**{PODSET: "rack", GROUP: "g"}),
                },
            },
        }
    )
    found = racks_of(started(owner, a=3, b=3))
    assert len(found) == 6
    assert {found["l-0"], found["l-1"]} == {"a", "b"}
    for index in "01":
        assert len({found[f"l-{index}{end}"] for end in ("", "-1", "-2")}) == 1


def test_a_contradiction_is_said_and_nothing_placed() -> None:
    asked = {PODSET: "rack", "kueue.x-k8s.io/podset-preferred-topology": "rack"}
    made = started(training(template(), template(**asked)), a=3)
    assert racks_of(made) == {}
    assert "exclude each other" in made.message("x-worker-0")


def test_a_level_of_kai_without_a_topology_is_said() -> None:
    made = started(training(template(), template(), **{REQUIRED: "rack"}), a=3)
    assert racks_of(made) == {}
    assert f"annotation {REQUIRED} needs {TOPOLOGY}" in made.message("x-worker-0")


@pytest.mark.parametrize(
    "name", ["kai.scheduler/batch-min-member", "scheduling.volcano.sh/group-min-member"]
)
@pytest.mark.parametrize(("value", "placed"), [("3", 0), ("2", 2), ("many", 2), ("0", 2)])
def test_a_jobs_minimum_may_be_in_words_of_others(name: str, value: str, placed: int) -> None:
    made = Cluster([make_node("n", cpu=2)])
    owner = add(made, job("j", **{name: value}))
    made.add(*(owned_by(make_pod(f"p{index}", cpu=1), owner) for index in range(3)))
    assert len(made.schedule()) == placed


@pytest.mark.parametrize("asked", [{}, {PODSET: "rack"}])
@pytest.mark.parametrize("minimum", [1, 2])
def test_a_topology_of_a_role_leaves_the_minimum_as_it_is(
    asked: dict[str, str], minimum: int
) -> None:
    owner = training(template(), template(**asked))
    spec = {**owner.spec, "runPolicy": {"schedulingPolicy": {"minAvailable": minimum}}}
    assert len(racks_of(started(replace(owner, spec=spec), a=1, b=1))) == 2


def test_two_of_three_roles_share_a_domain() -> None:
    asked = {PODSET: "rack", GROUP: "g"}
    replicas = {
        "Chief": {"replicas": 1, "template": template(**asked)},
        "Worker": {"replicas": 2, "template": template(**asked)},
        "PS": {"replicas": 1, "template": template()},
    }
    owner = make_object(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": {"name": "x"},
            "spec": {"tfReplicaSpecs": replicas},
        }
    )
    assert racks_of(started(owner, a=2, b=2)) == {}
    found = racks_of(started(owner, a=1, b=3))
    assert found == {"x-ps-0": "a", "x-chief-0": "b", "x-worker-0": "b", "x-worker-1": "b"}


def test_jobs_of_a_set_that_ask_for_a_topology_do_not_keep_the_others_waiting() -> None:
    jobs = [
        {
            "name": name,
            "template": {"spec": {"parallelism": n, "completions": n, "template": made}},
        }
        for name, n, made in (
            ("driver", 1, template()),
            ("workers", 2, template(**{PODSET: "rack"})),
        )
    ]
    for one in jobs:
        one["template"]["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    owner = make_object(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "s", "namespace": "default"},
            "spec": {"replicatedJobs": jobs},
        }
    )
    made = Cluster(racks(a=1, b=2))
    start_controllers(made.api)
    made.add(owner)
    made.advance(30.0)
    pods = {pod.metadata.name[2]: pod.spec.node_name[:1] for pod in made.api.list(Pod)}
    assert pods == {"d": "a", "w": "b"}


def hypernodes() -> list[ApiObject]:
    """Return a HyperNode of the first tier for each rack, and one of the second around them."""

    def hypernode(name: str, tier: int, type_: str, selectors: list[Any]) -> ApiObject:
        members = [{"type": type_, "selector": one} for one in selectors]
        kind = {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode"}
        spec = {"tier": tier, "members": members}
        return make_object({**kind, "metadata": {"name": name}, "spec": spec})

    racks = [{"labelMatch": {"matchLabels": {"rack": rack}}} for rack in "ab"]
    names = [{"exactMatch": {"name": rack}} for rack in "ab"]
    one_each = [hypernode(rack, 1, "Node", [one]) for rack, one in zip("ab", racks, strict=True)]
    return [*one_each, hypernode("all", 2, "HyperNode", names)]


@pytest.mark.parametrize(
    ("marks", "placed"),
    [
        ({"mode": "hard", "highest-tier": "1"}, 0),
        ({"highest-tier": "1"}, 0),
        ({"mode": "hard", "highest-tier": "2"}, 3),
        ({"mode": "soft"}, 3),
    ],
)
def test_volcanos_annotations_of_a_template_say_where_its_pods_lie(
    marks: dict[str, str], placed: int
) -> None:
    asked = {f"volcano.sh/network-topology-{name}": value for name, value in marks.items()}
    replicas = {"Worker": {"replicas": 3, "template": template(**asked)}}
    owner = make_object(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "JAXJob",
            "metadata": {"name": "x"},
            "spec": {"jaxReplicaSpecs": replicas},
        }
    )
    made = started(owner, a=2, b=2)
    made.add(*hypernodes())
    assert len(racks_of(made)) == placed


def test_a_group_that_is_made_again_comes_back_to_its_rack() -> None:
    asked = {"kueue.x-k8s.io/podset-preferred-topology": "rack", GROUP: "g"}
    sizes = {"size": 3, "leaderTemplate": template(**asked), "workerTemplate": template(**asked)}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    spec = {"replicas": 1, "leaderWorkerTemplate": sizes}
    made = Cluster([*racks(a=3, b=3), make_pod("batch", cpu=1, node="a0")])
    owner = add(made, make_object({**kind, "metadata": {"name": "l"}, "spec": spec}))
    made.add(*make_pods_of(owner))
    group = {"l-0", "l-0-1", "l-0-2"}
    assert {racks_of(made)[name] for name in group} == {"b"}
    for name in ("batch", *sorted(group)):
        made.remove(name)
    made.add(*make_pods_of(owner))
    assert {racks_of(made)[name] for name in group} == {"b"}

"""Where a workload's pods are, as its Workload states it: read, written, and kept up to date."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import GPU, job, started, workload_of

from bayplan.api import ApiObject, Pod, ResourceFlavor, Toleration, Topology
from bayplan.api.objects import decode_part
from bayplan.testing import Cluster, make_node
from bayplan_plugins.queues.kueue.topology_assignment import assignment_of, domains_of

HOST = "kubernetes.io/hostname"


def individual(*roots: str, **affixes: str) -> dict[str, Any]:
    return {"individual": {"roots": list(roots), **affixes}}


@pytest.mark.parametrize(
    ("assignment", "domains"),
    [
        (
            {
                "levels": ["block", "rack"],
                "slices": [
                    {
                        "domainCount": 2,
                        "valuesPerLevel": [{"universal": "b"}, individual("1", "2", prefix="r")],
                        "podCounts": {"individual": [3, 1]},
                    }
                ],
            },
            {("b", "r1"): 3, ("b", "r2"): 1},
        ),
        (
            {
                "levels": [HOST],
                "slices": [
                    {
                        "domainCount": 2,
                        "valuesPerLevel": [individual("1", "2", prefix="n", suffix=".x")],
                        "podCounts": {"universal": 4},
                    },
                    {
                        "domainCount": 1,
                        "valuesPerLevel": [{"universal": "other"}],
                        "podCounts": {"universal": 1},
                    },
                ],
            },
            {("n1.x",): 4, ("n2.x",): 4, ("other",): 1},
        ),
        (
            {"levels": [HOST], "domains": [{"values": ["a"], "count": 2}]},
            {("a",): 2},
        ),
        ({"levels": [HOST], "slices": [{"domainCount": 2}]}, None),
        ({"levels": [HOST], "slices": "none"}, None),
        (
            {
                "levels": [HOST],
                "slices": [
                    {
                        "domainCount": 2,
                        "valuesPerLevel": [individual("a")],
                        "podCounts": {"universal": 1},
                    }
                ],
            },
            None,
        ),
        (None, None),
    ],
    ids=["universal", "slices", "v1beta1", "partial", "no list", "too short", "none"],
)
def test_every_legal_form_is_read_and_no_other(
    assignment: dict[str, Any] | None, domains: dict[tuple[str, ...], int] | None
) -> None:
    assert domains_of(assignment) == domains


_VALUES = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)


@given(
    st.integers(1, 3).flatmap(
        lambda levels: st.dictionaries(
            st.tuples(*[_VALUES] * levels), st.integers(1, 9), min_size=1, max_size=6
        )
    )
)
def test_what_is_written_is_read_back(domains: dict[tuple[str, ...], int]) -> None:
    levels = [f"level-{index}" for index in range(len(next(iter(domains))))]
    assert domains_of(assignment_of(levels, domains)) == domains


@pytest.mark.parametrize(
    ("names", "level"),
    [
        (("gpu-1",), {"universal": "gpu-1"}),
        (("gpu", "gpu-2"), individual("", "-2", prefix="gpu")),
        (("a-1.b.c", "a-22.b.c"), individual("1", "22", prefix="a-", suffix=".b.c")),
        (("a", "aba"), individual("", "ba", prefix="a")),
        (("x", "y"), individual("x", "y")),
    ],
)
def test_what_names_have_in_common_is_written_once(
    names: tuple[str, ...], level: dict[str, Any]
) -> None:
    made = assignment_of([HOST], {(name,): 1 for name in names})
    assert made["slices"][0]["valuesPerLevel"] == [level]


def topology(*levels: str) -> Topology:
    spec = {"levels": [{"nodeLabel": one} for one in levels]}
    return decode_part(Topology, {"metadata": {"name": "t"}, "spec": spec})


def world(*levels: str, gpus: int = 1) -> list[ApiObject]:
    """Two racks of two nodes, and a queue whose flavor has a topology."""
    nodes = [
        make_node(name, gpu=gpus, labels={"rack": name[0], HOST: name, "pool": "gpu"})
        for name in ("a1", "a2", "b1", "b2")
    ]
    chosen = flavor("f", topologyName="t", nodeLabels={"pool": "gpu"})
    return [*nodes, topology(*levels), chosen, cluster_queue("cq", {"f": {GPU: 8}})]


def gathered(name: str, count: int, *tolerations: Toleration) -> ApiObject:
    """Return a suspended Job that wants one rack."""
    made = job(name, count)
    template = made.spec.template
    wants = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    template = replace(template, metadata=replace(template.metadata, annotations=wants))
    template = replace(template, spec=replace(template.spec, tolerations=tolerations))
    return replace(made, spec=replace(made.spec, template=template))


def stated(cluster: Cluster, name: str) -> tuple[list[str], dict[tuple[str, ...], int]]:
    """Return levels and domains that the Workload of a job has."""
    admission = workload_of(cluster, name).status.admission
    assert admission is not None
    (assigned,) = admission.pod_set_assignments
    found = assigned.topology_assignment
    assert found is not None
    return found["levels"], dict(domains_of(found) or {})


def test_a_workload_says_on_which_nodes_its_pods_are() -> None:
    cluster = started(*world("rack", HOST), local_queue("lq", "cq"), gathered("j", 2))
    cluster.advance(10.0)
    levels, domains = stated(cluster, "j")
    assert levels == [HOST]
    nodes = [pod.spec.node_name for pod in cluster.api.list(Pod)]
    assert domains == {(node,): 1 for node in nodes}
    assert len({node[0] for node in nodes}) == 1


def test_a_workload_is_admitted_with_the_nodes_on_which_its_pods_are_going_to_be() -> None:
    cluster = Cluster((), plugins={"Queues": {}})
    cluster.add(*world("rack", HOST), local_queue("lq", "cq"), gathered("j", 2))
    cluster.schedule()
    cluster.advance(5.0)
    assert cluster.api.list(Pod) == []
    levels, domains = stated(cluster, "j")
    assert levels == [HOST]
    assert list(domains.values()) == [1, 1]
    assert len({values[0][0] for values in domains}) == 1


def test_its_pods_name_the_workload_that_says_so() -> None:
    cluster = started(*world("rack", HOST), local_queue("lq", "cq"), gathered("j", 2))
    cluster.advance(10.0)
    name = workload_of(cluster, "j").metadata.name
    marks = [one.metadata.annotations for one in cluster.api.list(Pod)]
    assert [one["kueue.x-k8s.io/workload"] for one in marks] == [name, name]


def test_pods_of_a_job_that_asks_for_no_topology_are_placed_in_rank_order() -> None:
    ranked = job("j", 4, completionMode="Indexed")
    cluster = started(*world("rack", HOST, gpus=2), local_queue("lq", "cq"), ranked)
    cluster.advance(10.0)
    pods = {
        pod.metadata.labels["batch.kubernetes.io/job-completion-index"]: pod.spec.node_name
        for pod in cluster.api.list(Pod)
    }
    assert pods["0"] == pods["1"] < pods["2"] == pods["3"]
    marks = [pod.metadata.annotations for pod in cluster.api.list(Pod)]
    assert {one["kueue.x-k8s.io/podset-unconstrained-topology"] for one in marks} == {"true"}


def test_without_host_names_it_says_in_which_domains() -> None:
    cluster = started(*world("rack"), local_queue("lq", "cq"), gathered("j", 2))
    cluster.advance(10.0)
    levels, domains = stated(cluster, "j")
    assert levels == ["rack"]
    assert list(domains.values()) == [2]


def test_it_says_nothing_where_the_flavor_has_no_topology() -> None:
    *objects, queue = [one for one in world("rack", HOST) if not isinstance(one, ResourceFlavor)]
    plain = flavor("f", nodeLabels={"pool": "gpu"})
    cluster = started(*objects, plain, queue, local_queue("lq", "cq"), job("j", 2))
    cluster.advance(10.0)
    admission = workload_of(cluster, "j").status.admission
    assert admission is not None
    assert admission.pod_set_assignments[0].topology_assignment is None

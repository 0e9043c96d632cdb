"""Grove's PodGangs: minimums of their pod groups, and domains at three levels."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import ApiObject, Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod


def pod_gang(*groups: dict[str, Any], **spec: Any) -> ApiObject:
    entries = [{"podReferences": [], **one} for one in groups]
    return make_object(
        {
            "apiVersion": "scheduler.grove.io/v1alpha1",
            "kind": "PodGang",
            "metadata": {"name": "g"},
            "spec": {"podgroups": entries, **spec},
        }
    )


def pods(clique: str, count: int) -> list[Pod]:
    labels = {"grove.io/podgang": "g", "grove.io/podclique": clique}
    return [make_pod(f"{clique}-{index}", cpu=1, labels=labels) for index in range(count)]


def packed(level: str) -> dict[str, Any]:
    return {"topologyConstraint": {"packConstraint": {"required": level}}}


def cluster(**racks: int) -> Cluster:
    nodes = [
        make_node(f"{rack}{index}", cpu=1, labels={"rack": rack, "zone": rack[0]})
        for rack, count in racks.items()
        for index in range(count)
    ]
    return Cluster(nodes)


PREFILL = {"name": "prefill", "minReplicas": 2}
DECODE = {"name": "decode", "minReplicas": 1}


@pytest.mark.parametrize(("free", "placed"), [(2, 0), (3, 3), (4, 4)])
def test_the_minimum_of_each_pod_group_is_placed_at_once(free: int, placed: int) -> None:
    made = cluster(a1=free)
    made.add(pod_gang(PREFILL, DECODE), *pods("prefill", 3), *pods("decode", 1))
    assert len(made.schedule()) == placed


def test_a_gang_waits_for_the_pods_that_each_group_needs() -> None:
    made = cluster(a1=8)
    made.add(pod_gang(PREFILL, DECODE), *pods("prefill", 3))
    assert made.schedule() == {}
    made.add(*pods("decode", 1))
    made.advance(30.0)
    assert len(made.placements()) == 4


def test_each_pod_group_lies_in_its_own_domain_inside_that_of_the_gang() -> None:
    gang = pod_gang({**PREFILL, **packed("rack")}, {**DECODE, **packed("rack")}, **packed("zone"))
    made = cluster(a1=1, b1=1, b2=2, c1=2)
    made.add(gang, *pods("prefill", 2), *pods("decode", 1))
    found = made.schedule()
    assert {name: node[:2] for name, node in found.items()} == {
        "prefill-0": "b2",
        "prefill-1": "b2",
        "decode-0": "b1",
    }


def test_pod_groups_of_one_configuration_share_a_domain() -> None:
    config = {"name": "pair", "podGroupNames": ["prefill", "decode"], **packed("rack")}
    gang = pod_gang(PREFILL, DECODE, topologyConstraintGroupConfigs=[config])
    made = cluster(a1=2, a2=1)
    made.add(gang, *pods("prefill", 2), *pods("decode", 1))
    assert made.schedule() == {}
    made.add(make_node("a19", cpu=1, labels={"rack": "a1", "zone": "a"}))
    made.advance(30.0)
    assert {node[:2] for node in made.placements().values()} == {"a1"}


def test_a_group_that_another_system_has_for_the_pod_counts() -> None:
    made = cluster(a1=1)
    labels = {"grove.io/podgang": "g", "grove.io/podclique": "prefill"}
    pod = make_pod("p", cpu=1, labels=labels, annotations={"pod-group-name": "kais"})
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "kais"},
        "spec": {"minMember": 1},
    }
    made.add(pod_gang(PREFILL), make_object(group), pod)
    assert made.schedule() == {"p": "a10"}


def test_a_minimum_that_is_none_is_said() -> None:
    made = cluster(a1=2)
    made.add(pod_gang({**PREFILL, "minReplicas": 0}), *pods("prefill", 2))
    assert made.schedule() == {}
    assert "spec.podgroups[0].minReplicas: expected 1 or more, got 0" in made.message("prefill-0")

"""Many queues of any shape and with any amounts, of every system: nothing is recursive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from bayplan.api import ApiObject
from bayplan.testing import Cluster, make_node, make_object, make_pod

COUNT = 1100
"""More than Python nests calls."""
GPU = "nvidia.com/gpu"

SHAPES: dict[str, Callable[[int, int], str]] = {
    "chain": lambda at, count: f"q{at - 1}" if at else "",
    "reversed chain": lambda at, count: f"q{at + 1}" if at < count - 1 else "",
    "cycle": lambda at, count: f"q{(at - 1) % count}",
    "flat": lambda at, count: "",
}
"""The parent of each of so many queues."""


def named(api: str, kind: str, name: str, spec: dict[str, Any], **meta: Any) -> ApiObject:
    return make_object(
        {"apiVersion": api, "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}
    )


def kai(parents: Sequence[str]) -> Iterator[ApiObject]:
    huge = {"quota": 1e300, "limit": 1e300, "overQuotaWeight": 1e300}
    amounts = dict.fromkeys(("gpu", "cpu", "memory"), huge)
    for at, parent in enumerate(parents):
        spec = {"parentQueue": parent, "resources": amounts}
        yield named("scheduling.run.ai/v2", "Queue", f"q{at}", spec)


def volcano(parents: Sequence[str]) -> Iterator[ApiObject]:
    for at, parent in enumerate(parents):
        spec = {"parent": parent, "deserved": {"cpu": "9E"}, "guarantee": {}}
        yield named("scheduling.volcano.sh/v1beta1", "Queue", f"q{at}", spec)


def koordinator(parents: Sequence[str]) -> Iterator[ApiObject]:
    prefix = "quota.scheduling.koordinator.sh"
    for at, parent in enumerate(parents):
        labels = {f"{prefix}/is-parent": "true"}
        if parent:
            labels[f"{prefix}/parent"] = parent
        spec = {"max": {"cpu": "9E"}, "min": {"cpu": "8E"}}
        api = "scheduling.sigs.k8s.io/v1alpha1"
        yield named(api, "ElasticQuota", f"q{at}", spec, namespace="default", labels=labels)


def kueue(parents: Sequence[str]) -> Iterator[ApiObject]:
    api = "kueue.x-k8s.io/v1beta2"
    yield named(api, "ResourceFlavor", "f", {})
    for at, parent in enumerate(parents):
        yield named(api, "Cohort", f"q{at}", {"parentName": parent} if parent else {})
    quota = {"name": "f", "resources": [{"name": GPU, "nominalQuota": "9E"}]}
    for at in range(len(parents)):
        spec = {
            "cohortName": f"q{at}",
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}],
        }
        yield named(api, "ClusterQueue", f"c{at}", spec)


SYSTEMS: dict[str, Callable[[Sequence[str]], Iterator[ApiObject]]] = {
    "KAI": kai,
    "Volcano": volcano,
    "Koordinator": koordinator,
    "Kueue": kueue,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.filterwarnings("error")
def test_queues_of_any_shape_leave_other_pods_their_nodes(system: str, shape: str) -> None:
    tree = {"tiers": [{"plugins": [{"name": "capacity", "enableHierarchy": True}]}]}
    cluster = Cluster([make_node("n", cpu=8, gpu=8)], plugins={"Queues": {"volcano": tree}})
    parents = [SHAPES[shape](at, COUNT) for at in range(COUNT)]
    cluster.add(*SYSTEMS[system](parents), make_pod("free", gpu=1))
    assert cluster.schedule() == {"free": "n"}
    assert len(cluster.scheduler.queues.reports()) >= COUNT

"""Pods that are moved take their devices along: what they had is free, and allocated anew."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.paths import ROOT
from tests.plugins.gpus.gpu_builders import claim, devices, gpu_cluster, pod, request, template

from bayplan.api import ApiObject, Node, Pod
from bayplan.profiles.loading import load_profiles
from bayplan.testing import Cluster, make_object


def queue(name: str, **spec: Any) -> ApiObject:
    free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    resources = dict.fromkeys(("gpu", "cpu", "memory"), free)
    head = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}}
    return make_object({**head, "spec": {"resources": resources, **spec}})


def of_team(made: Any) -> Any:
    labels = {**made.metadata.labels, "kai.scheduler/queue": "team"}
    return replace(made, metadata=replace(made.metadata, labels=labels))


def kai_pod(name: str, from_template: str | None = None, from_claim: str | None = None) -> Pod:
    made = pod(name, from_template, from_claim, schedulerName="kai-scheduler")
    found = of_team(made)
    assert isinstance(found, Pod)
    return found


def cordon(made: Cluster, name: str, unschedulable: bool) -> None:
    node = made.api.get(Node, name)
    assert node is not None
    made.api.update(replace(node, spec=replace(node.spec, unschedulable=unschedulable)))
    made.api.deliver()


@pytest.mark.parametrize("from_claims", [False, True])
def test_a_pod_moves_to_where_its_claim_is_allocated_anew(from_claims: bool) -> None:
    made = gpu_cluster(
        {"a": 2, "b": 2},
        *(queue("org"), queue("team", parentQueue="org")),
        *(template("one", request()), template("two", request(count=2))),
        *(of_team(claim(f"mine-{name}", request())) for name in ("first", "second")),
        profiles=load_profiles(ROOT / "configs/profiles/kai.yaml"),
    )
    for name in ("first", "second"):
        own = {"from_claim": f"mine-{name}"} if from_claims else {"from_template": "one"}
        made.add(kai_pod(name, **own))
        made.schedule()
        cordon(made, "a", name == "first")
    assert made.placements() == {"first": "a", "second": "b"}
    made.add(kai_pod("large", "two"))
    made.advance(60)
    assert made.placements() == {"first": "a", "large": "b"}
    assert [one.pod for one in made.scheduler.evictor.evicted] == ["default/second"]
    assert devices(made, "large") == ["gpu-0", "gpu-1"]

"""Compute pools and elastic jobs: what is refused, with its place."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api.objects import DecodeError
from bayplan.testing import make_object

TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
VERSIONS = {"bayplan.dev/v1alpha1": "", "ai.example.com/v1": "Ai"}


def pool(version: str = "bayplan.dev/v1alpha1", **spec: Any) -> dict[str, Any]:
    meta = {"name": "p"}
    return {"apiVersion": version, "kind": "ComputePool", "metadata": meta, "spec": spec}


def job(version: str = "bayplan.dev/v1alpha1", **spec: Any) -> dict[str, Any]:
    spec = {"template": TEMPLATE, **spec}
    return {"apiVersion": version, "kind": "ElasticJob", "metadata": {"name": "j"}, "spec": spec}


@pytest.mark.parametrize("version", VERSIONS)
def test_both_groups_have_the_same_shape(version: str) -> None:
    quota = {"tenant": "a", "limit": {"nvidia.com/gpu": 8}, "guaranteed": {"nvidia.com/gpu": 4}}
    made = make_object(pool(version, capacity={"reserved": "10%"}, quotas=[quota]))
    assert type(made).__name__ == f"{VERSIONS[version]}ComputePool"
    elastic = make_object(job(version, scaling={"minReplicas": 1, "maxReplicas": 4}))
    assert type(elastic).__name__ == f"{VERSIONS[version]}ElasticJob"


@pytest.mark.parametrize(
    ("content", "path", "text"),
    [
        (job(scaling={"minReplicas": 3, "maxReplicas": 2}), "maxReplicas", "at least minReplicas"),
        (job(scaling={"minReplicas": 0, "maxReplicas": 2}), "minReplicas", "at least 1"),
        (job(scaling={"maxReplicas": 2}, replicas=3), "replicas", "1 to 2, its bounds, got 3"),
        (job(scaling={"gpuPerReplica": -1}), "gpuPerReplica", "got -1"),
        (pool(capacity={"reserved": "120%"}), "capacity.reserved", "0 to 100 percent"),
        (pool(capacity={"reserved": "many"}), "capacity.reserved", "got 'many'"),
        (pool(quotas=[{"tenant": "a"}, {"tenant": "a"}]), "quotas[1].tenant", "two quotas"),
        (
            pool(quotas=[{"tenant": "a", "limit": {"x": 1}, "guaranteed": {"x": 2}}]),
            "guaranteed.x",
            "2 is more than the limit, 1",
        ),
        (pool(quotas=[{"tenant": "a", "limit": {"x": -1}}]), "limit.x", "0 or more"),
        (pool(poolType="quantum"), "poolType", "quantum"),
    ],
)
def test_what_cannot_be_is_refused(content: dict[str, Any], path: str, text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        make_object(content)
    assert path in str(caught.value)
    assert text in str(caught.value)

"""Segments of a gang: runs of pods by index, each in a domain of its own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.gangs.test_owned_topology import racks_of, started, template

from bayplan.api import ApiObject
from bayplan.testing import make_object

SIZE = "kai.scheduler/segment-size"
TOGETHER = {
    SIZE: "2",
    "kai.scheduler/segment-topology-required-placement": "rack",
    "kai.scheduler/topology": "t",
}


def training(workers: int, **annotations: str) -> ApiObject:
    replicas = {
        "Master": {"replicas": 1, "template": template()},
        "Worker": {"replicas": workers, "template": template(**annotations)},
    }
    return make_object(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "XGBoostJob",
            "metadata": {"name": "x"},
            "spec": {"xgbReplicaSpecs": replicas},
        }
    )


def serving(size: int, policy: dict[str, Any], **annotations: str) -> ApiObject:
    groups = {"size": size, "workerTemplate": template(**annotations), "subGroupPolicy": policy}
    return make_object(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "l"},
            "spec": {"replicas": 1, "leaderWorkerTemplate": groups},
        }
    )


def topology() -> ApiObject:
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    content = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology"}
    return make_object({**content, "metadata": {"name": "t"}, "spec": {"levels": levels}})


def placed(owner: ApiObject, **free: int) -> dict[str, str]:
    made = started(owner, **free)
    made.add(topology())
    return racks_of(made)


def test_each_segment_of_workers_lies_in_one_domain() -> None:
    found = placed(training(4, **TOGETHER), a=3, b=2)
    assert len(found) == 5
    assert found["x-worker-0"] == found["x-worker-1"]
    assert found["x-worker-2"] == found["x-worker-3"]


def test_a_job_waits_where_a_segment_finds_no_domain() -> None:
    assert placed(training(4, **TOGETHER), a=3, b=1, c=1) == {}


def test_the_last_segment_has_what_is_left() -> None:
    found = placed(training(5, **TOGETHER), a=2, b=2, c=1, d=1)
    assert len(found) == 6
    assert sorted(Counter(found[f"x-worker-{index}"] for index in range(4)).values()) == [2, 2]


@pytest.mark.parametrize("size", ["0", "-1", "two", ""])
def test_a_size_that_is_none_is_said(size: str) -> None:
    made = started(training(2, **{SIZE: size}), a=3)
    found = racks_of(made)
    assert (len(found) == 3) == (size == "")
    if size:
        assert f'expected a segment size of 1 or more, got "{size}"' in made.message("x-worker-0")


def test_a_leader_lies_with_the_first_of_its_workers() -> None:
    asked = {key: value for key, value in TOGETHER.items() if key != SIZE}
    found = placed(serving(5, {"subGroupSize": 2}, **asked), a=3, b=2)
    assert {found["l-0"], found["l-0-1"], found["l-0-2"]} == {"a"}
    assert {found["l-0-3"], found["l-0-4"]} == {"b"}


def test_a_leader_that_is_excluded_lies_anywhere() -> None:
    policy = {"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"}
    asked = {key: value for key, value in TOGETHER.items() if key != SIZE}
    found = placed(serving(5, policy, **asked), a=2, b=2, c=1)
    assert found["l-0"] == "c"
    assert found["l-0-1"] == found["l-0-2"]


def test_workers_that_cannot_be_divided_are_told_so() -> None:
    policy = {"subGroupSize": 3, "subGroupPolicyType": "LeaderExcluded"}
    made = started(serving(5, policy), a=5)
    assert racks_of(made) == {}
    assert "subGroupSize: 4 workers cannot be divided by 3" in made.message("l-0")

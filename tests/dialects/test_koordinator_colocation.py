"""What Koordinator's ClusterColocationProfiles make of pods, in the embedded cluster."""

from __future__ import annotations

from typing import Any

import pytest
from tests.dialects.colocation_cases import CASES, CLASSES, Case

from bayplan.api import ApiObject, Pod
from bayplan.api.objects import DecodeError
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_node,
    make_object,
)


def admitted(*objects: ApiObject) -> Pod:
    """Return the last object, a pod, as the cluster has it."""
    cluster = MemoryCluster()
    for one in objects:
        created = cluster.create(one)
    assert isinstance(created, Pod)
    return created


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_new_pod_is_as_the_profiles_want_it(case: Case) -> None:
    pod = admitted(*map(make_object, [*CLASSES, case.namespace, *case.profiles, case.pod]))
    assert case.seen(pod) == case.expected


def test_pods_of_batch_fit_what_their_agent_left_for_them() -> None:
    resources = {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"}
    cluster = Cluster([*map(make_object, CLASSES), make_node("n", 1, "1Gi", **resources)])
    profile: dict[str, Any] = {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": "batch"},
        "spec": {"priorityClassName": "koord-batch", "qosClass": "BE"},
    }
    cluster.add(make_object(profile))
    for name in ("a", "b"):
        amounts = {"requests": {"cpu": "1500m", "memory": "1Gi"}}
        container = {"name": "main", "image": "x", "resources": amounts}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        cluster.add(make_object(pod | {"spec": {"containers": [container]}}))
    assert_placed(cluster, a="n")
    assert_pending(cluster, "b", "Insufficient kubernetes.io/batch-cpu")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"probability": "50%"}, "$.spec.probability: expected 0% or 100%"),
        ({"patch": {"spec": {"containers": []}}}, "$.spec.patch.spec.containers: expected one of"),
        ({"patch": {"status": {}}}, "$.spec.patch.status: expected metadata or spec only"),
    ],
)
def test_what_policies_cannot_do_is_named(spec: dict[str, Any], said: str) -> None:
    head = {"apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile"}
    with pytest.raises(DecodeError) as caught:
        make_object({**head, "metadata": {"name": "p"}, "spec": spec})
    assert said in str(caught.value)

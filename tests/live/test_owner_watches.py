"""Following owners costs the API server one watch for each kind, and no request for a pod."""

from __future__ import annotations

from typing import Any

import pytest
from tests.live.stage import stage

from bayplan.api import ApiObject, Pod, kind_of
from bayplan.testing import make_node, make_object

TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i"}]}}


def workload(version: str, kind: str, name: str, spec: dict[str, Any]) -> ApiObject:
    meta = {"name": name, "uid": f"uid-{name}", "namespace": "default"}
    return make_object({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})


def replicas(field: str, **counts: int) -> dict[str, Any]:
    return {field: {kind: {"replicas": n, "template": TEMPLATE} for kind, n in counts.items()}}


KINDS = [
    ("kubeflow.org/v1", "TFJob", replicas("tfReplicaSpecs", PS=1, Worker=3)),
    ("kubeflow.org/v2beta1", "MPIJob", replicas("mpiReplicaSpecs", Launcher=1, Worker=3)),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"replicas": 1, "leaderWorkerTemplate": {"size": 4, "workerTemplate": TEMPLATE}},
    ),
]


@pytest.mark.parametrize("jobs", [1, 5])
async def test_a_kind_is_watched_once_and_no_owner_is_asked_for(jobs: int) -> None:
    async with stage([make_node("n", cpu=64, memory="256Gi")]) as made:
        await made.start()
        for version, kind, spec in KINDS:
            for index in range(jobs):
                made.create(workload(version, kind, f"{kind.lower()}-{index}", spec))
        await made.run_out()
        pods = made.cluster.list(Pod)
        assert len(pods) == 4 * jobs * len(KINDS)
        assert all(pod.spec.node_name for pod in pods)
        for version, kind, spec in KINDS:
            known = kind_of(workload(version, kind, "x", spec))
            asked = {
                verb: sum(
                    count
                    for (one, group, resource, _), count in made.server.calls.items()
                    if (one, group, resource) == (verb, known.group, known.plural)
                )
                for verb in ("list", "watch", "get")
            }
            assert asked == {"list": 1, "watch": 1, "get": 0}, kind

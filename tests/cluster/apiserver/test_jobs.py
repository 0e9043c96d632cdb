"""Jobs on a served cluster: their status, and what may change in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.apiserver.faces import Client, serving

PATH = "/apis/batch/v1/namespaces/default/jobs"
SPEC = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}


@pytest.fixture
def client() -> Iterator[Client]:
    with serving() as face:
        yield Client(face.server.url)


def create(client: Client, **spec: Any) -> None:
    content = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": {"spec": SPEC}, **spec},
    }
    assert client.post(PATH, content).code == 201


def changed(client: Client, spec: dict[str, Any]) -> str:
    """Patch the job's spec; return the message of a refusal."""
    answer = client.patch(f"{PATH}/j", {"spec": spec})
    return str(answer.json["message"]) if answer.code != 200 else ""


def test_where_a_suspended_jobs_pods_may_run_can_change_until_it_starts(client: Client) -> None:
    create(client, suspend=True)
    assert client.get(f"{PATH}/j").json["status"]["conditions"][0]["reason"] == "JobSuspended"
    template = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"nodeSelector": {"pool": "x"}, "tolerations": [{"operator": "Exists"}]},
    }
    assert changed(client, {"template": template}) == ""
    assert "spec.template.spec: " in changed(client, {"template": {"spec": {"priority": 1}}})
    assert changed(client, {"suspend": False}) == ""
    assert "startTime" in client.get(f"{PATH}/j").json["status"]
    refused = changed(client, {"template": {"spec": {"nodeSelector": {"pool": "y"}}}})
    assert refused.endswith("field is immutable")
    assert changed(client, {"suspend": True}) == ""
    assert "startTime" not in client.get(f"{PATH}/j").json["status"]
    assert changed(client, {"template": {"spec": {"nodeSelector": {"pool": "y"}}}}) == ""


def test_an_indexed_jobs_completions_change_with_its_parallelism(client: Client) -> None:
    create(client, completions=4, parallelism=4, completionMode="Indexed")
    assert changed(client, {"parallelism": 2, "completions": 2}) == ""
    assert "in tandem with spec.parallelism" in changed(client, {"completions": 3})


CONTAINER = {"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}]}
TEMPLATE = {"spec": {"containers": [CONTAINER]}}
JOB = {"parallelism": 1, "completions": 1, "template": TEMPLATE, "ttlSecondsAfterFinished": 9}
RAY = {
    "headGroupSpec": {"rayStartParams": {}, "template": TEMPLATE},
    "workerGroupSpecs": [{"groupName": "w", "replicas": 1, "template": TEMPLATE}],
}
OPERATED: list[tuple[str, str, dict[str, Any], list[str]]] = [
    (
        *("jobset.x-k8s.io/v1alpha2", "JobSet"),
        {"replicatedJobs": [{"name": "w", "template": {"spec": JOB}}]},
        ["x-w-0-0-"],
    ),
    (
        *("kubeflow.org/v1", "PyTorchJob"),
        {"pytorchReplicaSpecs": {"Master": {"template": TEMPLATE}}},
        ["x-master-0"],
    ),
    ("ray.io/v1", "RayCluster", RAY, ["x-head", "x-w-work"]),
    ("ray.io/v1", "RayJob", {"rayClusterSpec": RAY}, ["x-", "x-"]),
]


@pytest.mark.parametrize(("version", "kind", "spec", "starts"), OPERATED)
def test_pods_of_operators_keep_what_bayplan_does_not_read(
    client: Client, version: str, kind: str, spec: dict[str, Any], starts: list[str]
) -> None:
    path = f"/apis/{version}/namespaces/default/{kind.lower()}s"
    content = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    assert client.post(path, content).code == 201
    pods = client.get("/api/v1/namespaces/default/pods").json["items"]
    names = sorted(pod["metadata"]["name"] for pod in pods)
    assert [name[: len(start)] for name, start in zip(names, starts, strict=True)] == starts
    assert all(pod["spec"]["containers"][0]["env"] == CONTAINER["env"] for pod in pods)
    assert client.get(f"{path}/x").json["status"]
    if kind == "JobSet":
        job = client.get(f"{PATH}/x-w-0").json["spec"]
        assert (job["ttlSecondsAfterFinished"], job["completionMode"]) == (9, "Indexed")
    assert client.call("DELETE", f"{path}/x").code == 200
    assert client.get("/api/v1/namespaces/default/pods").json["items"] == []

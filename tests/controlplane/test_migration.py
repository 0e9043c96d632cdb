"""A namespace moves to bayplan and back on a real control plane, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.controlplane.installation import path_of, upstream_definitions
from tests.controlplane.live_cluster import Content
from tests.controlplane.plane import ControlPlane, wait_until
from tests.controlplane.test_admission import GROUP_OF_POLICIES, plural

from bayplan.admission import Defaults, mutating_policies
from bayplan.api import KINDS
from bayplan.cli import cli

RUNNING = 200
NAMESPACE = "moving"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NODE = "/api/v1/nodes"


def of(group: str, kind: str, name: str, spec: Content) -> Content:
    """Return an object of another system, in the version that bayplan reads first."""
    known = KINDS[group, kind]
    metadata: Content = {"name": name}
    if known.namespaced:
        metadata["namespace"] = NAMESPACE
    return {
        "apiVersion": f"{group}/{known.versions[0]}",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }


GANG = {"minMember": 2}
KUEUE, KOORD = "kueue.x-k8s.io", "scheduling.sigs.k8s.io"
FLAVOR = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "10"}]}]
SYSTEMS: dict[str, tuple[str, list[Content], dict[str, str]]] = {
    "volcano": (
        "volcano",
        [
            of("scheduling.volcano.sh", "Queue", "moving-queue", {"weight": 1}),
            of("scheduling.volcano.sh", "PodGroup", "g", {**GANG, "queue": "moving-queue"}),
        ],
        {"scheduling.k8s.io/group-name": "g"},
    ),
    "kai": (
        "kai-scheduler",
        [
            of("scheduling.run.ai", "Queue", "moving-queue", {"priority": 100}),
            of("scheduling.run.ai", "PodGroup", "g", {**GANG, "queue": "moving-queue"}),
        ],
        {"pod-group-name": "g"},
    ),
    "kueue": (
        "default-scheduler",
        [
            of(KUEUE, "ResourceFlavor", "any", {}),
            of(
                KUEUE,
                "ClusterQueue",
                "moving-queue",
                {
                    "namespaceSelector": {},
                    "resourceGroups": [{"coveredResources": ["cpu"], "flavors": FLAVOR}],
                },
            ),
            of(KUEUE, "LocalQueue", "local", {"clusterQueue": "moving-queue"}),
        ],
        {},
    ),
    "koordinator": (
        "koord-scheduler",
        [
            of(KOORD, "ElasticQuota", "q", {"min": {"cpu": "1"}, "max": {"cpu": "10"}}),
            of(KOORD, "PodGroup", "g", GANG),
        ],
        {"gang.scheduling.koordinator.sh/name": "g"},
    ),
    "hami": ("hami-scheduler", [], {"nvidia.com/use-gputype": "A100"}),
}


@pytest.fixture(scope="module")
def policies(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The defaults of configs/admission."""
    contents = mutating_policies(Defaults())
    for one in contents:
        assert plane.client.post(f"{GROUP_OF_POLICIES}/{plural(one)}", one).code == 201
    yield plane
    for one in reversed(contents):
        plane.client.delete(f"{GROUP_OF_POLICIES}/{plural(one)}/{one['metadata']['name']}")


def pod(name: str, scheduler: str, annotations: dict[str, str]) -> Content:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "image": "x"}]},
    }


def bayplan(plane: ControlPlane, *arguments: str) -> Result:
    given = [*arguments, "--kubeconfig", str(plane.kubeconfig)]
    return CliRunner().invoke(cli, ["migrate", *given])


def state(plane: ControlPlane, objects: list[Content]) -> Any:
    """Return all that must not change: the pods, and the objects of the other system."""
    client = plane.client
    pods = {
        one["metadata"]["name"]: (
            one["metadata"]["uid"],
            one["spec"]["schedulerName"],
            one["spec"].get("nodeName"),
            one["status"]["phase"],
        )
        for one in client.get(PODS).json["items"]
    }
    others = []
    for one in objects:
        found = client.get(path_of(one)).json
        others.append((found["metadata"]["uid"], found["spec"]))
    return pods, others


def test_without_the_policies_nothing_is_moved(plane: ControlPlane) -> None:
    plane.client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    done = bayplan(plane, "apply", NAMESPACE)
    assert "kubectl apply -f configs/admission" in str(done.exception)
    labels = plane.client.get(f"/api/v1/namespaces/{NAMESPACE}").json["metadata"]["labels"]
    assert not any(name.startswith("bayplan.dev/") for name in labels)


@pytest.mark.parametrize("system", SYSTEMS)
def test_there_and_back_no_pod_restarts_and_no_object_is_lost(
    policies: ControlPlane, system: str
) -> None:
    if system != "hami" and not upstream_definitions():
        pytest.skip("the definitions of other systems are not beside the project")
    scheduler, objects, annotations = SYSTEMS[system]
    client = policies.client
    client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    client.post(NODE, {"metadata": {"name": "node-of-moving"}})
    try:
        for one in objects:
            answer = client.post(path_of(one, name=False), one)
            assert answer.code == 201, answer
        for number in range(RUNNING):
            run(policies, pod(f"r-{number}", scheduler, annotations))
        before = state(policies, objects)

        there = bayplan(policies, "apply", NAMESPACE)
        assert there.exit_code == 0, (there.output, there.exception)
        assert f'{RUNNING} pods of schedulerName "{scheduler}" stay as they are' in there.output
        wait_until(lambda: created(policies, scheduler) == "bayplan", "new pods are bayplan's", 20)
        assert created(policies, "default-scheduler") == "bayplan"
        assert created(policies, "of-somebody-else") == "of-somebody-else"
        assert state(policies, objects) == before

        again = bayplan(policies, "apply", NAMESPACE)
        assert again.output == there.output
        back = bayplan(policies, "undo", NAMESPACE)
        assert back.exit_code == 0, (back.output, back.exception)
        wait_until(
            lambda: created(policies, scheduler) == scheduler, "new pods are the system's", 20
        )
        assert state(policies, objects) == before
        labels = client.get(f"/api/v1/namespaces/{NAMESPACE}").json["metadata"]["labels"]
        assert not any(name.startswith("bayplan.dev/") for name in labels)
        assert "was not moved" in bayplan(policies, "undo", NAMESPACE).output
    finally:
        client.delete(PODS, gracePeriodSeconds=0)
        for one in objects:
            client.delete(path_of(one))
        client.delete(f"{NODE}/node-of-moving")
        wait_until(lambda: not client.get(PODS).json["items"], "pods are gone")


def run(plane: ControlPlane, content: Content) -> None:
    """Create a pod that runs on a node."""
    client, name = plane.client, content["metadata"]["name"]
    assert client.post(PODS, content).code == 201
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-of-moving"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    assert client.post(f"{PODS}/{name}/binding", binding).code == 201
    assert client.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running"}}).code == 200


def created(plane: ControlPlane, scheduler: str) -> str:
    """Return the schedulerName that a new pod gets."""
    answer = plane.client.post(PODS, pod("new", scheduler, {}), dryRun="All")
    found: str = answer.json["spec"]["schedulerName"]
    return found


def deployment(name: str, image: str, config: str = "") -> Content:
    labels = {"app": name}
    volumes = [{"name": "v", "configMap": {"name": config}}] if config else []
    containers = [{"name": "c", "image": image}]
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": containers, "volumes": volumes},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


def test_a_plan_reads_what_runs_there(plane: ControlPlane, tmp_path: Any) -> None:
    client = plane.client
    client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    text = "actions: enqueue, allocate\ntiers:\n- plugins:\n  - name: gang\n  - name: proportion\n"
    objects = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "volcano-config", "namespace": NAMESPACE},
            "data": {"volcano-scheduler.conf": text},
        },
        deployment("volcano-scheduler", "volcanosh/vc-scheduler:v1.15.1", "volcano-config"),
        deployment("volcano-controllers", "volcanosh/vc-controller-manager:v1.15.1"),
        deployment("other", "nginx"),
    ]
    profiles = tmp_path / "profiles.yaml"
    try:
        for one in objects:
            assert client.post(path_of(one, name=False), one).code == 201
        done = bayplan(plane, "plan", "--profiles", str(profiles), "--day-after")
    finally:
        for one in objects:
            client.delete(path_of(one))
    assert done.exit_code == 0, (done.output, done.exception)
    words = Counter(done.output.split())
    assert words["volcano"] >= 2
    assert f"{NAMESPACE}/volcano-scheduler" in done.output
    assert f"{NAMESPACE}/other" not in done.output
    assert "(volcano-scheduler.conf): schedulerName volcano" in done.output
    assert "running pods would keep their nodes" in done.output
    checked = CliRunner().invoke(cli, ["profile", "check", str(profiles)])
    assert checked.exit_code == 0, checked.output

"""A release on a real control plane: installed, upgraded, rolled back and uninstalled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.chart.cluster import DEFINITIONS, PODS, definitions
from tests.chart.helm import CHART, NAMESPACE, Helm
from tests.chart.test_rendering import ALL
from tests.cluster.apiserver.faces import Client
from tests.controlplane.installation import account_kubeconfig, path_of
from tests.controlplane.plane import ControlPlane, wait_until
from tests.controlplane.process import Scheduler
from tests.live.deployed import CRDS, Content, documents, manifests

PENDING = 1000
OPTIONS = ("--create-namespace", "--timeout", "60s")
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/bayplan-scheduler"


def node(name: str, cpu: str) -> Content:
    room = {"cpu": cpu, "memory": "100Gi", "pods": "500"}
    status = {
        "capacity": room,
        "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "x"}],
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def pod(name: str) -> Content:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"schedulerName": "bayplan", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Replica:
    """The scheduler as the Deployment describes it: its configuration, its account, its Lease."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._client = plane.client
        self._folder = folder
        self._account = account_kubeconfig(plane, folder / "account")
        self._process: Scheduler | None = None

    def roll(self) -> None:
        """Run what the release says now, as the Deployment does with new pods."""
        self.stop()
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/bayplan-scheduler"
        profile = self._folder / "profile.yaml"
        profile.write_text(self._client.get(path).json["data"]["config.yaml"])
        self._process = Scheduler(self._account, self._folder, profile, "--leader-elect")
        self._process.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


def bound(client: Client) -> int:
    return sum("nodeName" in one["spec"] for one in client.get(PODS).json["items"])


def told(client: Client) -> int:
    """Return how many pods the scheduler has told why they wait."""
    return sum(
        any(c["type"] == "PodScheduled" for c in one["status"].get("conditions", ()))
        for one in client.get(PODS).json["items"]
    )


def test_upgrade_and_rollback_lose_no_pending_pod(
    release: Helm, empty_plane: ControlPlane, tmp_path: Path
) -> None:
    client = empty_plane.client
    notes = release.run("install", "bayplan", str(CHART), *OPTIONS)
    assert "rollout status deployment bayplan-scheduler" in notes
    assert "schedulerName: bayplan\n" in notes
    uids = {}
    for number in range(PENDING):
        answer = client.post(PODS, pod(f"p-{number}"))
        assert answer.code == 201, answer
        uids[answer.json["metadata"]["name"]] = answer.json["metadata"]["uid"]
    replica = Replica(empty_plane, tmp_path)
    try:
        client.post("/api/v1/nodes", node("small", "1"))
        replica.roll()
        wait_until(lambda: told(client) == PENDING, "all pods are tried")
        assert bound(client) == 10

        values = {
            "scheduler": {"config": {"podMaxBackoffSeconds": 3}},
            "roles": {"kueueJobs": True},
        }
        release.run("upgrade", "bayplan", str(CHART), values=values)
        wait_until(lambda: generation_is_seen(client), "the Deployment rolls")
        replica.roll()
        client.post("/api/v1/nodes", node("middle", "40"))
        wait_until(lambda: bound(client) == 410, "the upgraded one places pods")

        release.run("rollback", "bayplan", "1")
        replica.roll()
        client.post("/api/v1/nodes", node("large", "60"))
        client.post("/api/v1/nodes", node("larger", "60"))
        wait_until(lambda: bound(client) == PENDING, "the one rolled back places the rest")
    finally:
        replica.stop()
    left = {
        one["metadata"]["name"]: one["metadata"]["uid"] for one in client.get(PODS).json["items"]
    }
    assert left == uids
    config = client.get(DEPLOYMENT).json["spec"]["template"]["metadata"]["annotations"]
    (first,) = (one for one in release.render() if one["kind"] == "Deployment")
    assert config == first["spec"]["template"]["metadata"]["annotations"]
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/bayplan-kueue-jobs"
    assert client.get(role).code == 404


def generation_is_seen(client: Client) -> bool:
    found = client.get(DEPLOYMENT).json
    return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])


def with_monitoring(client: Client) -> None:
    """Define the kinds of the Prometheus operator."""
    kinds = {"prometheusrules": "PrometheusRule", "servicemonitors": "ServiceMonitor"}
    for plural, kind in kinds.items():
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
        }
        names = {
            "kind": kind,
            "plural": plural,
            "singular": kind.lower(),
            "listKind": f"{kind}List",
        }
        group = "monitoring.coreos.com"
        spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
        content = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": spec,
        }
        assert client.post(DEFINITIONS, content).code == 201
    for plural in kinds:
        path = f"/apis/monitoring.coreos.com/v1/{plural}"
        wait_until(lambda path=path: client.get(path).code == 200, path)


def test_an_uninstalled_release_leaves_only_what_is_kept_on_purpose(
    release: Helm, empty_plane: ControlPlane
) -> None:
    client = empty_plane.client
    with_monitoring(client)
    client.post("/api/v1/namespaces", {"metadata": {"name": "gpu-operator"}})
    journal = {"scheduler": {"usageJournal": {"enabled": True}}}
    notes = release.run("install", "bayplan", str(CHART), *OPTIONS, values=ALL)
    assert "exec statefulset/bayplan-pools -- bayplan pool list\n" in notes
    release.run("upgrade", "bayplan", str(CHART), values={**ALL, **journal})
    made = [*release.render({**ALL, **journal}, "--kube-version", "1.36.0")]
    assert all(client.get(path_of(one)).code == 200 for one in made)
    release.run("uninstall", "bayplan", "--wait")
    kept = {"CustomResourceDefinition", "PersistentVolumeClaim"}
    for one in made:
        there = client.get(path_of(one)).code
        outlasts = one["kind"] in kept or one["metadata"]["name"] == "kai-resource-reservation"
        assert (there == 200) is outlasts, path_of(one)
    # What was kept is taken over by the next release of this name.
    release.run("install", "bayplan", str(CHART), *OPTIONS, values={**ALL, **journal})


def test_kinds_that_are_there_stay_as_they_are(release: Helm, empty_plane: ControlPlane) -> None:
    client = empty_plane.client
    (theirs,) = documents(CRDS / "volcano-queues.yaml")
    theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "of Volcano's chart"
    assert client.post(DEFINITIONS, theirs).code == 201
    path = f"{DEFINITIONS}/queues.scheduling.volcano.sh"

    def spec() -> Any:
        return client.get(path).json["spec"]

    before = spec()
    release.run("install", "bayplan", str(CHART), *OPTIONS)
    release.run("upgrade", "bayplan", str(CHART))
    release.run("rollback", "bayplan", "1")
    release.run("uninstall", "bayplan", "--wait")
    assert spec() == before
    assert len(definitions(client)) == len(documents(*manifests(CRDS)))


def test_a_definition_that_somebody_changed_after_the_installation_stays_changed(
    release: Helm, empty_plane: ControlPlane
) -> None:
    client = empty_plane.client
    release.run("install", "bayplan", str(CHART), *OPTIONS)
    path = f"{DEFINITIONS}/queues.scheduling.volcano.sh"
    column = {"name": "Theirs", "type": "string", "jsonPath": ".spec.theirs"}
    columns = "/spec/versions/0/additionalPrinterColumns"
    change = [{"op": "add", "path": columns, "value": [column]}]
    assert client.patch(path, change, "application/json-patch+json").code == 200
    release.run("upgrade", "bayplan", str(CHART), values={"roles": {"resizer": True}})
    release.run("uninstall", "bayplan", "--wait")
    (version,) = client.get(path).json["spec"]["versions"]
    assert version["additionalPrinterColumns"] == [column]


def test_a_second_release_is_refused(release: Helm) -> None:
    release.run("install", "bayplan", str(CHART), *OPTIONS)
    done = release.attempt("install", "another", str(CHART), *OPTIONS)
    assert done.returncode == 1
    assert "bayplan-scheduler" in done.stderr
    assert "exists and cannot be imported into the current release" in done.stderr
    listed = json.loads(release.run("list", "--output", "json"))
    assert [(one["name"], one["status"]) for one in listed if one["status"] == "deployed"] == [
        ("bayplan", "deployed")
    ]


def test_a_journal_is_added_and_taken_away_by_upgrades(
    release: Helm, empty_plane: ControlPlane
) -> None:
    client = empty_plane.client
    journal = {"scheduler": {"usageJournal": {"enabled": True}}}
    release.run("install", "bayplan", str(CHART), *OPTIONS)
    release.run("upgrade", "bayplan", str(CHART), values=journal)
    spec = client.get(DEPLOYMENT).json["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    claim = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/bayplan-usage"
    uid = client.get(claim).json["metadata"]["uid"]
    release.run(
        "upgrade", "bayplan", str(CHART), values={"scheduler": {"usageJournal": {"enabled": False}}}
    )
    spec = client.get(DEPLOYMENT).json["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    release.run("upgrade", "bayplan", str(CHART), values=journal)
    assert client.get(claim).json["metadata"]["uid"] == uid

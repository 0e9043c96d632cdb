"""Koordinator's own definitions on a real API server: reservations and reports of load."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.apiserver.faces import Client
from tests.controlplane.installation import upstream_definitions
from tests.controlplane.live_cluster import PODS, LiveCluster
from tests.controlplane.plane import wait_until
from tests.controlplane.process import Scheduler
from tests.controlplane.story_builders import asking, nodes
from tests.dialects.colocation_cases import CASES, CLASSES, Case

from bayplan.admission import Defaults, mutating_policies
from bayplan.api import KINDS, ClusterColocationProfile
from bayplan.api.objects import decode_json
from bayplan.dialects.koordinator.colocation import BY_PROFILE
from bayplan.testing import make_object

NODE_METRICS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
GROUP = "scheduling.koordinator.sh"
RESERVATIONS = f"/apis/{GROUP}/v1alpha1/reservations"


def reservation(cpu: str, **spec: Any) -> dict[str, Any]:
    amounts = {"requests": {"cpu": cpu}}
    container = {"name": "c", "image": "busybox", "resources": amounts}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "kept"},
        "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"app": "own"}}}],
            "template": {"spec": {"containers": [container], "schedulerName": "bayplan"}},
            **spec,
        },
    }


def why(cluster: LiveCluster, name: str) -> str:
    """Return why a pod has no node, as its condition says."""
    return "".join(
        one.get("message", "")
        for pod in cluster.items(PODS)
        for one in pod["status"].get("conditions", ())
        if pod["metadata"]["name"] == name and one["type"] == "PodScheduled"
    )


def test_a_reservation_is_kept_for_its_owner_and_used_up(real: LiveCluster, tmp_path: Path) -> None:
    if f"reservations.{GROUP}" not in upstream_definitions():
        pytest.skip("no definition of Koordinator's own on this machine")
    client = real.client
    scheduler = Scheduler(real.kubeconfig, tmp_path)
    scheduler.start()

    def status() -> dict[str, Any]:
        found: dict[str, Any] = client.get(f"{RESERVATIONS}/kept").json.get("status", {})
        return found

    try:
        real.apply(nodes(1))
        free = client.get("/api/v1/nodes").json["items"][0]["status"]["allocatable"]["cpu"]
        most = str(int(free) - 1)
        answer = client.post(RESERVATIONS, reservation(most), fieldValidation="Strict")
        assert answer.code == 201, answer
        wait_until(lambda: status().get("phase") == "Available", "the reservation has a node")
        pod = asking("other", schedulerName="bayplan")
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": most}}
        real.apply([pod])
        wait_until(lambda: "Insufficient cpu" in why(real, "other"), "nobody else gets it")
        own = asking("own", schedulerName="bayplan")
        own["metadata"]["labels"] = {"app": "own"}
        own["spec"]["containers"][0]["resources"] = {"requests": {"cpu": most}}
        real.apply([own])
        wait_until(lambda: "own" in real.placements(), "the owner has its node")
        wait_until(lambda: status().get("phase") == "Succeeded", "it is used up")
        assert [one["name"] for one in status()["currentOwners"]] == ["own"]
        assert status()["allocated"]["cpu"] == most
    finally:
        scheduler.stop()
        client.delete(f"{RESERVATIONS}/kept")
    assert scheduler.problems() == []


def test_reservations_of_a_gang_are_made_together_without_waiting(
    real: LiveCluster, tmp_path: Path
) -> None:
    if f"reservations.{GROUP}" not in upstream_definitions():
        pytest.skip("no definition of Koordinator's own on this machine")
    client = real.client
    scheduler = Scheduler(real.kubeconfig, tmp_path)
    scheduler.start()

    def phases() -> list[str]:
        items = client.get(RESERVATIONS).json["items"]
        return [one.get("status", {}).get("phase", "") for one in items]

    names = [f"kept-{index}" for index in range(3)]
    gang = {f"gang.{GROUP}/name": "kept", f"gang.{GROUP}/min-available": "3"}
    try:
        real.apply(nodes(1))
        for name in names:
            wait_until(lambda: "Available" not in phases(), "a part of the gang has no node")
            one = reservation("1")
            one["metadata"]["name"] = name
            one["spec"]["template"]["metadata"] = {"namespace": "default", "annotations": gang}
            assert client.post(RESERVATIONS, one, fieldValidation="Strict").code == 201
        wait_until(lambda: phases() == ["Available"] * 3, "all of the gang have nodes")
    finally:
        scheduler.stop()
        for name in names:
            client.delete(f"{RESERVATIONS}/{name}")
    assert scheduler.problems() == []


POLICIES = "/apis/admissionregistration.k8s.io/v1"


def write_policies(client: Client, case: Case) -> None:
    """Let the policies of a case's profiles be in force soon, in place of those before."""
    objects = map(make_object, case.profiles)
    profiles = tuple(one for one in objects if isinstance(one, ClusterColocationProfile))
    for one in mutating_policies(Defaults(profiles=profiles)):
        name = one["metadata"]["name"]
        if not name.startswith("bayplan-colocation"):
            continue
        # What goes wrong in a policy is said, instead of ignored.
        one["spec"] |= {"failurePolicy": "Fail"} if "mutations" in one["spec"] else {}
        plural = "mutatingadmissionpolicies"
        if one["kind"].endswith("Binding"):
            plural = "mutatingadmissionpolicybindings"
        known = client.get(f"{POLICIES}/{plural}/{name}")
        if known.code == 404:
            answer = client.post(f"{POLICIES}/{plural}", one, fieldValidation="Strict")
        else:
            one["metadata"]["resourceVersion"] = known.json["metadata"]["resourceVersion"]
            answer = client.put(f"{POLICIES}/{plural}/{name}", one)
        assert answer.code in (200, 201), answer


def test_policies_make_of_pods_what_the_profiles_say(real: LiveCluster) -> None:
    """The embedded cluster does the same without policies: tests/dialects has the cases."""
    client = real.client
    if client.get("/api/v1/namespaces/space").code == 404:
        client.post("/api/v1/namespaces", {"metadata": {"name": "space"}})
    for one in CLASSES:
        client.post("/apis/scheduling.k8s.io/v1/priorityclasses", one)
    wait_until(
        lambda: client.get("/api/v1/namespaces/space/serviceaccounts/default").code == 200,
        "pods may be created",
    )
    try:
        for case in CASES:
            labels = {"tier": None, **case.labels}
            client.patch("/api/v1/namespaces/space", {"metadata": {"labels": labels}})
            write_policies(client, case)

            def seen(case: Case = case) -> Any:
                answer = client.post("/api/v1/namespaces/space/pods", case.pod, dryRun="All")
                if answer.code != 201:
                    return str(answer.json)
                return case.seen(
                    decode_json(KINDS["", "Pod"], "v1", json.dumps(answer.json).encode())
                )

            with contextlib.suppress(TimeoutError):
                wait_until(lambda seen=seen, case=case: seen() == case.expected, case.name, 10.0)
            assert seen() == case.expected, case.name
    finally:
        for kind in ("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"):
            for name in ("bayplan-colocation", "bayplan-colocation-resources"):
                client.delete(f"{POLICIES}/{kind}/{name}")
        plain = {**CASES[0].pod, "metadata": {"name": "plain"}}
        wait_until(
            lambda: (
                BY_PROFILE
                not in client.post("/api/v1/namespaces/space/pods", plain, dryRun="All")
                .json["metadata"]
                .get("annotations", {})
            ),
            "the policies are gone",
        )
        for one in CLASSES:
            path = "/apis/scheduling.k8s.io/v1/priorityclasses"
            client.delete(f"{path}/{one['metadata']['name']}")


def rebalancing(folder: Path) -> Path:
    """Return a profile that looks each second whether nodes are too busy."""
    args = {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "LowNodeLoadArgs",
        "lowThresholds": {"cpu": 30},
        "highThresholds": {"cpu": 70},
        "anomalyCondition": {"timeout": "1m", "consecutiveAbnormalities": 2},
        "deschedulingInterval": "1s",
    }
    profile = {
        "schedulerName": "bayplan",
        "plugins": {"multiPoint": {"enabled": [{"name": "LowNodeLoad", "weight": 100}]}},
        "pluginConfig": [{"name": "LowNodeLoad", "args": args}],
    }
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    }
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def report(cluster: LiveCluster, node: str, percent: int) -> None:
    """Let koordlet say what the pods of a node use together, each the same."""
    names = [name for name, at in cluster.placements().items() if at == node]
    (found,) = (one for one in cluster.items("/api/v1/nodes") if one["metadata"]["name"] == node)
    most = 1000 * int(found["status"]["allocatable"]["cpu"])
    usage = {"resources": {"cpu": f"{most * percent // 100 // max(1, len(names))}m"}}
    status = {
        "updateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "nodeMetric": {"nodeUsage": usage},
        "podsMetric": [{"namespace": "default", "name": name, "podUsage": usage} for name in names],
    }
    path = f"{NODE_METRICS}/{node}"
    if cluster.client.get(path).code == 404:
        head = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric"}
        answer = cluster.client.post(NODE_METRICS, {**head, "metadata": {"name": node}})
        assert answer.code == 201, answer
    answer = cluster.client.patch(f"{path}/status", {"status": status})
    assert answer.code == 200, answer


def test_a_pod_leaves_a_node_that_koordlet_reports_as_too_busy(
    real: LiveCluster, tmp_path: Path
) -> None:
    if "nodemetrics.slo.koordinator.sh" not in upstream_definitions():
        pytest.skip("no definition of Koordinator's own on this machine")
    client = real.client
    spec = asking("x", schedulerName="bayplan")["spec"]
    labels = {"app": "web"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    scheduler = Scheduler(real.kubeconfig, tmp_path, rebalancing(tmp_path))
    scheduler.start()

    def on(node: str) -> int:
        return list(real.placements().values()).count(node)

    try:
        real.apply(nodes(2))
        client.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
        real.apply([deployment])
        wait_until(lambda: on("n0") == 4, "all pods are on one node")
        client.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
        report(real, "n0", 80)
        report(real, "n1", 0)
        wait_until(lambda: (on("n0"), on("n1")) == (3, 1), "one has left, for the other")
        report(real, "n0", 60)
        report(real, "n1", 20)
    finally:
        scheduler.stop()
        for node in ("n0", "n1"):
            client.delete(f"{NODE_METRICS}/{node}")
    assert "n0 is overutilized, cpu usage 80% > 70%" in scheduler.log.read_text()
    assert scheduler.problems() == []

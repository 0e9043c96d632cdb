"""The real kubectl works on the embedded cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.apiserver.faces import node, pod, serving
from tests.cluster.apiserver.kubectl import PROGRAM, Kubectl

from bayplan.cluster.apiserver import ServedCluster, WallClock

pytestmark = pytest.mark.skipif(not PROGRAM, reason="there is no kubectl")

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    with serving(ServedCluster(start=datetime.now(UTC)), tokens={"secret": None}) as face:
        yield Kubectl(face, tmp_path)


def test_pods_and_nodes_are_shown(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=node("n1", **{"node-role.kubernetes.io/worker": ""}))
    kubectl("create", "-f", "-", stdin=pod("a"))
    waiting = kubectl("get", "pods", "-o", "wide")
    assert waiting.split("\n")[0].split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert waiting.split("\n")[1].split()[:3] == ["a", "0/1", "Pending"]
    kubectl.bind("a")
    both = kubectl("get", "pods,nodes", "--no-headers", "-o", "wide")
    first, second = (line.split() for line in both.splitlines() if line)
    assert first[:3] == ["pod/a", "1/1", "Running"]
    assert "n1" in first
    assert second[:3] == ["node/n1", "Ready", "worker"]
    described = kubectl("describe", "pod", "a")
    assert "Node:             n1" in described
    assert "Non-terminated Pods:          (1 in total)" in kubectl("describe", "node", "n1")
    assert json.loads(kubectl("get", "pod", "a", "-o", "json"))["spec"]["nodeName"] == "n1"


def test_objects_are_applied_and_changed(kubectl: Kubectl) -> None:
    content = pod("a")
    assert "pod/a created" in kubectl("apply", "-f", "-", stdin=content)
    content["spec"]["containers"][0]["image"] = "registry.k8s.io/pause:3.9"
    content["metadata"]["labels"] = {"team": "x"}
    assert "pod/a configured" in kubectl("apply", "-f", "-", stdin=content)
    assert "pod/a unchanged" in kubectl("apply", "-f", "-", stdin=content)
    kubectl("label", "pod", "a", "more=y")
    kubectl("annotate", "pod", "a", "note=z")
    found = yaml.safe_load(kubectl("get", "pod", "a", "-o", "yaml"))
    assert found["metadata"]["labels"] == {"team": "x", "more": "y"}
    assert found["spec"]["containers"][0]["image"] == "registry.k8s.io/pause:3.9"
    content["spec"]["nodeName"] = "n1"
    assert "pod updates may not change fields" in kubectl.refused("apply", "-f", "-", stdin=content)


def test_objects_are_applied_by_the_server(kubectl: Kubectl) -> None:
    content = pod("a")
    apply = ("apply", "--server-side", "-f", "-")
    assert "pod/a serverside-applied" in kubectl(*apply, stdin=content)
    content["metadata"]["labels"] = {"b": "c"}
    kubectl(*apply, stdin=content)
    shown = kubectl("get", "pod", "a", "-o", "json", "--show-managed-fields")
    meta = json.loads(shown)["metadata"]
    assert meta["labels"] == {"b": "c"}
    assert meta["managedFields"][0]["manager"] == "kubectl"


@pytest.mark.parametrize("kind", ["strategic", "merge", "json"])
def test_objects_are_patched(kubectl: Kubectl, kind: str) -> None:
    kubectl("create", "-f", "-", stdin=pod("a"))
    patch: Any = {"metadata": {"labels": {"b": "c"}}}
    if kind == "json":
        patch = [{"op": "add", "path": "/metadata/labels/b", "value": "c"}]
    text = json.dumps(patch)
    assert "patched" in kubectl("patch", "pod", "a", f"--type={kind}", "-p", text)
    shown = kubectl("get", "pods", "-l", "b=c", "-o", "name")
    assert shown == "pod/a\n"


def test_kinds_that_kubectl_makes_itself(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "team")
    kubectl("create", "-n", "team", "configmap", "c", "--from-literal=a=b")
    kubectl("create", "deployment", "d", "--image=i", "--replicas=2")
    assert "0/2" in kubectl("get", "deployment", "d", "--no-headers")
    kubectl("scale", "deployment", "d", "--replicas=1")
    assert len(kubectl("get", "pods", "-o", "name").split()) == 1
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    kubectl("delete", "namespace", "team", "--timeout=60s")
    assert "not found" in kubectl.refused("get", "namespace", "team")


def test_waiting_watching_and_deleting(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=node("n1"))
    kubectl("create", "-f", "-", stdin=pod("a"))
    watch = kubectl.start("get", "pods", "-w", "--no-headers")
    assert watch.stdout is not None
    assert watch.stdout.readline().split()[:3] == ["a", "0/1", "Pending"]
    kubectl.bind("a")
    assert watch.stdout.readline().split()[:3] == ["a", "0/1", "Pending"]
    assert watch.stdout.readline().split()[:3] == ["a", "1/1", "Running"]
    watch.terminate()
    watch.communicate()
    kubectl("wait", "pod/a", "--for=condition=Ready", "--timeout=60s")
    kubectl("delete", "pod", "a", "--wait=false")
    gone = kubectl.start("wait", "pod/a", "--for=delete", "--timeout=60s")
    kubectl.face.advance(31)
    gone.communicate()
    assert gone.returncode == 0


def test_a_job_completes(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=node("n1"))
    template = pod("x")
    template["spec"]["restartPolicy"] = "Never"
    template["metadata"] = {"annotations": {"bayplan.dev/duration": "5s"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": {"metadata": template["metadata"], "spec": template["spec"]}},
    }
    kubectl("create", "-f", "-", stdin=job)
    name = kubectl("get", "pods", "-o", "name").strip().removeprefix("pod/")
    kubectl.bind(name)
    kubectl.face.advance(6)
    kubectl("wait", "--for=condition=complete", "job/j", "--timeout=60s")
    assert kubectl("get", "jobs", "--no-headers").split()[:3] == ["j", "Complete", "1/1"]


def test_a_node_is_drained(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=node("n1"))
    kubectl("create", "-f", "-", stdin=pod("a", terminationGracePeriodSeconds=0))
    kubectl.bind("a")
    kubectl("cordon", "n1")
    assert "Ready,SchedulingDisabled" in kubectl("get", "nodes")
    assert "pod/a evicted" in kubectl("drain", "n1", "--force", "--timeout=60s")
    kubectl("uncordon", "n1")
    kubectl("taint", "node", "n1", "gpu=a100:NoSchedule")
    shown = kubectl("get", "node", "n1", "-o", "jsonpath={.spec}")
    assert json.loads(shown) == {
        "taints": [{"effect": "NoSchedule", "key": "gpu", "value": "a100"}]
    }


def test_events_are_told(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=pod("a"))
    uid = kubectl("get", "pod", "a", "-o", "jsonpath={.metadata.uid}")
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "a.1", "namespace": "default"},
        "regarding": {"kind": "Pod", "namespace": "default", "name": "a", "uid": uid},
        "reason": "FailedScheduling",
        "action": "Scheduling",
        "note": "no node has 8 GPUs",
        "type": "Warning",
        "reportingController": "bayplan",
        "reportingInstance": "bayplan-0",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    kubectl("create", "-f", "-", stdin=event)
    for command in (("get", "events"), ("events",), ("describe", "pod", "a")):
        shown = kubectl(*command)
        assert "FailedScheduling" in shown, command
        assert "no node has 8 GPUs" in shown, command


def test_kinds_that_come_at_run_time(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=CRD)
    kubectl("wait", "crd/things.example.com", "--for=condition=Established", "--timeout=60s")
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
    kubectl("apply", "-f", "-", stdin={**thing, "spec": {"size": 3}})
    assert kubectl("get", "th", "--no-headers").split() == ["t", "3"]
    kubectl("apply", "--server-side", "-f", "-", stdin={**thing, "spec": {"size": 4}})
    assert kubectl("get", "th", "--no-headers").split() == ["t", "4"]
    listed = kubectl("api-resources", "--no-headers", "--api-group=example.com")
    assert listed.split() == ["things", "th", "example.com/v1", "true", "Thing"]
    kubectl("delete", "crd", "things.example.com")
    assert "NotFound" in kubectl.refused("get", "things.v1.example.com")


def test_ages_follow_the_real_time(tmp_path: Path) -> None:
    clock = WallClock()
    with serving(ServedCluster(clock=clock)) as face:
        kubectl = Kubectl(face, tmp_path)
        kubectl("create", "-f", "-", stdin=node("n1"))
        age = kubectl("get", "nodes", "--no-headers").split()[3]
        assert int(age.removesuffix("s")) < 30
        face.do(lambda _: clock.stop())


# Fields ------------------------------------------------------------------------------------------


def typed_crd() -> Any:
    crd = json.loads(json.dumps(CRD))
    size = {"type": "integer", "description": "How large it is."}
    spec = {"type": "object", "required": ["size"], "properties": {"size": size}}
    schema = {"type": "object", "properties": {"spec": spec}}
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    return crd


def test_explain_tells_the_fields(kubectl: Kubectl) -> None:
    shown = kubectl("explain", "pod.spec.containers")
    assert "FIELD: containers <[]Container>" in shown
    assert "  image\t<string>" in shown
    assert "  resources\t<ResourceRequirements>" in shown
    assert "name\t<string> -required-" in shown
    assert "limits\t<map[string]Quantity>" in kubectl("explain", "pod.spec.containers.resources")
    shown = kubectl("explain", "deployment", "--recursive")
    assert "GROUP:      apps" in shown
    assert 'field "replica" does not exist' in kubectl.refused("explain", "deployment.spec.replica")


def test_explain_tells_the_fields_of_other_projects_kinds(kubectl: Kubectl) -> None:
    shown = kubectl("explain", "podgroups.scheduling.volcano.sh.spec.networkTopology")
    assert "highestTierAllowed\t<integer>" in shown
    kubectl("apply", "-f", "-", stdin=typed_crd())
    kubectl("wait", "crd/things.example.com", "--for=condition=Established", "--timeout=10s")
    shown = kubectl("explain", "things.spec")
    assert "size\t<integer> -required-" in shown
    assert "How large it is." in shown


def test_explain_of_older_kubectls_works(kubectl: Kubectl) -> None:
    shown = kubectl("explain", "pod.spec.containers", "--output=plaintext-openapiv2")
    assert "imagePullPolicy\t<string>" in shown


def test_unknown_fields_are_refused_as_kubectl_asks(kubectl: Kubectl) -> None:
    content = pod("a", nodeselector={"a": "b"})
    told = kubectl.refused("apply", "-f", "-", stdin=content)
    assert 'strict decoding error: unknown field "spec.nodeselector"' in told
    done = kubectl.run("apply", "--validate=warn", "-f", "-", stdin=content)
    assert 'Warning: unknown field "spec.nodeselector"' in done.stderr
    assert "pod/a created" in done.stdout
    assert "pod/a configured" in kubectl("apply", "--validate=ignore", "-f", "-", stdin=pod("a"))


def test_a_definition_says_which_fields_its_objects_have(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=typed_crd())
    kubectl("wait", "crd/things.example.com", "--for=condition=Established", "--timeout=10s")
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
    told = kubectl.refused("apply", "-f", "-", stdin={**thing, "spec": {"sise": 3}})
    assert 'strict decoding error: unknown field "spec.sise"' in told
    kubectl("apply", "-f", "-", stdin={**thing, "spec": {"size": 3}})


@pytest.mark.parametrize(
    ("command", "path", "expected"),
    [
        ("quota q --hard=cpu=2,pods=3", "{.spec.hard}", '{"cpu":"2","pods":"3"}'),
        (
            "role q --verb=get --resource=pods",
            "{.rules}",
            '[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]',
        ),
        ("clusterrole q --verb=get --resource=nodes", "{.rules[0].resources}", '["nodes"]'),
        ("rolebinding q --role=r --user=u", "{.roleRef.name} {.subjects[0].name}", "r u"),
        ("clusterrolebinding q --clusterrole=r --user=u", "{.roleRef.kind}", "ClusterRole"),
        ("service clusterip q --tcp=80:8080", "{.spec.ports[0].targetPort}", "8080"),
    ],
)
def test_more_kinds_that_kubectl_makes_itself(
    kubectl: Kubectl, command: str, path: str, expected: str
) -> None:
    kubectl("create", *command.split())
    kind = command.split()[0]
    assert kubectl("get", kind, "q", "-o", f"jsonpath={path}") == expected

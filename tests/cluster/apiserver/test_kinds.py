"""Tables, short names, kinds without effect, usage, and what metadata may be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.apiserver.faces import Client, Face, node, pod, serving
from tests.cluster.apiserver.kubectl import PROGRAM, Kubectl

from bayplan.cluster.apiserver import ServedCluster
from bayplan.cluster.protocol import Bind

Content = dict[str, Any]
needs_kubectl = pytest.mark.skipif(not PROGRAM, reason="there is no kubectl")
TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
MAPS = "/api/v1/namespaces/default/configmaps"
QUALIFIED = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with"


@pytest.fixture
def face() -> Iterator[Face]:
    with serving(ServedCluster(start=datetime.now(UTC)), tokens={"secret": None}) as made:
        yield made


@pytest.fixture
def client(face: Face) -> Client:
    return Client(face.server.url, "secret")


@pytest.fixture
def kubectl(face: Face, tmp_path: Path) -> Kubectl:
    return Kubectl(face, tmp_path)


def config_map(**metadata: Any) -> Content:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", **metadata}}


# Metadata -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "field", "text"),
    [
        ({"labels": {"a": "b c"}}, "labels", 'Invalid value: "b c": a valid label must be an'),
        ({"labels": {"a": "b" * 64}}, "labels", "must be no more than 63 bytes"),
        ({"labels": {"a b": "c"}}, "labels", f'Invalid value: "a b": name part {QUALIFIED}'),
        ({"labels": {"A_b.c/d": "e"}}, "labels", "prefix part a lowercase RFC 1123 subdomain"),
        ({"labels": {"/a": "b"}}, "labels", "prefix part must be non-empty"),
        ({"labels": {"a/": "b"}}, "labels", "name part must be non-empty"),
        ({"labels": {"a/b/c": "d"}}, "labels", "with an optional DNS subdomain prefix and '/'"),
        ({"labels": {"a" * 64: "b"}}, "labels", "name part must be no more than 63 bytes"),
        ({"annotations": {"x y": "z"}}, "annotations", f"name part {QUALIFIED}"),
        ({"annotations": {"a": "b" * 262144}}, "annotations", "may not be more than 262144 bytes"),
        ({"name": "Bad_Name"}, "name", "a lowercase RFC 1123 subdomain must consist of"),
        ({"name": "a" * 254}, "name", "must be no more than 253 characters"),
        ({"name": "", "generateName": "Bad_"}, "generateName", "a lowercase RFC 1123 subdomain"),
    ],
)
def test_metadata_is_refused_as_kubernetes_does(
    client: Client, metadata: Content, field: str, text: str
) -> None:
    answer = client.post(MAPS, config_map(**metadata))
    assert answer.code == 422, answer
    assert text in answer.json["message"]
    assert {c["field"] for c in answer.json["details"]["causes"]} == {f"metadata.{field}"}


def test_what_looks_odd_and_is_right_is_taken(client: Client) -> None:
    labels = {"a": "", "example.com/A_b.C-d": "X_y.Z-1"}
    annotations = {"Example.com/A_b": "anything at all / \n"}
    meta = {"name": "a.b-c.1", "labels": labels, "annotations": annotations}
    assert client.post(MAPS, config_map(**meta)).code == 201
    assert client.post(MAPS, config_map(name="", generateName="a-")).code == 201
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    assert client.post(path, {**role, "metadata": {"name": "system:A_b"}}).code == 201
    answer = client.post(path, {**role, "metadata": {"name": "a/b"}})
    assert "may not contain '/'" in answer.json["message"]


def test_a_namespace_is_named_by_one_label(client: Client) -> None:
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}}
    answer = client.post("/api/v1/namespaces", made)
    assert answer.json["message"].endswith('Invalid value: "a.b": must not contain dots')


def test_labels_are_checked_in_patches_and_templates(client: Client) -> None:
    client.post(MAPS, config_map())
    answer = client.patch(f"{MAPS}/x", {"metadata": {"labels": {"a": "b c"}}})
    assert answer.code == 422
    labels = {"a": "b c"}
    made = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, **TEMPLATE},
        },
    }
    answer = client.post("/apis/apps/v1/namespaces/default/deployments", made)
    assert answer.code == 422
    fields = [c["field"] for c in answer.json["details"]["causes"]]
    assert fields == ["spec.template.labels", "spec.selector.matchLabels"]


# Kinds without effect -------------------------------------------------------------------------

CRON_JOB = {
    "apiVersion": "batch/v1",
    "kind": "CronJob",
    "metadata": {"name": "c"},
    "spec": {"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": TEMPLATE}}},
}


def test_a_kind_without_effect_is_kept_and_says_so(client: Client) -> None:
    path = "/apis/batch/v1/namespaces/default/cronjobs"
    made = client.post(path, CRON_JOB)
    assert made.code == 201
    assert made.headers["Warning"].startswith(
        '299 - "CronJob is stored and has no effect here: no controller makes its Jobs'
    )
    assert "Warning" not in client.get(f"{path}/c").headers
    assert "Warning" not in client.post(MAPS, config_map()).headers


def test_autoscalers_have_two_versions(client: Client) -> None:
    path = "/apis/autoscaling/{}/namespaces/default/horizontalpodautoscalers"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}
    old = {
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "x"},
        "spec": {
            "scaleTargetRef": target,
            "maxReplicas": 3,
            "targetCPUUtilizationPercentage": 50,
        },
    }
    assert client.post(path.format("v1"), old).code == 201
    (metric,) = client.get(f"{path.format('v2')}/x").json["spec"]["metrics"]
    assert metric["resource"]["target"]["averageUtilization"] == 50
    assert client.get(f"{path.format('v1')}/x").json["spec"] == old["spec"]


@needs_kubectl
def test_an_unknown_kind_keeps_nobody_else_away(kubectl: Kubectl, tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a.yaml").write_text(
        "apiVersion: example.com/v1\nkind: Foo\nmetadata: {name: foo}\n"
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: after}\n"
    )
    text = kubectl.refused("apply", "--validate=false", "-f", str(folder))
    assert 'no matches for kind "Foo" in version "example.com/v1"' in text
    assert "configmap/after" in kubectl("get", "configmaps", "-o", "name")


@needs_kubectl
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("create", "quota", "q", "--hard=cpu=1"), "quota/q created"),
        (("create", "cronjob", "c", "--image=i", "--schedule=0 * * * *"), "cronjob.batch/c"),
        (("create", "ingress", "i", "--rule=a.b/x=y:80"), "ingress.networking.k8s.io/i created"),
        (("create", "role", "r", "--verb=get", "--resource=pods"), "role"),
        (("create", "rolebinding", "b", "--clusterrole=r", "--user=u"), "b created"),
        (("create", "service", "clusterip", "s", "--tcp=80"), "service/s created"),
        (("create", "serviceaccount", "a"), "serviceaccount/a created"),
        (("debug", "node/n1", "--image=i", "--attach=false"), "Creating debugging pod"),
        (("expose", "pod", "p", "--port=80"), "service/p exposed"),
        (("autoscale", "deployment", "d", "--max=3", "--cpu-percent=50"), "autoscaled"),
        (("auth", "can-i", "create", "pods"), "yes"),
    ],
)
def test_commands_work(kubectl: Kubectl, command: tuple[str, ...], told: str) -> None:
    kubectl("create", "-f", "-", stdin=node("n1"))
    kubectl("create", "-f", "-", stdin=pod("p"))
    kubectl("create", "deployment", "d", "--image=i")
    assert told in kubectl(*command)


@needs_kubectl
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("create", "token", "default"), "this cluster issues no tokens"),
        (("debug", "p", "--image=i"), "pods take no ephemeral containers"),
        (("exec", "p", "--", "ls"), "pods have no exec"),
        (("logs", "p"), "pods have no log"),
        (("auth", "can-i", "get", "pods", "--as=joe"), "this cluster has no such user"),
    ],
)
def test_commands_that_cannot_work_say_why(
    kubectl: Kubectl, command: tuple[str, ...], told: str
) -> None:
    kubectl("create", "-f", "-", stdin=node("n1"))
    kubectl("create", "-f", "-", stdin=pod("p"))
    kubectl("create", "serviceaccount", "default")
    kubectl.bind("p")
    text = kubectl.refused(*command)
    assert told in text
    assert "goroutine" not in text


# Tables and usage -----------------------------------------------------------------------------

OBJECTS: list[tuple[str, Content, list[str]]] = [
    ("cj", CRON_JOB, ["c", "0", "*", "*", "*", "*", "<none>", "False", "0", "<none>"]),
    (
        "vcjob",
        {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "v"},
            "spec": {
                "minAvailable": 2,
                "tasks": [{"name": "w", "replicas": 2, "template": TEMPLATE}],
            },
        },
        ["v", "Pending", "2", "0"],
    ),
    (
        "pg",
        {
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"minMember": 4},
        },
        ["g", "4", "<none>"],
    ),
    (
        "vg",
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"minMember": 4},
            "status": {"phase": "Running"},
        },
        ["g", "4", "0"],
    ),
    (
        "hn",
        {
            "apiVersion": "topology.volcano.sh/v1alpha1",
            "kind": "HyperNode",
            "metadata": {"name": "h"},
            "spec": {"tier": 2, "members": []},
        },
        ["h", "2"],
    ),
    (
        "svc",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s"},
            "spec": {"ports": [{"port": 80, "nodePort": 30080}], "selector": {"a": "b"}},
        },
        ["s", "ClusterIP", "<none>", "<none>", "80:30080/TCP"],
    ),
    (
        "ds",
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "d"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {**TEMPLATE["spec"], "nodeSelector": {"disk": "ssd"}},
                },
            },
        },
        ["d", "0", "0", "0", "0", "0", "disk=ssd"],
    ),
]


@needs_kubectl
@pytest.mark.parametrize(("name", "content", "row"), OBJECTS, ids=[one[0] for one in OBJECTS])
def test_every_kind_has_its_columns_and_short_names(
    kubectl: Kubectl, name: str, content: Content, row: list[str]
) -> None:
    kubectl("create", "--validate=false", "-f", "-", stdin=content)
    assert kubectl("get", name, "--no-headers").split()[: len(row)] == row


@needs_kubectl
def test_top_shows_requests(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=node("n1"))
    content = pod("p")
    requests = {"cpu": "2", "memory": "1Gi"}
    content["spec"]["containers"][0]["resources"] = {"requests": requests}
    kubectl("create", "-f", "-", stdin=content)
    kubectl.bind("p")
    assert kubectl("top", "node", "--no-headers").split() == ["n1", "2000m", "25%", "1024Mi", "6%"]
    assert kubectl("top", "pod", "--no-headers").split() == ["p", "2000m", "1024Mi"]
    assert kubectl("top", "pod", "--containers", "--no-headers").split()[:2] == ["p", "main"]
    assert "No resources found" in kubectl.run("top", "pod", "-l", "a=b").stderr


def test_usage_is_for_those_who_may_see_it(client: Client) -> None:
    assert client.get("/apis/metrics.k8s.io/v1beta1/nodes/nope").code == 404
    assert client.get("/apis/metrics.k8s.io/v1beta1/nodes").json["items"] == []


def test_a_volcano_job_tells_how_far_it_is(client: Client, face: Face) -> None:
    client.post("/api/v1/nodes", node("n1"))
    path = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
    template = {
        "spec": {"containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}]}]}
    }
    tasks = [{"name": "w", "replicas": 2, "template": template}]
    content = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "v"},
        "spec": {"minAvailable": 1, "tasks": tasks},
    }
    assert client.post(path, content).code == 201
    assert client.get(f"{path}/v").json["status"]["state"]["phase"] == "Pending"
    face.do(lambda s: s.cluster.submit(Bind("default/v-w-0", "", "n1")))
    status = client.get(f"{path}/v").json["status"]
    assert (status["state"]["phase"], status["running"], status["pending"]) == ("Running", 1, 1)
    made = client.get("/api/v1/namespaces/default/pods/v-w-0").json
    assert made["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]

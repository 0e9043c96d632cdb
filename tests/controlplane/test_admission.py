"""Policies on a real API server: defaults, refusals in bayplan's words, and warnings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cluster.apiserver.faces import Answer
from tests.controlplane.live_cluster import Content, LiveCluster
from tests.controlplane.plane import ControlPlane, wait_until
from tests.controlplane.test_configs import role_without
from tests.live.deployed import documents, only
from tests.paths import ROOT

from bayplan.admission import (
    FACTS,
    QUEUE_OF_NAMESPACE,
    SCHEDULER,
    Defaults,
    mutating_policies,
    validating_policies,
)
from bayplan.api import KINDS, Job, Kind, Pod
from bayplan.api.objects import decode_json
from bayplan.cli.admission import command
from bayplan.dialects.hami.requests import RequestRules, admitted
from bayplan.dialects.kai.shares import gpu_share_of
from bayplan.dialects.kueue import ADMISSION_GATE, MULTI_CLUSTER_CONTROLLER
from bayplan.dialects.queued_job_checks import (
    ELASTIC_ANNOTATION,
    LONGEST_TIME,
    PREBUILT,
    QUEUE_LABEL,
    Why,
    refusals_of,
)
from bayplan.errors import BayplanError
from bayplan.kinds import KINDS_OF_WORKLOADS, templates_of

GROUP_OF_POLICIES = "/apis/admissionregistration.k8s.io/v1"
EXAMPLES = ROOT / "configs" / "examples"
PODS, JOBS = "/api/v1/namespaces/{}/pods", "/apis/batch/v1/namespaces/{}/jobs"
FACTS_PATH = f"/api/v1/namespaces/bayplan-system/configmaps/{FACTS}"
GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
PERCENTAGE, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
REQUIRED = "kueue.x-k8s.io/podset-required-topology"
PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
CREATIONS = 1000


@pytest.fixture(scope="module")
def policies(plane: ControlPlane, installed: LiveCluster) -> Iterator[ControlPlane]:
    """The policies, with what the test cluster's namespaces say; gone at the end."""
    client = plane.client
    defaults = Defaults(resources=(GPU, MEMORY), pods=True)
    contents = [*mutating_policies(defaults), *validating_policies(defaults)]
    labels = {SCHEDULER: "bayplan", QUEUE_OF_NAMESPACE: "research"}
    for name, given in {"moved": labels, "plain": {}}.items():
        client.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": given}})
    for one in contents:
        answer = client.post(f"{GROUP_OF_POLICIES}/{plural(one)}", one, fieldValidation="Strict")
        assert answer.code == 201, answer
        assert not answer.warnings
    # The API server takes a moment to read them.
    probe = pod("probe", annotations={"gpu-fraction": "2"})
    wait_until(lambda: create(plane, PODS, probe).code == 403, "refusals are in force")
    wait_until(
        lambda: create(plane, PODS, pod("p"), "moved").json["spec"]["schedulerName"] == "bayplan",
        "defaults are in force",
    )
    grouped = Stored(plane, PODS, pod("grouped", labels={GROUP: "g"}, annotations={TOTAL: "2"}))
    wait_until(lambda: grouped.refused(labels={GROUP: "h"}), "refusals of changes are in force")
    grouped.delete()
    yield plane
    for one in reversed(contents):
        assert (
            client.delete(f"{GROUP_OF_POLICIES}/{plural(one)}/{one['metadata']['name']}").code
            == 200
        )
    for name in ("moved", "plain"):
        client.delete(f"/api/v1/namespaces/{name}")
    client.delete(FACTS_PATH)
    wait_until(lambda: create(plane, PODS, probe, "default").code == 201, "nothing is refused")
    wait_until(lambda: is_as_written(plane), "nothing is filled in")


def is_as_written(plane: ControlPlane) -> bool:
    """Return whether no policy changes a pod that all of them would change."""
    found = create(plane, PODS, pod("p", {MEMORY: "1"}), "default").json["spec"]
    limits = found["containers"][0]["resources"]["limits"]
    return found["schedulerName"] == "default-scheduler" and GPU not in limits


def plural(content: Content) -> str:
    """Return the name of the collection of a policy, or of a binding."""
    name: str = content["kind"].lower()
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def create(
    plane: ControlPlane, collection: str, content: Content, namespace: str = "plain"
) -> Answer:
    """Ask the server what it would make of an object."""
    return plane.client.post(collection.format(namespace), content, dryRun="All")


def pod(name: str, limits: Content | None = None, **metadata: Any) -> Content:
    container = {"name": "c", "image": "x", "resources": {"limits": limits or {}}}
    metadata = {"name": name, **metadata}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container]},
    }


def job(
    queue: str = "",
    parallelism: int = 1,
    asks: Content | None = None,
    limits: Content | None = None,
) -> Content:
    template = pod("x", limits)
    template["spec"]["restartPolicy"] = "Never"
    spec = {
        "parallelism": parallelism,
        "completions": parallelism,
        "template": {"metadata": {"annotations": asks or {}}, "spec": template["spec"]},
    }
    labels = {QUEUE_LABEL: queue} if queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "plain", "labels": labels},
        "spec": spec,
    }


# Defaults ------------------------------------------------------------------------------------


def test_a_pod_gets_its_scheduler_by_label_namespace_or_resource(policies: ControlPlane) -> None:
    def scheduler(content: Content, namespace: str = "plain") -> str:
        answer = create(policies, PODS, content, namespace)
        assert answer.code == 201, answer
        found: str = answer.json["spec"]["schedulerName"]
        return found

    assert scheduler(pod("p")) == "default-scheduler"
    assert scheduler(pod("p"), "moved") == "bayplan"
    assert scheduler(pod("p", {GPU: "1"})) == "bayplan"
    assert scheduler(pod("p", {MEMORY: "1000"})) == "bayplan"
    assert scheduler(pod("p", {GPU: "1"}, labels={SCHEDULER: "other"}), "moved") == "other"
    assert scheduler(pod("p"), "kube-system") == "default-scheduler"
    named = pod("p")
    named["spec"]["schedulerName"] = "volcano"
    assert scheduler(named, "moved") == "volcano"
    daemon = pod("p", ownerReferences=[owner("DaemonSet")])
    assert scheduler(daemon, "moved") == "default-scheduler"


def owner(kind: str) -> Content:
    return {"apiVersion": "apps/v1", "kind": kind, "name": "d", "uid": "u", "controller": True}


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"cpu": "1"},
        {MEMORY: "1000"},
        {CORES: "30"},
        {PERCENTAGE: "50"},
        {MEMORY: "1000", GPU: "2"},
        {GPU: "1", CORES: "100"},
    ],
    ids=str,
)
def test_a_container_gets_the_count_that_hami_would_give_it(
    policies: ControlPlane, limits: dict[str, str]
) -> None:
    read = decode_json(KINDS["", "Pod"], "v1", json.dumps(pod("p", limits)).encode())
    assert isinstance(read, Pod)
    rules = RequestRules(whole_gpus_are_exclusive=False)
    expected = admitted(read.spec.containers[0].resources, rules).limits
    answer = create(policies, PODS, pod("p", limits))
    assert answer.code == 201, answer
    made = decode_json(KINDS["", "Pod"], "v1", answer.body)
    assert isinstance(made, Pod)
    resources = made.spec.containers[0].resources
    assert resources.limits == expected
    assert resources.requests.get(GPU) == expected.get(GPU)


def workload(kind: Kind) -> Content:
    """Return an object of a kind as users write it, without what it says of queues."""
    for path in sorted((EXAMPLES / "kinds").glob("*.yaml")):
        for content in documents(path):
            group = content["apiVersion"].rpartition("/")[0]
            if (group, content["kind"]) == (kind.group, kind.name):
                content["spec"].get("runPolicy", {}).pop("suspend", None)
                content["spec"].pop("suspend", None)
                return content
    api = f"{kind.group}/{kind.versions[0]}"
    return {"apiVersion": api, "kind": kind.name, "metadata": {"name": "w"}, "spec": {}}


SUSPENDABLE = [key for key, row in KINDS_OF_WORKLOADS.items() if row.suspend and key in KINDS]


@pytest.mark.parametrize("key", SUSPENDABLE, ids=lambda key: key[1])
def test_a_job_of_a_namespace_with_a_queue_waits_in_it_from_the_start(
    policies: ControlPlane, key: tuple[str, str]
) -> None:
    row, kind = KINDS_OF_WORKLOADS[key], KINDS[key]
    content = job() if kind.name == "Job" else workload(kind)
    collection = f"/apis/{content['apiVersion']}/namespaces/{{}}/{kind.plural}"

    def made(namespace: str, **metadata: Any) -> Content:
        given = {**content, "metadata": {"name": "w", **metadata}}
        answer = create(policies, collection, given, namespace)
        assert answer.code == 201, answer
        found: Content = answer.json
        return found

    def suspended(found: Any) -> Any:
        for step in row.suspend.split("."):
            found = found.get(step, {})
        return found

    waits = made("moved")
    assert waits["metadata"]["labels"][QUEUE_LABEL] == "research"
    assert suspended(waits) is True
    other = made("moved", labels={QUEUE_LABEL: "other"})
    assert other["metadata"]["labels"][QUEUE_LABEL] == "other"
    assert suspended(made("plain", labels={QUEUE_LABEL: "other"})) is True
    free = made("plain")
    assert QUEUE_LABEL not in free["metadata"].get("labels", {})
    assert suspended(free) is not True
    # What a queued job makes is suspended by its owner, what others make is not.
    job_set = owner("JobSet") | {"apiVersion": "jobset.x-k8s.io/v1alpha2"}
    assert suspended(made("moved", ownerReferences=[job_set])) is not True
    cron = owner("CronJob") | {"apiVersion": "batch/v1"}
    assert suspended(made("moved", ownerReferences=[cron])) is True


# Refusals ------------------------------------------------------------------------------------

SHARES = [
    {"gpu-fraction": "0.5"},
    {"gpu-fraction": "1"},
    {"gpu-fraction": "0"},
    {"gpu-fraction": "half"},
    {"gpu-fraction": "1e-1"},
    {"gpu-fraction": "5" * 60},
    {"gpu-fraction": "0.5", "gpu-memory": "1"},
    {"gpu-memory": "1000"},
    {"gpu-memory": "0"},
    {"gpu-memory": "1Gi"},
    {"gpu-fraction-num-devices": "2"},
    {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
    {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"},
    {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "1025"},
    {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "a"},
    {"mps": "true"},
    {"mps": "false"},
]


def test_a_job_that_names_no_queue_waits_in_the_local_queue_default_where_there_is_one(
    policies: ControlPlane,
) -> None:
    queues = "/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/localqueues"
    unqueued = job()

    def waits(namespace: str) -> tuple[str, bool]:
        unqueued["metadata"]["namespace"] = namespace
        made = create(policies, JOBS, unqueued, namespace).json
        return made["metadata"].get("labels", {}).get(QUEUE_LABEL, ""), made["spec"]["suspend"]

    assert waits("plain") == ("", False)
    meta = {"name": "default", "namespace": "plain"}
    version = "kueue.x-k8s.io/v1beta2"
    queue = {"apiVersion": version, "kind": "LocalQueue", "metadata": meta}
    queue["spec"] = {"clusterQueue": "cq"}
    for namespace in ("plain", "moved"):
        meta["namespace"] = namespace
        assert policies.client.post(queues.format(namespace), queue).code == 201
    wait_until(lambda: waits("plain") == ("default", True), "the LocalQueue is known")
    assert waits("moved") == ("research", True)
    for namespace in ("plain", "moved"):
        policies.client.delete(f"{queues.format(namespace)}/default")
    wait_until(lambda: waits("plain") == ("", False), "the LocalQueue is gone")


def test_a_pod_that_names_no_queue_waits_gated_in_the_local_queue_default_where_there_is_one(
    policies: ControlPlane,
) -> None:
    queues = "/apis/kueue.x-k8s.io/v1beta2/namespaces/plain/localqueues"

    def waits() -> tuple[str, list[str]]:
        made = create(policies, PODS, pod("p"), "plain").json
        gates = [one["name"] for one in made["spec"].get("schedulingGates", ())]
        return made["metadata"].get("labels", {}).get(QUEUE_LABEL, ""), gates

    assert waits() == ("", [])
    meta = {"name": "default", "namespace": "plain"}
    version = "kueue.x-k8s.io/v1beta2"
    queue = {"apiVersion": version, "kind": "LocalQueue", "metadata": meta}
    queue["spec"] = {"clusterQueue": "cq"}
    assert policies.client.post(queues, queue).code == 201
    wait_until(lambda: waits() == ("default", [ADMISSION_GATE]), "the LocalQueue is known")
    named = pod("p", labels={QUEUE_LABEL: "q"})
    named["spec"]["schedulingGates"] = [{"name": "example.com/own"}]
    made = create(policies, PODS, named, "plain").json
    assert [one["name"] for one in made["spec"]["schedulingGates"]] == [
        "example.com/own",
        ADMISSION_GATE,
    ]
    assert made["metadata"]["labels"] == {QUEUE_LABEL: "q", "kueue.x-k8s.io/managed": "true"}
    assert "finalizers" not in made["metadata"]
    named["metadata"].update(name="grouped", labels={QUEUE_LABEL: "q", GROUP: "g"})
    named["metadata"]["annotations"] = {TOTAL: "2"}
    made = create(policies, PODS, named, "plain").json
    assert made["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
    policies.client.delete(f"{queues}/default")
    wait_until(lambda: waits() == ("", []), "the LocalQueue is gone")


def test_the_pods_of_a_deployment_are_in_its_queue(policies: ControlPlane) -> None:
    priority = "kueue.x-k8s.io/priority-class"
    labels = {"app": "d"}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    content = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "labels": {QUEUE_LABEL: "q", priority: "high"}},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }

    def labelled() -> Content:
        made = create(policies, "/apis/apps/v1/namespaces/{}/deployments", content).json
        found: Content = made["spec"]["template"]["metadata"]["labels"]
        return found

    assert labelled() == {**labels, QUEUE_LABEL: "q", priority: "high"}
    template["metadata"] = {"labels": {**labels, QUEUE_LABEL: "q"}}
    content["metadata"] = {"name": "d", "labels": {QUEUE_LABEL: "q"}}
    assert labelled() == {**labels, QUEUE_LABEL: "q"}
    content["metadata"] = {"name": "d"}
    template["metadata"] = {"labels": labels}
    assert labelled() == labels


@pytest.mark.parametrize("limits", [{}, {GPU: "1"}], ids=["no limit", "a limit"])
@pytest.mark.parametrize("annotations", SHARES, ids=str)
def test_a_share_is_refused_in_the_words_in_which_the_scheduler_would_leave_it_pending(
    policies: ControlPlane, annotations: dict[str, str], limits: dict[str, str]
) -> None:
    content = pod("p", limits, annotations=annotations)
    read = decode_json(KINDS["", "Pod"], "v1", json.dumps(content).encode())
    assert isinstance(read, Pod)
    expected = gpu_share_of(read)
    answer = create(policies, PODS, content)
    if isinstance(expected, str):
        assert answer.code == 403
        assert f"denied request: {expected}" in answer.json["message"]
    else:
        assert answer.code == 201, answer


@pytest.mark.parametrize("percentage", ["0", "100", "101", "-1"])
def test_a_percentage_is_refused_as_hami_would(policies: ControlPlane, percentage: str) -> None:
    content = pod("p", {GPU: "1", PERCENTAGE: percentage})
    read = decode_json(KINDS["", "Pod"], "v1", json.dumps(content).encode())
    assert isinstance(read, Pod)
    try:
        admitted(read.spec.containers[0].resources, RequestRules())
        said = ""
    except ValueError as exc:
        said = str(exc)
    answer = create(policies, PODS, content)
    assert (answer.code in (403, 422)) is bool(said)
    # Kubernetes itself refuses what is negative, before any policy.
    assert said in answer.json.get("message", "") or percentage == "-1"


@pytest.mark.parametrize(
    ("queue", "asks"),
    [
        ("research", {}),
        ("Research", {}),
        ("a.b-c", {}),
        ("research", {REQUIRED: "rack"}),
        ("research", {REQUIRED: "rack", PREFERRED: "block"}),
    ],
    ids=str,
)
def test_a_queued_job_is_refused_in_the_words_that_would_hold_it(
    policies: ControlPlane, queue: str, asks: dict[str, str]
) -> None:
    content = job(queue, asks=asks)
    read = decode_json(KINDS["batch", "Job"], "v1", json.dumps(content).encode())
    assert isinstance(read, Job)
    templates = tuple(templates_of(KINDS_OF_WORKLOADS["batch", "Job"], content))
    expected = [str(one) for one in refusals_of(read, content, templates)]
    answer = create(policies, JOBS, content)
    if expected:
        assert answer.code == 403
        assert f"denied request: {expected[0]}" in answer.json["message"]
    else:
        assert answer.code == 201, answer


# Changes -------------------------------------------------------------------------------------

PRIORITY = "kueue.x-k8s.io/priority-class"
GATES = "kueue.x-k8s.io/admission-gated-by"
GROUP, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
BY_BAYPLAN = {"Impersonate-User": "system:serviceaccount:bayplan-system:bayplan-scheduler"}


class Stored:
    """An object on the server, of which changes are tried."""

    def __init__(self, plane: ControlPlane, collection: str, content: Content) -> None:
        self._client = plane.client
        made = self._client.post(collection.format("plain"), content)
        assert made.code == 201, made
        self.path = f"{collection.format('plain')}/{made.json['metadata']['name']}"

    def change(self, patch: Content, part: str = "") -> None:
        answer = self._client.patch(f"{self.path}{part}", patch)
        assert answer.code == 200, answer

    def refused(self, headers: dict[str, str] | None = None, **metadata: Any) -> str:
        """Return what a change of labels or annotations is refused with, '' if it is not."""
        kind = "application/merge-patch+json"
        patch = {"metadata": metadata}
        answer = self._client.call("PATCH", self.path, patch, kind, headers, dryRun="All")
        assert answer.code in (200, 403), answer
        said: str = answer.json["message"] if answer.code == 403 else ""
        return said.partition("denied request: ")[2]

    def delete(self) -> None:
        self._client.delete(self.path, gracePeriodSeconds=0, propagationPolicy="Background")


@pytest.fixture
def stored(policies: ControlPlane) -> Iterator[Callable[[str, Content], Stored]]:
    made: list[Stored] = []

    def make(collection: str, content: Content) -> Stored:
        made.append(Stored(policies, collection, content))
        return made[-1]

    yield make
    for one in made:
        one.delete()


def queue_label(change: str) -> str:
    return f"metadata.labels[{QUEUE_LABEL}]: Invalid value: {change}"


def test_the_expressions_fit_the_kinds_that_they_are_about(policies: ControlPlane) -> None:
    def found() -> list[Content]:
        items = policies.client.get(f"{GROUP_OF_POLICIES}/validatingadmissionpolicies").json[
            "items"
        ]
        return [one for one in items if one["metadata"]["name"].startswith("bayplan-")]

    def is_checked() -> bool:
        return all(one.get("status", {}).get("observedGeneration") for one in found())

    wait_until(is_checked, "the server has checked the types")
    checked = {one["metadata"]["name"]: one["status"].get("typeChecking", {}) for one in found()}
    assert {name: one for name, one in checked.items() if one.get("expressionWarnings")} == {}


@pytest.mark.parametrize("key", SUSPENDABLE, ids=lambda key: key[1])
def test_a_job_changes_its_queue_only_while_it_waits(
    policies: ControlPlane, stored: Callable[[str, Content], Stored], key: tuple[str, str]
) -> None:
    row, kind = KINDS_OF_WORKLOADS[key], KINDS[key]
    content = job() if kind.name == "Job" else workload(kind)
    collection = f"/apis/{content['apiVersion']}/namespaces/{{}}/{kind.plural}"
    name = f"changes-{kind.name.lower()}"
    metadata = {"name": name, "labels": {QUEUE_LABEL: "a", PRIORITY: "high"}}
    made = stored(collection, {**content, "metadata": metadata})
    assert made.refused(labels={QUEUE_LABEL: "b"}) == ""
    assert made.refused(labels={QUEUE_LABEL: None}) == ""
    assert made.refused(labels={PRIORITY: "low"}) == ""
    assert Why.CLASS_GONE in made.refused(labels={PRIORITY: None})
    assert Why.SUBDOMAIN in made.refused(labels={QUEUE_LABEL: "A"})
    patch: Any = False
    for step in reversed(row.suspend.split(".")):
        patch = {step: patch}
    made.change(patch)
    assert made.refused(labels={QUEUE_LABEL: "b"}) == queue_label(Why.RUNS)
    assert made.refused(labels={QUEUE_LABEL: None}) == queue_label(Why.RUNS)
    assert made.refused(labels={PRIORITY: "low"}) == ""
    assert made.refused(BY_BAYPLAN, labels={QUEUE_LABEL: "b"}) == ""


def test_what_else_of_a_running_job_does_not_change(
    stored: Callable[[str, Content], Stored],
) -> None:
    content = job("a")
    content["metadata"] |= {"name": "changes", "annotations": {GATES: "x.io/a,x.io/b"}}
    waits = stored(JOBS, content)
    assert waits.refused(annotations={GATES: "x.io/b"}) == ""
    assert waits.refused(annotations={GATES: None}) == ""
    assert Why.NEW_GATE in waits.refused(annotations={GATES: "x.io/b,x.io/c"})
    assert Why.IMMUTABLE in waits.refused(annotations={ELASTIC_ANNOTATION: "true"})
    assert waits.refused(labels={LONGEST_TIME: "60"}) == ""
    assert Why.SECONDS in waits.refused(labels={LONGEST_TIME: "0"})
    waits.change({"metadata": {"annotations": {GATES: None}}})
    assert Why.NEW_GATE in waits.refused(annotations={GATES: "x.io/a"})
    assert Why.DOMAIN_PATH not in waits.refused(annotations={GATES: "x.io/a"})
    waits.change({"spec": {"suspend": False}})
    assert Why.RUNS in waits.refused(labels={LONGEST_TIME: "60"})
    assert Why.CLASS_LATE in waits.refused(labels={PRIORITY: "high"})
    assert Why.RUNS in waits.refused(annotations={PREBUILT: "w"})
    assert waits.refused(labels={"team": "a"}, annotations={"note": "b"}) == ""


def test_a_job_leaves_no_namespace_with_a_default_queue_without_one(
    policies: ControlPlane, stored: Callable[[str, Content], Stored]
) -> None:
    content = job("a")
    content["metadata"]["name"] = "leaves"
    waits = stored(JOBS, content)
    assert waits.refused(labels={QUEUE_LABEL: None}) == ""
    version = "kueue.x-k8s.io/v1beta2"
    queue = {"apiVersion": version, "kind": "LocalQueue", "metadata": {"name": "default"}}
    stored(f"/apis/{version}/namespaces/{{}}/localqueues", {**queue, "spec": {"clusterQueue": "c"}})
    wait_until(lambda: waits.refused(labels={QUEUE_LABEL: None}), "the LocalQueue is known")
    assert waits.refused(labels={QUEUE_LABEL: None}) == queue_label(Why.DEFAULT_QUEUE)
    assert waits.refused(labels={QUEUE_LABEL: "b"}) == ""


@pytest.mark.parametrize(
    "key",
    [
        ("apps", "Deployment"),
        ("apps", "StatefulSet"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    ],
    ids=lambda key: key[1],
)
def test_a_set_stays_in_a_queue_and_with_ready_pods_in_the_same(
    stored: Callable[[str, Content], Stored], key: tuple[str, str]
) -> None:
    kind = KINDS[key]
    template = {"metadata": {"labels": {"app": "s"}}, "spec": pod("x")["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "s"}}, "template": template}
    if kind.name == "LeaderWorkerSet":
        spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}
    api = f"{kind.group}/v1"
    content = {"apiVersion": api, "kind": kind.name, "spec": spec}
    labels = {QUEUE_LABEL: "a", PRIORITY: "high"}
    collection = f"/apis/{api}/namespaces/{{}}/{kind.plural}"
    made = stored(collection, {**content, "metadata": {"name": "stays", "labels": labels}})
    assert made.refused(labels={QUEUE_LABEL: "b"}) == ""
    assert made.refused(labels={QUEUE_LABEL: None}) == queue_label(Why.QUEUE_GONE)
    assert Why.CLASS_GONE in made.refused(labels={PRIORITY: None})
    assert Why.NOT_ELASTIC in made.refused(annotations={ELASTIC_ANNOTATION: "true"})
    if kind.name == "LeaderWorkerSet":
        # No controller of its own is here that would say otherwise.
        made.change({"status": {"readyReplicas": 1}}, "/status")
        assert made.refused(labels={QUEUE_LABEL: "b"}) == queue_label(Why.RUNS)


def test_a_pod_on_a_node_stays_in_its_queue_and_in_its_group(
    stored: Callable[[str, Content], Stored],
) -> None:
    group = {"labels": {QUEUE_LABEL: "a", GROUP: "g"}, "annotations": {TOTAL: "2"}}
    waits = stored(PODS, pod("waits", **group))
    assert waits.refused(labels={QUEUE_LABEL: "b"}) == ""
    assert Why.IMMUTABLE in waits.refused(labels={GROUP: "h"})
    content = pod("placed", **group)
    content["spec"]["nodeName"] = "n-of-nobody"
    placed = stored(PODS, content)
    assert placed.refused(labels={QUEUE_LABEL: "b"}) == queue_label(Why.RUNS)
    assert placed.refused(labels={"team": "a"}) == ""


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"labels": {GROUP: "g"}, "annotations": {TOTAL: "2"}}, ""),
        ({"labels": {GROUP: "g"}}, Why.GROUP_AND_TOTAL),
        ({"annotations": {TOTAL: "2"}}, Why.GROUP_AND_TOTAL),
        ({"labels": {GROUP: "g"}, "annotations": {TOTAL: "0"}}, Why.PODS),
        ({"labels": {GROUP: "A"}, "annotations": {TOTAL: "2"}}, Why.SUBDOMAIN),
        ({"labels": {GROUP: "g", PREBUILT: "h"}, "annotations": {TOTAL: "2"}}, Why.OF_GROUP),
        ({"labels": {"kueue.x-k8s.io/managed": "yes"}}, Why.TRUE),
    ],
    ids=str,
)
def test_a_pod_of_a_group_that_cannot_be_is_refused(
    policies: ControlPlane, metadata: Content, why: str
) -> None:
    answer = create(policies, PODS, pod("p", **metadata))
    assert answer.code == (403 if why else 201), answer
    assert why in answer.json.get("message", "")


# Warnings ------------------------------------------------------------------------------------


@pytest.fixture
def facts(policies: ControlPlane, real: LiveCluster) -> ControlPlane:
    """A cluster of two racks of two nodes with eight GPUs, and a queue, whose facts are read."""
    meta = {"name": "research", "namespace": "default"}
    queue = {"clusterQueue": "c"}
    version = KINDS["kueue.x-k8s.io", "LocalQueue"].versions[0]
    real.apply(
        [
            *(gpu_node(f"n-{i}", f"rack-{i // 2}") for i in range(4)),
            {
                "apiVersion": f"kueue.x-k8s.io/{version}",
                "kind": "LocalQueue",
                "metadata": meta,
                "spec": queue,
            },
            {
                "apiVersion": f"kueue.x-k8s.io/{version}",
                "kind": "Topology",
                "metadata": {"name": "t"},
                "spec": {
                    "levels": [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
                },
            },
        ]
    )
    read_facts(policies)
    wait_until(lambda: warnings(policies, job("no-such")), "the server has read the facts")
    return policies


def read_facts(plane: ControlPlane) -> None:
    done = CliRunner().invoke(command, ["facts", "--write", "--kubeconfig", str(plane.kubeconfig)])
    assert done.exit_code == 0, (done.output, done.exception)


def test_jobs_of_a_queue_that_sends_them_elsewhere_say_so(
    facts: ControlPlane, real: LiveCluster
) -> None:
    version = f"kueue.x-k8s.io/{KINDS['kueue.x-k8s.io', 'LocalQueue'].versions[0]}"

    def made(kind: str, name: str, spec: Content, **meta: str) -> Content:
        head = {"apiVersion": version, "kind": kind, "metadata": {"name": name, **meta}}
        return {**head, "spec": spec}

    check = {"controllerName": MULTI_CLUSTER_CONTROLLER}
    checks = {"admissionChecksStrategy": {"admissionChecks": [{"name": "elsewhere"}]}}
    real.apply(
        [
            made("AdmissionCheck", "elsewhere", check),
            made("ClusterQueue", "far", {"namespaceSelector": {}, **checks}),
            made("LocalQueue", "far", {"clusterQueue": "far"}, namespace="default"),
            made("LocalQueue", "default", {"clusterQueue": "far"}, namespace="plain"),
        ]
    )
    read_facts(facts)

    def managed_by(queue: str, **own: str) -> str:
        content = job(queue)
        content["metadata"].pop("namespace")
        content["spec"] |= own
        answer = create(facts, JOBS, content, "default")
        assert answer.code == 201, answer
        found: str = answer.json["spec"].get("managedBy", "")
        return found

    wait_until(lambda: managed_by("far") == MULTI_CLUSTER_CONTROLLER, "the queue is known")
    assert managed_by("research") == managed_by("") == ""
    own = "kubernetes.io/job-controller"
    assert managed_by("far", managedBy=own) == MULTI_CLUSTER_CONTROLLER
    assert managed_by("far", managedBy="example.com/own") == "example.com/own"
    nameless = create(facts, JOBS, job(), "plain").json["spec"]
    assert nameless["managedBy"] == MULTI_CLUSTER_CONTROLLER
    queues = "/apis/kueue.x-k8s.io/v1beta2/namespaces/plain/localqueues"
    facts.client.delete(f"{queues}/default")
    wait_until(
        lambda: not create(facts, JOBS, job(), "plain").json["spec"]["suspend"],
        "the LocalQueue default is gone",
    )


def gpu_node(name: str, rack: str) -> Content:
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"rack": rack, "kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room},
    }


def warnings(plane: ControlPlane, content: Content, collection: str = JOBS) -> list[str]:
    """Return what is said of an object that is accepted all the same, without the policy's name."""
    content = json.loads(json.dumps(content))
    content["metadata"].pop("namespace", None)
    answer = create(plane, collection, content, "default")
    assert answer.code == 201, answer
    return [
        text.strip('"').replace('\\"', '"').split("': ", 1)[-1].rpartition(" (as of ")[0]
        for text in answer.warnings
    ]


def test_what_can_never_work_is_said_at_creation_and_accepted(facts: ControlPlane) -> None:
    rack = {REQUIRED: "rack"}
    known = "research"
    assert warnings(facts, job()) == []
    assert warnings(facts, job(known, 2, rack, {GPU: "8"})) == []
    assert warnings(facts, job("no-such")) == [
        'waiting for LocalQueue "no-such", which does not exist'
    ]
    assert warnings(facts, job(known, 3, rack, {GPU: "8"})) == [
        "will never fit: needs 24 nvidia.com/gpu in one rack, the largest has 16"
    ]
    assert warnings(facts, job(known, 1, {REQUIRED: "row"}, {GPU: "8"})) == [
        'no Topology has the level "row" that its pods require'
    ]
    assert warnings(facts, pod("p", {GPU: "9"}), PODS) == [
        "will never fit: a pod needs 9 nvidia.com/gpu, the largest node has 8"
    ]
    queued = pod("p", labels={"kai.scheduler/queue": "no-such"})
    assert warnings(facts, queued, PODS) == ['waiting for Queue "no-such", which does not exist']


def test_without_facts_nothing_is_warned_of(policies: ControlPlane) -> None:
    policies.client.delete(FACTS_PATH)
    wait_until(lambda: not warnings(policies, job("no-such")), "the facts are gone")
    assert warnings(policies, pod("p", {GPU: "9"}), PODS) == []


def test_facts_that_are_not_all_known_are_not_written(real: LiveCluster) -> None:
    (rule,) = (r for r in only("ClusterRole")["rules"] if "localqueues" in r.get("resources", ()))
    given = ["facts", "--write", "--kubeconfig", str(real.kubeconfig)]
    with role_without(real, rule):
        done = CliRunner().invoke(command, given)
    assert isinstance(done.exception, BayplanError)
    assert "localqueues.kueue.x-k8s.io is forbidden" in str(done.exception)
    assert real.client.get(FACTS_PATH).code == 404


# Load ----------------------------------------------------------------------------------------


def test_a_thousand_creations_at_once_all_get_their_defaults(
    facts: ControlPlane,
) -> None:
    def made(namespace: str) -> float:
        def one(number: int) -> Answer:
            return facts.client.post(
                PODS.format(namespace), pod(f"p-{number}", {MEMORY: "1000"}), dryRun="All"
            )

        started = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(one, range(CREATIONS)))
        seconds = time.perf_counter() - started
        assert {answer.code for answer in answers} == {201}
        changed = [a.json["spec"]["schedulerName"] == "bayplan" for a in answers]
        counts = [a.json["spec"]["containers"][0]["resources"]["limits"].get(GPU) for a in answers]
        assert all(changed) is (namespace == "moved")
        assert set(counts) == ({"1"} if namespace == "moved" else {None})
        return seconds

    # No policy of defaults is about kube-system, so it is the same without them.
    without, with_all = made("kube-system"), made("moved")
    print(f"{CREATIONS} creations: {without:.1f} s without defaults, {with_all:.1f} s with them")

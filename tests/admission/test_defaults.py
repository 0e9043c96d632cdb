"""What policies fill in of pods in Kueue's queues, evaluated by bayplan's own CEL."""

from __future__ import annotations

from typing import Any

import pytest
from tests.admission.evaluated_policies import mutated, watches

from bayplan.admission import Defaults, mutating_policies
from bayplan.dialects.kueue import ADMISSION_GATE, GROUP_LABEL
from bayplan.dialects.queued_job_checks import QUEUE_LABEL

Content = dict[str, Any]
MANAGED = "kueue.x-k8s.io/managed"
OFFSET = "kueue.x-k8s.io/pod-index-offset"


def pod(owner: str = "", **spec: Any) -> Content:
    meta: Content = {"name": "p", "namespace": "n"}
    if owner:
        version = "batch/v1" if owner == "Job" else "apps/v1"
        meta["ownerReferences"] = [
            {"apiVersion": version, "kind": owner, "name": "o", "uid": "o", "controller": True}
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [], **spec}}


def defaulted(content: Content, pods: bool = True, has_queue: bool = True) -> Content:
    """Return a pod as the policies leave it.

    :param has_queue: whether its namespace has a LocalQueue ``default``.
    """
    for policy in mutating_policies(Defaults(pods=pods)):
        of_queue = policy["spec"].get("paramKind", {}).get("kind") == "LocalQueue"
        is_policy = policy["kind"] == "MutatingAdmissionPolicy"
        if is_policy and watches(policy, "", "pods") and (has_queue or not of_queue):
            params = {"metadata": {"name": "default"}} if of_queue else {}
            content = mutated(policy, content, {"metadata": {"name": "n"}}, params)
    return content


def in_queue(content: Content, queue: str) -> Content:
    return {**content, "metadata": {**content["metadata"], "labels": {QUEUE_LABEL: queue}}}


def gated(content: Content, queue: str, *before: str) -> Content:
    gates = [{"name": name} for name in (*before, ADMISSION_GATE)]
    labels = {QUEUE_LABEL: queue, MANAGED: "true"}
    metadata = {**content["metadata"], "labels": labels}
    return {
        **content,
        "metadata": metadata,
        "spec": {**content["spec"], "schedulingGates": gates},
    }


def settled(content: Content, **options: bool) -> Content:
    """Return a pod after the policies were invoked again, as the API server does."""
    return defaulted(defaulted(content, **options), **options)


def test_a_pod_gets_the_default_queue_and_the_gate_where_pods_are_an_integration() -> None:
    assert settled(pod()) == gated(pod(), "default")
    assert settled(pod(), has_queue=False) == pod()
    assert settled(pod(), pods=False) == pod()


def test_a_pod_that_names_a_queue_keeps_it_and_gets_the_gate_beside_its_own() -> None:
    named = in_queue(pod(schedulingGates=[{"name": "a"}]), "q")
    assert settled(named) == gated(named, "q", "a")
    assert settled(named, pods=False) == named


@pytest.mark.parametrize("owner", ["ReplicaSet", "StatefulSet", "Job", "DaemonSet"])
def test_pods_of_others_get_their_queue_from_the_scheduler_which_knows_their_owners(
    owner: str,
) -> None:
    assert settled(pod(owner)) == pod(owner)


def test_pods_of_jobs_and_daemon_sets_are_not_gated() -> None:
    for owner, is_gated in {"ReplicaSet": True, "Job": False, "DaemonSet": False}.items():
        named = in_queue(pod(owner), "q")
        assert settled(named) == (gated(named, "q") if is_gated else named)


PARENT = "kueue.x-k8s.io/pod-suspending-parent"


def test_a_pod_that_waits_with_what_made_it_is_gated_whatever_the_integrations() -> None:
    named = pod("StatefulSet")
    named["metadata"] |= {"labels": {"app": "s"}, "annotations": {PARENT: "statefulset"}}
    found = settled(named, pods=False)
    assert found["spec"]["schedulingGates"] == [{"name": ADMISSION_GATE}]
    assert found["metadata"]["labels"] == {"app": "s", MANAGED: "true"}


def template(**annotations: str) -> Content:
    meta = {"metadata": {"annotations": annotations}} if annotations else {}
    return {**meta, "spec": {"containers": []}}


def of_kind(kind: str, *templates: Content, ready: int = 0) -> Content:
    spec: Content = {"template": templates[0]}
    group = "apps"
    if kind == "LeaderWorkerSet":
        group = "leaderworkerset.x-k8s.io"
        names = ("workerTemplate", "leaderTemplate")
        spec = {"leaderWorkerTemplate": dict(zip(names, templates, strict=False))}
    meta = {"name": "s", "namespace": "n", "labels": {QUEUE_LABEL: "q"}}
    status = {"readyReplicas": ready}
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def waiting(content: Content, old: Content | None = None) -> Content:
    """Return what is never suspended as the policies leave it."""
    for policy in mutating_policies(Defaults()):
        name = policy["metadata"]["name"]
        if name == f"bayplan-waiting-pods-of-{content['kind'].lower()}s" and "mutations" in str(
            policy["spec"]
        ):
            content = mutated(policy, content, {"metadata": {"name": "n"}}, {}, old)
    return content


@pytest.mark.parametrize(
    ("kind", "integration"),
    [
        ("StatefulSet", "statefulset"),
        ("LeaderWorkerSet", "leaderworkerset.x-k8s.io/leaderworkerset"),
    ],
)
def test_templates_of_what_is_never_suspended_have_their_pods_wait(
    kind: str, integration: str
) -> None:
    marked = template(**{PARENT: integration})
    for given in (template(), template(a="b")):
        own = given.get("metadata", {}).get("annotations", {})
        expected = template(**own, **{PARENT: integration})
        assert waiting(of_kind(kind, given)) == of_kind(kind, expected)
    assert waiting(of_kind(kind, marked)) == of_kind(kind, marked)
    assert waiting(of_kind(kind, template()), of_kind(kind, template())) == of_kind(kind, marked)


def test_each_template_of_a_leader_worker_set_has_its_pods_wait() -> None:
    parent = {PARENT: "leaderworkerset.x-k8s.io/leaderworkerset"}
    leader, worker = template(**parent), template(**parent, **{OFFSET: "1"})
    given = of_kind("LeaderWorkerSet", template(), template())
    assert waiting(given) == of_kind("LeaderWorkerSet", worker, leader)
    assert waiting(waiting(given)) == waiting(given)


def test_workers_in_one_group_with_their_leader_have_its_indices() -> None:
    together = {"kueue.x-k8s.io/podset-group-name": "g"}
    given = of_kind("LeaderWorkerSet", template(**together), template(**together))
    assert OFFSET not in str(waiting(given))


@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_a_pod_of_a_group_is_kept_until_it_has_been_counted(where: str) -> None:
    grouped = in_queue(pod(), "q")
    grouped["metadata"].setdefault(where, {})[GROUP_LABEL] = "g"
    found = settled(grouped)["metadata"]
    assert found["finalizers"] == [MANAGED]
    grouped["metadata"]["finalizers"] = ["example.com/own"]
    assert settled(grouped)["metadata"]["finalizers"] == ["example.com/own", MANAGED]
    grouped["metadata"].setdefault("annotations", {})[PARENT] = "statefulset"
    assert settled(grouped)["metadata"]["finalizers"] == ["example.com/own"]


def test_a_set_with_ready_pods_or_without_a_queue_is_left_as_it_is() -> None:
    ready = of_kind("StatefulSet", template(), ready=1)
    assert waiting(ready, ready) == ready
    free = of_kind("StatefulSet", template())
    free["metadata"].pop("labels")
    assert waiting(free) == free


@pytest.mark.parametrize(
    ("version", "owner", "waits"),
    [
        ("batch/v1", "CronJob", True),
        ("argoproj.io/v1alpha1", "Workflow", True),
        ("batch.volcano.sh/v1alpha1", "Job", True),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", False),
        ("workload.codeflare.dev/v1beta2", "AppWrapper", False),
    ],
)
def test_a_job_is_suspended_unless_another_job_makes_it(
    version: str, owner: str, waits: bool
) -> None:
    made_by = {"apiVersion": version, "kind": owner, "name": "o", "uid": "o", "controller": True}
    meta = {"name": "j", "namespace": "n", "ownerReferences": [made_by]}
    job: Content = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {}}
    found = in_queue(job, "q")
    for policy in mutating_policies(Defaults()):
        if (
            policy["metadata"]["name"] == "bayplan-suspend-suspend"
            and "mutations" in policy["spec"]
        ):
            found = mutated(policy, found, {"metadata": {"name": "n"}}, {})
    assert found["spec"] == ({"suspend": True} if waits else {})


def test_a_pod_with_a_node_gets_neither() -> None:
    assert settled(pod(nodeName="x")) == pod(nodeName="x")
    assert settled(in_queue(pod(nodeName="x"), "q")) == in_queue(pod(nodeName="x"), "q")

"""What becomes of a job in another cluster: its copy, forecasts, and the rights for both."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.live.deployed import DEPLOY, documents
from tests.paths import ROOT

from bayplan.api import KINDS, ApiObject, ClusterQueue
from bayplan.api.kueue import KueueWorkload, MultiKueueConfig
from bayplan.api.objects import decode_object, decode_part
from bayplan.errors import InputError
from bayplan.kinds import KINDS_OF_WORKLOADS
from bayplan.live.multikueue.cluster_profiles import kubeconfig_of
from bayplan.live.multikueue.forecast import Forecast, forecast
from bayplan.live.multikueue.jobs import (
    JobReference,
    copy_of,
    is_managed,
    is_suspended,
    pod_copy_of,
    status_of_copy,
    status_without_copy,
)
from bayplan.live.multikueue.quotas import AUTOMATION, Automated, automated, nominal_quotas
from bayplan.profiles.loading import default_profiles

Content = dict[str, Any]

RIGHTS = ROOT / "configs" / "multikueue"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
JOB = KINDS_OF_WORKLOADS["batch", "Job"]


def job(pods: int = 2, **spec: Any) -> Content:
    """A Job as the API server has it."""
    labels = {"controller-uid": "u", "batch.kubernetes.io/job-name": "train", "app": "train"}
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"labels": labels},
        "spec": {"schedulerName": "bayplan", "restartPolicy": "Never", "containers": [container]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "train",
            "namespace": "default",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {"kueue.x-k8s.io/queue-name": "q"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"},
            "managedFields": [{}],
        },
        "spec": {
            "suspend": True,
            "managedBy": MULTIKUEUE,
            "parallelism": pods,
            "completions": pods,
            "selector": {"matchLabels": {"controller-uid": "u"}},
            "template": template,
            **spec,
        },
        "status": {"active": 1},
    }


def test_a_copy_has_what_its_user_wrote_and_says_whose_it_is() -> None:
    made = copy_of(JOB, job(), "here")
    assert made["metadata"] == {
        "name": "train",
        "namespace": "default",
        "labels": {
            "kueue.x-k8s.io/queue-name": "q",
            "kueue.x-k8s.io/multikueue-origin": "here",
        },
        "annotations": {"a": "b", "kueue.x-k8s.io/multikueue-origin-uid": "u"},
    }
    assert made["spec"].keys() == {"suspend", "parallelism", "completions", "template"}
    assert made["spec"]["template"]["metadata"]["labels"] == {"app": "train"}
    assert "status" not in made


def test_a_selector_of_the_users_own_stays() -> None:
    content = job(manualSelector=True)
    assert copy_of(JOB, content, "here")["spec"]["selector"] == content["spec"]["selector"]


@pytest.mark.parametrize(
    ("where", "path"),
    [
        (("jobset.x-k8s.io", "JobSet"), ()),
        (("kubeflow.org", "PyTorchJob"), ("runPolicy",)),
        (("kubeflow.org", "MPIJob"), ("runPolicy",)),
        (("trainer.kubeflow.org", "TrainJob"), ()),
        (("ray.io", "RayJob"), ()),
    ],
)
def test_each_kind_says_in_its_own_place_who_makes_its_pods(
    where: tuple[str, str], path: tuple[str, ...]
) -> None:
    row = KINDS_OF_WORKLOADS[where]
    own = {"managedBy": MULTIKUEUE, "suspend": True}
    spec: Content = {path[0]: own, "x": 1} if path else {**own, "x": 1}
    content = {"apiVersion": "v1", "kind": row.name, "metadata": job()["metadata"], "spec": spec}
    assert is_managed(row, content)
    assert is_suspended(row, content)
    made = copy_of(row, content, "here")
    assert not is_managed(row, made)
    assert is_suspended(row, made)
    assert made["spec"]["x"] == 1


@pytest.mark.parametrize(
    ("owner", "found"),
    [
        ({"apiVersion": "batch/v1", "kind": "Job"}, True),
        ({"apiVersion": "v1", "kind": "Pod"}, True),
        ({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}, False),
        ({"apiVersion": "example.com/v1", "kind": "Job"}, False),
    ],
)
def test_only_jobs_that_can_be_made_elsewhere_go(owner: Content, found: bool) -> None:
    references = [{**owner, "name": "train", "uid": "u", "controller": True}]
    meta = {"name": "w", "namespace": "default", "ownerReferences": references}
    workload = decode_part(KueueWorkload, {"metadata": meta})
    assert (JobReference.of(workload) is not None) is found


def test_the_first_to_start_is_best_then_the_one_that_evicts_least() -> None:
    waits = Forecast("a", None, why="no quota")
    late, evicts, best = Forecast("b", 30.0), Forecast("c", 0.0, 2), Forecast("d", 0.0, 1)
    found = sorted([waits, late, evicts, best], key=lambda one: one.order)
    assert found == [best, evicts, late, waits]
    assert list(map(str, found)) == [
        "d: starts now, evicts 1 pod",
        "c: starts now, evicts 2 pods",
        "b: starts in 30 s",
        "a: waits: no quota",
    ]


def cluster(cores: int) -> list[ApiObject]:
    """A cluster of one node with a queue of ten cores."""
    kueue = "kueue.x-k8s.io"
    flavor = {"name": "f", "resources": [{"name": "cpu", "nominalQuota": 10}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [flavor]}]
    amounts = {"cpu": str(cores), "memory": "8Gi", "pods": "110"}
    contents: list[tuple[str, str, Content]] = [
        ("", "Node", {"metadata": {"name": "n"}, "status": {"allocatable": amounts}}),
        (kueue, "ResourceFlavor", {"metadata": {"name": "f"}}),
        (
            kueue,
            "ClusterQueue",
            {
                "metadata": {"name": "q"},
                "spec": {"namespaceSelector": {}, "resourceGroups": groups},
            },
        ),
        (
            kueue,
            "LocalQueue",
            {"metadata": {"name": "q", "namespace": "default"}, "spec": {"clusterQueue": "q"}},
        ),
    ]
    return [decode_object(KINDS[group, name], content) for group, name, content in contents]


def test_a_forecast_tells_when_a_job_starts_or_what_it_waits_for() -> None:
    made = decode_object(KINDS["batch", "Job"], copy_of(JOB, job(), "here"))
    profiles = default_profiles()
    assert forecast("large", cluster(4), [made], profiles) == Forecast("large", 0.0)
    small = forecast("small", cluster(1), [made], profiles)
    assert small.starts is None
    assert "its pods would not get nodes" in small.why


def pod(name: str, **spec: Any) -> Content:
    """A pod as the API server has it."""
    meta = {"name": name, "namespace": "default", "uid": name, "labels": {"app": "train"}}
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    own = {"priority": 5, "preemptionPolicy": "Never", "priorityClassName": "high"}
    content = {**own, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": content, "status": {}}


def test_a_pod_is_gated_in_the_queue_of_its_workload_until_it_is_admitted_there() -> None:
    made = pod_copy_of(pod("p"), "q", "here")
    assert made["metadata"]["labels"] == {
        "app": "train",
        "kueue.x-k8s.io/queue-name": "q",
        "kueue.x-k8s.io/multikueue-origin": "here",
    }
    assert made["metadata"]["annotations"] == {"kueue.x-k8s.io/multikueue-origin-uid": "p"}
    assert made["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]
    assert not {"priority", "preemptionPolicy"} & made["spec"].keys()
    assert made["spec"]["priorityClassName"] == "high"
    gated = pod("p", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    assert pod_copy_of(gated, "q", "here")["spec"] == made["spec"]


def of_pods(*names: str, **meta: Any) -> KueueWorkload:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": one, "uid": one} for one in names]
    own = {"name": "w", "namespace": "default", "ownerReferences": owners, **meta}
    return decode_part(KueueWorkload, {"metadata": own, "spec": {"queueName": "q"}})


def test_pods_of_a_group_go_together_and_those_of_other_gangs_do_not() -> None:
    group = of_pods("b", "a", annotations={"kueue.x-k8s.io/is-group-workload": "true"})
    found = JobReference.of(group)
    assert found is not None
    assert [one.key for one in found.items] == ["default/a", "default/b"]
    assert (found.row, found.queue) == (None, "q")
    assert JobReference.of(of_pods("a", "b")) is None


def test_a_forecast_of_pods_counts_all_of_them() -> None:
    made = [pod_copy_of(pod(name, priorityClassName=""), "q", "here") for name in "abc"]
    pods = [decode_object(KINDS["", "Pod"], one) for one in made]
    profiles = default_profiles()
    assert forecast("large", cluster(4), pods, profiles) == Forecast("large", 0.0)
    assert forecast("small", cluster(2), pods, profiles).starts is None


def test_a_pod_gets_the_status_of_its_copy_once_that_has_a_node() -> None:
    here = pod("p")
    waits = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
    assert status_of_copy({**pod("p"), "status": waits}, here) is None
    runs = {**pod("p", nodeName="n"), "status": {"phase": "Running"}}
    assert status_of_copy(runs, here) == {"phase": "Running"}
    assert status_of_copy(runs, {**here, "status": {"phase": "Running"}}) is None


def test_a_pod_that_has_lost_its_copy_waits_again_unless_it_has_ended() -> None:
    running = {"phase": "Running", "podIP": "10.0.0.1", "qosClass": "Burstable"}
    found = status_without_copy({**pod("p"), "status": running}, "now")
    assert found is not None
    assert (found["phase"], found["qosClass"], "podIP" in found) == ("Pending", "Burstable", False)
    assert [one["reason"] for one in found["conditions"]] == ["SchedulingGated"]
    for status in ({}, {"phase": "Pending"}, {"phase": "Succeeded"}, {"phase": "Failed"}):
        assert status_without_copy({**pod("p"), "status": status}, "now") is None


def test_a_worker_is_seen_as_its_scheduler_sees_it() -> None:
    """Otherwise forecasts would lack what places its pods."""
    (role,) = (d for d in documents(RIGHTS / "worker.yaml") if d["kind"] == "ClusterRole")
    (own,) = (
        d
        for d in documents(DEPLOY / "rbac.yaml")
        if d["kind"] == "ClusterRole" and d["metadata"]["name"] == "bayplan-scheduler"
    )
    followed = {
        (group, name)
        for rule in own["rules"]
        if rule["verbs"] == ["list", "watch"]
        for group in rule["apiGroups"]
        for name in rule["resources"]
    }
    seen = {
        (group, name)
        for rule in role["rules"]
        if rule["verbs"] == ["list", "watch"]
        for group in rule["apiGroups"]
        for name in rule["resources"]
    }
    assert followed <= seen


def test_every_kind_that_can_go_has_its_rights_in_both_clusters() -> None:
    kinds = {
        (kind.group, kind.plural)
        for where, row in KINDS_OF_WORKLOADS.items()
        if row.managed_by and (kind := KINDS.get(where)) is not None
    }
    kinds.add(("", "pods"))
    for manifest, verbs in (("manager.yaml", "get"), ("worker.yaml", "create delete")):
        (role,) = (d for d in documents(RIGHTS / manifest) if d["kind"] == "ClusterRole")
        allowed = {
            (group, name)
            for rule in role["rules"]
            if set(verbs.split()) <= set(rule["verbs"])
            for group in rule["apiGroups"]
            for name in rule["resources"]
        }
        assert kinds <= allowed


# Quotas --------------------------------------------------------------------------------------


def queue_of(
    name: str, *flavors: dict[str, str], covered: tuple[str, ...] = ("cpu", "memory"), **status: Any
) -> ClusterQueue:
    """A ClusterQueue of one group with flavors of these quotas."""
    made = [
        {"name": f"f{i}", "resources": [{"name": r, "nominalQuota": q} for r, q in one.items()]}
        for i, one in enumerate(flavors)
    ]
    groups = [{"coveredResources": list(covered), "flavors": made}]
    return decode_part(
        ClusterQueue,
        {"metadata": {"name": name}, "spec": {"resourceGroups": groups}, "status": status},
    )


def sites(management: str = "Automated") -> MultiKueueConfig:
    spec = {"clusters": ["east", "west"], "quotaManagement": management}
    return decode_part(MultiKueueConfig, {"metadata": {"name": "sites"}, "spec": spec})


def said_of(found: Automated) -> tuple[str, str, str]:
    assert found.condition is not None
    return found.condition.status, found.condition.reason, found.condition.message


def test_the_quota_of_a_queue_is_that_of_the_queues_of_its_jobs_in_all_clusters() -> None:
    small, large = {"cpu": "500m", "memory": "1Gi"}, {"cpu": "8", "memory": "7Gi"}
    there = [queue_of("a", small, large), queue_of("b", {"cpu": "1"}), queue_of("c", large)]
    of_queues = {"a": {"x/q"}, "b": {"x/r", "y/r"}, "c": {"y/q"}}
    east = nominal_quotas(there, of_queues, {"x/q", "x/r", "z/s"})
    assert east == {"cpu": 9500, "memory": 8 * 2**30}
    found = automated(queue_of("m", {"cpu": "1", "memory": "1"}), sites(), [east, {"cpu": 500}])
    assert found.resources is not None
    assert [(one.name, one.nominal_quota.text) for one in found.resources] == [
        ("cpu", "10"),
        ("memory", "8Gi"),
    ]
    assert said_of(found)[:2] == ("True", "QuotaAutomated")


def test_a_queue_that_has_the_quotas_of_its_clusters_is_not_written() -> None:
    queue = queue_of("m", {"cpu": "9500m", "memory": "0"})
    found = automated(queue, sites(), [{"cpu": 9500}])
    assert found.resources is None
    assert said_of(found)[:2] == ("True", "QuotaAutomated")


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (queue_of("m", {"cpu": "1"}, {"cpu": "1"}), "expected one resource group with one flavor"),
        (queue_of("m"), "expected one resource group with one flavor"),
        (
            queue_of("m", {"memory": "1"}, covered=("memory",)),
            "its coveredResources lack cpu of other clusters",
        ),
    ],
)
def test_quotas_that_cannot_follow_stay_and_the_queue_says_why(
    queue: ClusterQueue, why: str
) -> None:
    found = automated(queue, sites(), [{"cpu": 1000}])
    assert found.resources is None
    assert said_of(found) == ("False", "UnsupportedConfiguration", why)


def test_quotas_of_users_stay_and_only_a_queue_that_followed_says_so() -> None:
    own = {"cpu": "1", "memory": "1"}
    assert automated(queue_of("m", own), sites("Manual"), []) == Automated()
    assert automated(queue_of("m", own), None, []) == Automated()
    stated = [{"type": AUTOMATION, "status": "True"}]
    followed = queue_of("m", own, conditions=stated)
    assert said_of(automated(followed, sites("Manual"), []))[:2] == ("False", "NotRequested")
    assert said_of(automated(followed, None, []))[:2] == ("False", "UnsupportedConfiguration")


# ClusterProfiles -----------------------------------------------------------------------------


def profile(*providers: str, **extension: Any) -> Content:
    cluster = {
        "server": "https://east:6443",
        "certificate-authority-data": "Q0E=",
        "insecure-skip-tls-verify": True,
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": extension}],
    }
    return {"status": {"accessProviders": [{"name": p, "cluster": cluster} for p in providers]}}


def kubeconfig_by(content: Content, secrets: dict[tuple[str, str], bytes]) -> Content:
    async def read(name: str, key: str) -> bytes:
        return secrets[name, key]

    text = asyncio.run(kubeconfig_of(content, "ClusterProfile ns/east", "ns", read))
    made = json.loads(text)
    (cluster,), (user,) = made["clusters"], made["users"]
    assert cluster["cluster"] == {
        "server": "https://east:6443",
        "certificate-authority-data": "Q0E=",
    }
    found: Content = user["user"]
    return found


def test_a_profile_has_its_token_in_a_secret() -> None:
    content = profile("other", "secretreader", clusterName="east")
    assert kubeconfig_by(content, {("east", "token"): b"t\n"}) == {"token": "t"}


def test_a_profile_has_its_kubeconfig_in_a_secret_of_which_only_credentials_count() -> None:
    users = [{"name": "u", "user": {"token": "t", "exec": {"command": "never"}}}]
    contexts = [{"name": "c", "context": {"cluster": "x", "user": "u"}}]
    text = json.dumps({"users": users, "contexts": contexts, "current-context": "c"}).encode()
    content = profile("kubeconfig-secretreader", name="s", key="k")
    assert kubeconfig_by(content, {("s", "k"): text}) == {"token": "t"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (profile("gcp", "eks"), r"access providers \(gcp, eks\) come from programs"),
        ({}, r"access providers \(none\)"),
        (profile("secretreader"), "expected clusterName"),
        (profile("kubeconfig-secretreader", name="s"), "expected name and key"),
        (
            profile("kubeconfig-secretreader", name="s", key="k", namespace="others"),
            "expected a Secret of the namespace ns",
        ),
        (profile("kubeconfig-secretreader", name="s", key="k"), "has no token"),
    ],
)
def test_a_profile_whose_credentials_are_in_no_secret_is_refused(
    content: Content, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        kubeconfig_by(content, {("s", "k"): b"users: [{name: u, user: {exec: {}}}]"})

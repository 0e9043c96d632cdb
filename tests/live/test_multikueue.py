"""What becomes of a job in another cluster: its copy, forecasts, and the rights for both."""

from __future__ import annotations

from typing import Any

import pytest
from tests.live.deployed import DEPLOY, documents
from tests.paths import ROOT

from bayplan.api import KINDS, ApiObject
from bayplan.api.kueue import KueueWorkload
from bayplan.api.objects import decode_object, decode_part
from bayplan.kinds import KINDS_OF_WORKLOADS
from bayplan.live.multikueue.forecast import Forecast, forecast
from bayplan.live.multikueue.jobs import JobReference, copy_of, is_managed, is_suspended
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
        ({"apiVersion": "v1", "kind": "Pod"}, False),
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
    assert forecast("large", cluster(4), made, profiles) == Forecast("large", 0.0)
    small = forecast("small", cluster(1), made, profiles)
    assert small.starts is None
    assert "its pods would not get nodes" in small.why


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
    for manifest, verbs in (("manager.yaml", "get list watch"), ("worker.yaml", "create delete")):
        (role,) = (d for d in documents(RIGHTS / manifest) if d["kind"] == "ClusterRole")
        allowed = {
            (group, name)
            for rule in role["rules"]
            if set(verbs.split()) <= set(rule["verbs"])
            for group in rule["apiGroups"]
            for name in rule["resources"]
        }
        assert kinds <= allowed

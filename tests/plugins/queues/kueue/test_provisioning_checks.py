"""Admission checks that ask a cluster autoscaler for a workload's nodes first."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import check as own_check
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import (
    GPU,
    conditions,
    job,
    on_nodes,
    running,
    started,
    workload_of,
)

from bayplan.api import KINDS, ApiObject, Job, JobSet, Pod, PodGroup
from bayplan.api.kueue import (
    AdmissionCheck,
    AdmissionCheckState,
    KueueWorkload,
    ProvisioningRequestConfig,
)
from bayplan.api.meta import Condition
from bayplan.api.objects import decode_part
from bayplan.api.provisioning import ProvisioningRequest
from bayplan.api.workloads import StoredPodTemplate
from bayplan.cluster.protocol import PatchFields
from bayplan.testing import Cluster, make_node, make_pod

ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"


def check(**spec: Any) -> list[ApiObject]:
    """Return a provisioning check and its configuration."""
    parameters = {
        "apiGroup": "kueue.x-k8s.io",
        "kind": "ProvisioningRequestConfig",
        "name": "buy",
    }
    named = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": parameters}
    config = {"provisioningClassName": ATOMIC, **spec}
    return [
        decode_part(AdmissionCheck, {"metadata": {"name": "nodes"}, "spec": named}),
        decode_part(ProvisioningRequestConfig, {"metadata": {"name": "buy"}, "spec": config}),
    ]


def queue_with_check(gpus: int = 8, **spec: Any) -> list[ApiObject]:
    checks = {"admissionChecks": [{"name": "nodes"}]}
    queue = cluster_queue("cq", {"f": {GPU: gpus}}, admissionChecksStrategy=checks)
    return [*check(**spec), flavor("f"), queue, local_queue("lq", "cq")]


def requests(cluster: Cluster) -> list[ProvisioningRequest]:
    return sorted(cluster.api.list(ProvisioningRequest), key=lambda one: one.metadata.name)


def says(cluster: Cluster, type_: str, message: str = "", **details: str) -> None:
    """Let the autoscaler write a condition into the last request."""
    one = requests(cluster)[-1]
    condition = Condition(type_, "True", type_, message, "2000-01-01T00:00:00Z")
    status = replace(
        one.status,
        conditions=(*one.status.conditions, condition),
        provisioning_class_details=details,
    )
    cluster.api.update(replace(one, status=status))
    cluster.advance(2.0)


def state(cluster: Cluster, name: str = "a") -> AdmissionCheckState:
    (found,) = workload_of(cluster, name).status.admission_checks
    return found


def test_a_job_with_quota_asks_for_its_nodes_and_runs_once_they_are_provisioned() -> None:
    cluster = started(*queue_with_check(), job("a", 3))
    assert conditions(cluster, "a")["QuotaReserved"] == "True"
    assert running(cluster) == set()
    (request,) = requests(cluster)
    workload = workload_of(cluster, "a")
    assert request.metadata.name == f"{workload.metadata.name}-nodes-1"
    assert request.metadata.owner_references[0].uid == workload.metadata.uid
    assert request.spec.provisioning_class_name == ATOMIC
    (pods,) = request.spec.pod_sets
    (template,) = cluster.api.list(StoredPodTemplate)
    assert pods.count == 3
    assert template.metadata.name == pods.pod_template_ref.name
    assert template.metadata.name == f"ppt-{request.metadata.name}-main"
    (container,) = template.template["spec"]["containers"]
    assert container["resources"]["requests"][GPU] == "1"
    assert (state(cluster).state, running(cluster)) == ("Pending", set())
    says(cluster, "Accepted")
    assert running(cluster) == set()
    says(cluster, "Provisioned", "there is room")
    assert (state(cluster).state, state(cluster).message) == ("Ready", "there is room")
    cluster.api.create(make_node("n", gpu=4))
    cluster.advance(30.0)
    assert on_nodes(cluster) == {"a": 3}
    for pod in cluster.api.list(Pod):
        said = pod.metadata.annotations
        assert said["autoscaling.x-k8s.io/consume-provisioning-request"] == request.metadata.name
        assert said["autoscaling.x-k8s.io/provisioning-class-name"] == ATOMIC
    assert len(requests(cluster)) == 1


def test_quota_bounds_what_is_asked_for() -> None:
    cluster = started(*queue_with_check(3), job("a", 2), job("b", 2))
    assert [one.spec.pod_sets[0].count for one in requests(cluster)] == [2]


def test_labels_of_nodes_come_from_the_details_of_the_request() -> None:
    update = {"key": "pool", "valueFromProvisioningClassDetail": "Pool"}
    cluster = started(*queue_with_check(podSetUpdates={"nodeSelector": [update]}), job("a", 1))
    says(cluster, "Provisioned", Pool="p7")
    (running_job,) = cluster.api.list(Job)
    assert running_job.spec.template.spec.node_selector == {"pool": "p7"}


def test_a_failure_is_tried_again_later_and_rejected_in_the_end() -> None:
    retry = {"backoffLimitCount": 1, "backoffBaseSeconds": 100, "backoffMaxSeconds": 1800}
    cluster = started(*queue_with_check(retryStrategy=retry), job("a", 2))
    says(cluster, "Failed", "no more of them")
    assert state(cluster).retry_count == 1
    assert conditions(cluster, "a")["QuotaReserved"] == "False"
    cluster.advance(80.0)
    assert len(requests(cluster)) == 1
    cluster.advance(40.0)
    assert [one.metadata.name[-2:] for one in requests(cluster)] == ["-1", "-2"]
    assert conditions(cluster, "a")["QuotaReserved"] == "True"
    says(cluster, "Failed", "none at all")
    cluster.advance(10.0)
    assert workload_of(cluster, "a").spec.active is False
    assert conditions(cluster, "a")["QuotaReserved"] == "False"
    cluster.advance(4000.0)
    assert len(requests(cluster)) == 2


def test_a_booking_that_expires_before_the_job_runs_is_asked_for_again() -> None:
    two = {"admissionChecks": [{"name": "nodes"}, {"name": "budget"}]}
    queue = cluster_queue("cq", {"f": {GPU: 8}}, admissionChecksStrategy=two)
    others = [own_check(), flavor("f"), queue, local_queue("lq", "cq")]
    cluster = started(*check(), *others, job("a", 2))
    says(cluster, "Provisioned")
    says(cluster, "BookingExpired", "ten minutes are over")
    found = {one.name: one for one in workload_of(cluster, "a").status.admission_checks}
    assert found["nodes"].retry_count == 1
    cluster.advance(70.0)
    assert len(requests(cluster)) == 2


def test_what_runs_does_not_mind_that_its_booking_expires() -> None:
    cluster = started(make_node("n", gpu=4), *queue_with_check(), job("a", 2))
    says(cluster, "Provisioned")
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"a": 2}
    says(cluster, "BookingExpired")
    cluster.advance(600.0)
    assert on_nodes(cluster) == {"a": 2}
    assert state(cluster).state == "Ready"


def test_revoked_capacity_stops_the_job() -> None:
    cluster = started(make_node("n", gpu=4), *queue_with_check(), job("a", 2))
    says(cluster, "Provisioned")
    cluster.advance(10.0)
    says(cluster, "CapacityRevoked", "gone")
    cluster.advance(60.0)
    assert workload_of(cluster, "a").spec.active is False
    assert running(cluster) == set()


def test_pods_without_a_managed_resource_need_no_request() -> None:
    cluster = started(
        make_node("n", gpu=4), *queue_with_check(managedResources=["example.com/tpu"]), job("a", 2)
    )
    cluster.advance(10.0)
    assert requests(cluster) == []
    assert state(cluster).message == "the provisioning request is not needed"
    assert on_nodes(cluster) == {"a": 2}


def test_a_request_of_another_class_is_replaced() -> None:
    objects = queue_with_check()
    cluster = started(*objects, job("a", 2))
    before = requests(cluster)[0].metadata.uid
    config = next(one for one in objects if isinstance(one, ProvisioningRequestConfig))
    spec = replace(config.spec, provisioning_class_name="check-capacity.autoscaling.x-k8s.io")
    cluster.api.update(replace(config, spec=spec))
    cluster.advance(10.0)
    (request,) = requests(cluster)
    assert request.metadata.uid != before
    assert request.spec.provisioning_class_name == "check-capacity.autoscaling.x-k8s.io"
    assert len(cluster.api.list(StoredPodTemplate)) == 1


def test_annotations_of_the_job_are_parameters() -> None:
    one = job("a", 1)
    meta = replace(one.metadata, annotations={"provreq.kueue.x-k8s.io/noRetry": "true"})
    cluster = started(*queue_with_check(parameters={"x": "1"}), replace(one, metadata=meta))
    assert requests(cluster)[0].spec.parameters == {"x": "1", "noRetry": "true"}


def test_requests_go_with_the_job() -> None:
    cluster = started(*queue_with_check(), job("a", 2))
    assert len(requests(cluster)) == 1
    cluster.api.delete(Job, "default/a")
    cluster.advance(30.0)
    assert requests(cluster) == []
    assert cluster.api.list(StoredPodTemplate) == []


def test_a_check_without_its_configuration_is_not_active_and_holds_the_job() -> None:
    objects = [o for o in queue_with_check() if not isinstance(o, ProvisioningRequestConfig)]
    cluster = started(*objects, job("a", 2))
    assert workload_of(cluster, "a").status.admission_checks == ()
    stated = next(c for c in workload_of(cluster, "a").status.conditions if c.status == "False")
    assert (stated.reason, stated.message) == ("Suspended", "ClusterQueue cq is inactive")
    (one,) = cluster.api.list(AdmissionCheck)
    assert [(c.type, c.status) for c in one.status.conditions] == [("Active", "False")]
    cluster.api.create(check()[1])
    cluster.advance(10.0)
    (one,) = cluster.api.list(AdmissionCheck)
    assert [(c.type, c.status) for c in one.status.conditions] == [("Active", "True")]
    assert len(requests(cluster)) == 1


@pytest.mark.parametrize("gated", [False, True])
def test_a_pod_asks_as_a_job_does_and_is_annotated(gated: bool) -> None:
    gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]} if gated else {}
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    pod = make_pod("p", None, None, labels, spec=gates, gpu=2)
    cluster = started(*queue_with_check(), pod)
    (request,) = requests(cluster)
    assert request.metadata.name == "pod-p-ed3f3-nodes-1"
    assert request.metadata.owner_references[0].name == "pod-p-ed3f3"
    says(cluster, "Provisioned")
    cluster.api.create(make_node("n", gpu=4))
    cluster.advance(30.0)
    (bound,) = cluster.api.list(Pod)
    assert bound.spec.node_name == "n"
    said = bound.metadata.annotations
    assert said["autoscaling.x-k8s.io/consume-provisioning-request"] == "pod-p-ed3f3-nodes-1"


def test_a_gang_of_pods_asks_once_for_all_its_members() -> None:
    group = decode_part(
        PodGroup, {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 3}}
    )
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    pods = [make_pod(f"p{i}", None, None, labels, gang="g", gpu=2) for i in range(3)]
    cluster = started(*queue_with_check(), group, *pods)
    (request,) = requests(cluster)
    assert [one.count for one in request.spec.pod_sets] == [3]
    (template,) = cluster.api.list(StoredPodTemplate)
    assert "schedulingGates" not in template.template["spec"]
    says(cluster, "Provisioned")
    cluster.api.create(make_node("n", gpu=4))
    cluster.advance(30.0)
    assert cluster.placements() == {}
    cluster.api.create(make_node("m", gpu=4))
    cluster.advance(30.0)
    assert len(cluster.placements()) == 3


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        ("", [1, 2]),
        ("IdenticalPodTemplates", [1, 2]),
        ("IdenticalWorkloadSchedulingRequirements", [3]),
    ],
)
def test_pod_sets_are_merged_as_the_policy_says(policy: str, counts: list[int]) -> None:
    def role(image: str) -> dict[str, Any]:
        limits = {"limits": {GPU: "1"}}
        container = {"name": "c", "image": image, "resources": limits}
        spec = {"containers": [container], "restartPolicy": "Never"}
        return {"template": {"spec": {"template": {"spec": spec}}}}

    roles = [{"name": "driver", **role("a")}, {"name": "worker", "replicas": 2, **role("b")}]
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    meta = {"name": "a", "namespace": "default", "uid": "u", "labels": labels}
    spec = {"suspend": True, "replicatedJobs": roles}
    one = decode_part(JobSet, {"metadata": meta, "spec": spec})
    cluster = started(*queue_with_check(podSetMergePolicy=policy), one)
    (request,) = requests(cluster)
    assert [one.count for one in request.spec.pod_sets] == counts


def test_what_runs_gets_no_new_request_whatever_becomes_of_the_old_one() -> None:
    objects = queue_with_check()
    cluster = started(make_node("n", gpu=4), *objects, job("a", 2))
    says(cluster, "Provisioned")
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"a": 2}
    config = next(one for one in objects if isinstance(one, ProvisioningRequestConfig))
    spec = replace(config.spec, parameters={"new": "1"})
    cluster.api.update(replace(config, spec=spec))
    cluster.advance(10.0)
    assert len(requests(cluster)) == 1
    cluster.api.delete(ProvisioningRequest, requests(cluster)[0].key)
    cluster.advance(60.0)
    assert requests(cluster) == []
    assert on_nodes(cluster) == {"a": 2}


def test_a_pod_whose_request_failed_gives_its_quota_back_by_itself() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    retry = {"backoffLimitCount": 3, "backoffBaseSeconds": 60, "backoffMaxSeconds": 1800}
    pod = make_pod("p", None, None, labels, gpu=2)
    cluster = started(*queue_with_check(2, retryStrategy=retry), pod)
    says(cluster, "Failed", "none")
    cluster.advance(100.0)
    assert [one.metadata.name[-2:] for one in requests(cluster)] == ["-1", "-2"]


@pytest.mark.parametrize("how", ["Failed", "CapacityRevoked"])
def test_a_rejected_job_that_is_active_again_asks_again(how: str) -> None:
    retry = {"backoffLimitCount": 0, "backoffBaseSeconds": 1, "backoffMaxSeconds": 1}
    cluster = started(*queue_with_check(retryStrategy=retry), job("a", 2))
    says(cluster, how, "none")
    cluster.advance(10.0)
    assert workload_of(cluster, "a").spec.active is False
    found = workload_of(cluster, "a")
    cluster.api.submit(
        PatchFields(KueueWorkload, found.key, found.metadata.uid, {"/spec/active": True})
    )
    cluster.advance(30.0)
    assert workload_of(cluster, "a").spec.active is True
    assert [one.metadata.name[-2:] for one in requests(cluster)] == ["-1", "-2"]
    says(cluster, "Provisioned")
    assert running(cluster) == {"a"}


def test_a_check_that_its_queue_no_longer_asks_for_holds_nothing_back() -> None:
    objects = queue_with_check()
    cluster = started(make_node("n", gpu=4), *objects, job("a", 2))
    assert running(cluster) == set()
    cluster.api.update(cluster_queue("cq", {"f": {GPU: 8}}))
    cluster.advance(30.0)
    assert on_nodes(cluster) == {"a": 2}


def test_long_names_stay_within_what_an_api_server_takes() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    cluster = started(*queue_with_check(), make_pod("p" * 250, None, None, labels, gpu=2))
    (request,) = requests(cluster)
    (template,) = cluster.api.list(StoredPodTemplate)
    assert len(request.metadata.name) <= 253
    assert len(template.metadata.name) <= 253
    assert request.spec.pod_sets[0].pod_template_ref.name == template.metadata.name


@pytest.mark.parametrize("seconds", [10**18, -5])
def test_an_absurd_backoff_stops_nobody(seconds: int) -> None:
    retry = {
        "backoffLimitCount": 3,
        "backoffBaseSeconds": seconds,
        "backoffMaxSeconds": seconds,
    }
    cluster = started(*queue_with_check(2, retryStrategy=retry), job("a", 2), job("b", 2))
    says(cluster, "Failed", "none")
    cluster.advance(10.0)
    assert len(requests(cluster)) == 2


def restarted(cluster: Cluster) -> Cluster:
    """Return a cluster with the same objects, and a scheduler that has just begun."""
    kinds = sorted(KINDS.values(), key=lambda kind: (kind.type is Pod, kind.group, kind.name))
    objects = [one for kind in kinds for one in cluster.api.list(kind.type)]
    return started(*objects, *cluster.api.list(StoredPodTemplate))


def test_a_restart_asks_for_nothing_twice() -> None:
    cluster = started(*queue_with_check(), job("a", 2))
    for _ in range(3):
        cluster = restarted(cluster)
    assert len(requests(cluster)) == 1
    says(cluster, "Provisioned")
    cluster = restarted(cluster)
    assert running(cluster) == {"a"}
    assert len(requests(cluster)) == 1

"""What Workloads have of the labels and annotations of their jobs and pods."""

from __future__ import annotations

from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import GPU, LABEL, job, started, workload_of

from bayplan.api import ApiObject, KueueWorkload
from bayplan.testing import Cluster, make_node, make_object

ARGS = {"kueue": {"integrations": {"labelKeysToCopy": ["team", "cost-center"]}}}
PARAMETER = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"


def world() -> list[ApiObject]:
    queue = cluster_queue("cq", {"f": {GPU: 8}})
    return [make_node("n", gpu=8), flavor("f"), queue, local_queue("lq", "cq")]


def pod(name: str, **labels: str) -> ApiObject:
    own = {LABEL: "lq", "kueue.x-k8s.io/pod-group-name": "g", **labels}
    marks = {"kueue.x-k8s.io/pod-group-total-count": "2", PARAMETER: "600"}
    container = {"name": "c", "image": "x", "resources": {"limits": {GPU: "1"}}}
    return make_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": own, "annotations": marks},
            "spec": {"containers": [container]},
        }
    )


def test_a_job_passes_on_the_labels_that_the_profile_names_and_what_it_asks_of_nodes() -> None:
    made = job("a", annotations={PARAMETER: "600", "note": "x"})
    labels = {**made.metadata.labels, "team": "vision", "other": "x"}
    cluster = started(*world(), args=ARGS)
    cluster.add(replace(made, metadata=replace(made.metadata, labels=labels)))
    cluster.advance(5.0)
    found = workload_of(cluster, "a").metadata
    assert found.labels["team"] == "vision"
    assert not {"other", "cost-center", LABEL} & found.labels.keys()
    assert found.annotations == {PARAMETER: "600"}


def group(*pods: ApiObject) -> tuple[Cluster, list[KueueWorkload]]:
    cluster = Cluster(world(), plugins={"Queues": ARGS})
    cluster.add(*pods)
    cluster.advance(5.0)
    return cluster, cluster.api.list(KueueWorkload)


def test_a_group_passes_on_the_labels_of_its_pods() -> None:
    _, (made,) = group(pod("a", team="vision"), pod("b", **{"cost-center": "7"}))
    assert {"team": "vision", "cost-center": "7"}.items() <= made.metadata.labels.items()
    assert made.metadata.annotations[PARAMETER] == "600"


def test_a_group_whose_pods_disagree_waits_and_says_why() -> None:
    cluster, made = group(pod("a", team="vision"), pod("b", team="speech"))
    assert made == []
    why = cluster.message("b")
    assert "its pods have different values of the label team" in why

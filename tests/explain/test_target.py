"""A Workload of Kueue's that somebody asks about."""

from __future__ import annotations

from tests.plugins.queues.kueue.queued_job_builders import (
    LABEL,
    job,
    one_queue,
    started,
    workload_of,
)

from bayplan.explain.target import Target, target_of, what_has
from bayplan.testing import make_node, make_pod


def test_a_workload_of_kueues_stands_for_what_has_it() -> None:
    group = {"kueue.x-k8s.io/pod-group-name": "g", LABEL: "lq"}
    total = {"kueue.x-k8s.io/pod-group-total-count": "1"}
    pod = make_pod("p", gpu=1, labels=group, annotations=total)
    cluster = started(make_node("n", gpu=8), *one_queue(8), job("a"), pod)
    names = {
        f"workload/{workload_of(cluster, 'a').metadata.name}": Target("Job", "default/a"),
        "workload/g": Target("PodGroup", "default/g"),
        "workload/none": Target("Workload", "default/none"),
        "pod/p": Target("Pod", "default/p"),
    }
    assert {one: what_has(cluster.scheduler, target_of(one)) for one in names} == names

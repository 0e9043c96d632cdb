"""Suspended jobs come and go: quotas hold, jobs run as they are admitted, and it settles."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, cohort, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import GPU, conditions, job, started

from bayplan.api import ApiObject, Job, KueueWorkload, Pod
from bayplan.testing import Cluster, make_node

QUEUES = ("a", "b")
QUOTA = 4
NODE = 3
"""GPUs of each of the three nodes: as many as both queues have, and one more."""

Change = tuple[str, Any]
sizes = st.tuples(st.sampled_from(QUEUES), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2))
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), sizes),
        st.tuples(st.just("delete"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(1, 90)),
    ),
    min_size=1,
    max_size=12,
)
policies = st.sampled_from(
    [
        {},
        {"withinClusterQueue": "LowerPriority"},
        {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
    ]
)


def world(preemption: dict[str, Any]) -> list[ApiObject]:
    queues = [
        cluster_queue(name, {"f": {GPU: QUOTA}}, "co", preemption=preemption) for name in QUEUES
    ]
    nodes = [make_node(f"n{index}", gpu=NODE, labels={"kind": "f"}) for index in range(3)]
    locals_ = [local_queue(f"l{name}", name) for name in QUEUES]
    return [*nodes, flavor("f", nodeLabels={"kind": "f"}), cohort("co"), *queues, *locals_]


def apply(cluster: Cluster, change: Change, number: int) -> None:
    kind, given = change
    if kind == "add":
        queue, pods, gpu, priority = given
        cluster.add(job(f"j{number}", pods, f"l{queue}", gpu, priority=priority))
    elif kind == "delete":
        names = sorted(one.metadata.name for one in cluster.api.list(Job))
        if names:
            cluster.api.delete(Job, f"default/{names[given % len(names)]}")
    else:
        cluster.advance(float(given))
    cluster.schedule()


def check(cluster: Cluster) -> None:
    """Check what has to hold at every moment."""
    used: Counter[str] = Counter()
    for pod in cluster.api.list(Pod):
        if pod.spec.node_name:
            used["GPUs"] += int(pod.spec.containers[0].resources.limits[GPU].amount)
    assert used["GPUs"] <= QUOTA * len(QUEUES)
    for one in cluster.api.list(Job):
        name = one.metadata.name
        stated = conditions(cluster, name)
        admitted = stated.get("Admitted") == "True" and stated.get("Evicted") != "True"
        assert one.spec.suspend != admitted, (name, stated)
        selector = {} if one.spec.suspend else {"kind": "f"}
        assert one.spec.template.spec.node_selector == selector
    jobs = {one.metadata.name for one in cluster.api.list(Job)}
    owners = [one.metadata.owner_references[0].name for one in cluster.api.list(KueueWorkload)]
    assert sorted(owners) == sorted(jobs)


def state(cluster: Cluster) -> dict[str, bool]:
    return {one.metadata.name: one.spec.suspend for one in cluster.api.list(Job)}


@examples(40)
@given(policies, changes)
def test_jobs_run_as_they_are_admitted_and_it_settles(
    preemption: dict[str, Any], events: list[Change]
) -> None:
    cluster = started(*world(preemption))
    for number, event in enumerate(events):
        apply(cluster, event, number)
        check(cluster)
    cluster.advance(600.0)
    settled = state(cluster)
    check(cluster)
    cluster.advance(600.0)
    assert state(cluster) == settled
    for name, suspended in settled.items():
        if not suspended:
            pods = [p for p in cluster.api.list(Pod) if p.metadata.labels["job-name"] == name]
            assert all(pod.spec.node_name for pod in pods), "what is admitted gets its nodes"

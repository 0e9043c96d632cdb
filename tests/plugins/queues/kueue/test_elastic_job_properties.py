"""Elastic jobs grow and shrink at random: quotas hold, pods run as admitted, and it settles."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, cohort, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import GPU, job, started

from bayplan.api import ApiObject, ClusterQueue, Job, KueueWorkload, Pod
from bayplan.cluster.protocol import PatchFields
from bayplan.testing import Cluster, make_node

QUEUES = ("a", "b")
QUOTA = 5
NODE = 4
"""GPUs of each of the three nodes: two more than the quota of both queues."""
ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}
GATE = "kueue.x-k8s.io/elastic-job"

Change = tuple[str, Any]
sizes = st.tuples(st.sampled_from(QUEUES), st.integers(1, 4), st.integers(0, 2), st.booleans())
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), sizes),
        st.tuples(st.just("resize"), st.tuples(st.integers(0, 20), st.integers(0, 7))),
        st.tuples(st.just("resize"), st.tuples(st.integers(0, 20), st.integers(0, 7))),
        st.tuples(st.just("delete"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(1, 90)),
    ),
    min_size=3,
    max_size=14,
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
    names = sorted(one.metadata.name for one in cluster.api.list(Job))
    if kind == "add":
        queue, pods, priority, elastic = given
        marks = ELASTIC if elastic else {}
        made = job(f"j{number}", pods, f"l{queue}", 1, marks, priority, completions=None)
        cluster.add(made)
    elif kind == "wait":
        cluster.advance(float(given))
    elif names and kind == "delete":
        cluster.api.delete(Job, f"default/{names[given % len(names)]}")
    elif names:
        key = f"default/{names[given[0] % len(names)]}"
        found = cluster.api.get(Job, key)
        assert found is not None
        fields = {"/spec/parallelism": given[1]}
        cluster.api.submit(PatchFields(Job, key, found.metadata.uid, fields))
    # Controllers act, too.
    cluster.advance(1.0)


def said(workload: KueueWorkload) -> set[str]:
    return {one.type for one in workload.status.conditions if one.status == "True"}


def slices(cluster: Cluster) -> dict[str, list[KueueWorkload]]:
    """Return the Workloads of each job that have not ended."""
    found: dict[str, list[KueueWorkload]] = {}
    for one in cluster.api.list(KueueWorkload):
        if "Finished" not in said(one):
            found.setdefault(one.metadata.owner_references[0].name, []).append(one)
    return found


def quota_of(workload: KueueWorkload) -> int:
    """Return the GPUs that a Workload has quota of."""
    admission = workload.status.admission
    if admission is None or "QuotaReserved" not in said(workload):
        return 0
    return sum(int(one.resource_usage[GPU].amount) for one in admission.pod_set_assignments)


def check(cluster: Cluster) -> None:
    """Check what has to hold at every moment."""
    live = slices(cluster)
    assert sum(quota_of(one) for of_job in live.values() for one in of_job) <= QUOTA * len(QUEUES)
    let_go: Counter[str] = Counter()
    for pod in cluster.api.list(Pod):
        if pod.metadata.deletion_timestamp is None and pod.spec.node_name:
            assert all(gate.name != GATE for gate in pod.spec.scheduling_gates)
            let_go[pod.metadata.owner_references[0].name] += 1
    for one in cluster.api.list(Job):
        name = one.metadata.name
        holders = [each for each in live.get(name, ()) if "QuotaReserved" in said(each)]
        assert len(live.get(name, ())) <= 2
        assert len(holders) <= 1, "the quota is the new slice's, never the sum"
        admitted = bool(holders) and "Evicted" not in said(holders[0])
        assert one.spec.suspend != admitted, name
        if admitted:
            assert let_go[name] <= quota_of(holders[0]), name
            assert quota_of(holders[0]) <= max(one.spec.parallelism, 0), "what shrinks is free"
        template = one.spec.template.spec
        assert template.node_selector == ({} if one.spec.suspend else {"kind": "f"})
        gated = one.metadata.annotations == ELASTIC and not one.spec.suspend
        assert [gate.name for gate in template.scheduling_gates] == [GATE] * gated


def state(cluster: Cluster) -> dict[str, tuple[bool, int]]:
    return {
        name: (any("Evicted" in said(one) for one in of_job), sum(map(quota_of, of_job)))
        for name, of_job in slices(cluster).items()
    }


@examples(40)
@given(policies, changes)
def test_elastic_jobs_have_the_pods_of_their_slices_and_it_settles(
    preemption: dict[str, Any], events: list[Change]
) -> None:
    cluster = started(*world(preemption))
    for number, event in enumerate(events):
        apply(cluster, event, number)
        check(cluster)
    cluster.advance(600.0)
    check(cluster)
    settled = state(cluster)
    live = slices(cluster)
    assert sorted(live) == sorted(one.metadata.name for one in cluster.api.list(Job))
    for name, of_job in live.items():
        pods = [p for p in cluster.api.list(Pod) if p.metadata.labels["job-name"] == name]
        on_nodes = sum(bool(pod.spec.node_name) for pod in pods)
        assert on_nodes == sum(map(quota_of, of_job)), "what is admitted has nodes"
    for queue in cluster.api.list(ClusterQueue):
        local = f"l{queue.metadata.name}"
        own = [one for of_job in live.values() for one in of_job if one.spec.queue_name == local]
        (usage,) = queue.status.flavors_usage[0].resources
        assert usage.total.amount == sum(map(quota_of, own))
    cluster.advance(600.0)
    assert state(cluster) == settled

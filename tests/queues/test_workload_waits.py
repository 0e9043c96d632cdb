"""What Kueue's workloads tell of their waits."""

from __future__ import annotations

from bayplan.api import KueueWorkload, LocalQueue
from bayplan.queues.workload_waits import Reached, reached, waiting_workloads
from bayplan.snapshot import Snapshot
from bayplan.testing import make_object


def workload(*conditions: tuple[str, int], name: str = "w", **spec: object) -> KueueWorkload:
    """A workload that came 0 s after the epoch; each condition came true after some seconds."""
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    found = [
        {"type": kind, "status": "True", "reason": kind, "lastTransitionTime": stamp(at)}
        for kind, at in conditions
    ]
    made = make_object(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {"name": name, "namespace": "default", "creationTimestamp": stamp(0)},
            "spec": {
                "queueName": "l",
                "podSets": [{"name": "main", "count": 1, "template": template}],
                **spec,
            },
            "status": {"conditions": found, "admission": {"clusterQueue": "q"}},
        }
    )
    assert isinstance(made, KueueWorkload)
    return made


def stamp(seconds: int) -> str:
    return f"1970-01-01T00:00:{seconds:02d}Z"


def test_a_condition_that_comes_true_tells_how_long_the_workload_waited() -> None:
    before, after = workload(("Evicted", 10)), workload(("Evicted", 10), ("Admitted", 15))
    assert list(reached(workload(), workload(("QuotaReserved", 5)))) == [
        Reached("QuotaReserved", "q", 5, "QuotaReserved")
    ]
    assert list(reached(before, after)) == [Reached("Admitted", "q", 5, "Admitted")]
    assert list(reached(after, after)) == []
    assert list(reached(None, after)) == []
    assert list(reached(after, None)) == []


def test_workloads_without_quota_wait_for_their_cluster_queue() -> None:
    snapshot = Snapshot()
    local = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "l", "namespace": "default"},
        "spec": {"clusterQueue": "q"},
    }
    queue = make_object(local)
    assert isinstance(queue, LocalQueue)
    snapshot.set_object("default/l", queue)
    for one in (
        workload(name="new"),
        workload(("Evicted", 40), name="evicted"),
        workload(("QuotaReserved", 1), name="reserved"),
        workload(("Finished", 1), name="finished"),
        workload(name="inactive", active=False),
        workload(name="elsewhere", queueName="other"),
    ):
        snapshot.set_object(one.key, one)
    found = [(one.queue, one.seconds) for one in waiting_workloads(snapshot, 60.0)]
    assert sorted(found) == [("q", 20), ("q", 60)]

"""When things happened that the page did not see happen."""

from __future__ import annotations

from tests.paths import ROOT

from bayplan.api import KINDS, Pod
from bayplan.api.objects import decode_object
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.page.feed import Feed
from bayplan.page.pod_times import PodTimes
from bayplan.profiles.loading import load_profiles
from bayplan.scheduler.scheduler import Scheduler

# The page is opened at 12:00:00, 10 s after its scheduler has started.
NOON = 1_767_268_800.0
TIMES = PodTimes(10.0, NOON)


def told(created: str = "", bound: str = "", ended: str = "", start: str = "") -> Pod:
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}
    ends = [("a", ended), ("b", "2026-01-01T09:00:00Z")] if ended else []
    status = {
        "conditions": [condition] if bound else [],
        "startTime": start or None,
        "containerStatuses": [
            {"name": name, "state": {"terminated": {"finishedAt": at}}} for name, at in ends
        ],
    }
    return pod({"creationTimestamp": created or None}, {}, status)


def pod(meta: dict, spec: dict, status: dict) -> Pod:
    container = {"name": "main", "image": "x"}
    content = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", **meta},
        "spec": {"containers": [container], **spec},
        "status": status,
    }
    found = decode_object(KINDS["", "Pod"], content)
    assert isinstance(found, Pod)
    return found


def test_a_pod_that_waited_before_the_scheduler_started_is_as_old_as_it_says() -> None:
    assert TIMES.created(told("2026-01-01T10:00:00Z")) == 10.0 - 7200


def test_whole_seconds_do_not_make_a_new_pod_older() -> None:
    assert TIMES.created(told("2026-01-01T11:59:59Z")) == 10.0
    assert TIMES.created(told("2030-01-01T00:00:00Z")) == 10.0, "clocks differ"
    assert TIMES.created(told()) == 10.0


def test_a_pod_has_its_node_since_its_condition_says_so() -> None:
    assert TIMES.bound(told("2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z")) == 10.0 - 3600
    started = told("2026-01-01T10:00:00Z", start="2026-01-01T11:30:00Z")
    assert TIMES.bound(started) == 10.0 - 1800


def test_a_pod_ended_with_its_last_container() -> None:
    times = told("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z", "2026-01-01T11:50:00Z")
    assert TIMES.ended(times) == 10.0 - 600


def message(scheduler_name: str, status: dict) -> str:
    cluster = MemoryCluster(1)
    scheduler = Scheduler(cluster, load_profiles(ROOT / "configs" / "profiles" / "default.yaml"))
    feed = Feed("test")
    feed.follow(scheduler)
    cluster.watch(feed.handle)
    cluster.create(pod({}, {"schedulerName": scheduler_name}, status))
    cluster.deliver()
    scheduler.stand_by()
    assert feed.cluster_view is not None
    feed.look(0.0)
    return feed.cluster_view.units["default/p"].message


def test_a_pod_of_another_scheduler_says_whom_it_waits_for() -> None:
    assert message("other", {}) == 'waits for another scheduler, "other"'


def test_the_reason_is_that_of_whoever_tried_the_pod() -> None:
    why = "0/3 nodes are available: 3 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "message": why}
    assert message("other", {"conditions": [condition]}) == why

"""Trials of admissions: what is known of alike pods decides as a trial of each would."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, cohort, flavor, local_queue

from bayplan.api import ApiObject, Pod
from bayplan.snapshot import Snapshot
from bayplan.testing import Cluster, make_node, make_pod
from bayplan_plugins.queues.kueue.dry_run import DryRun
from bayplan_plugins.queues.kueue.flavor_assignment import Assignment
from bayplan_plugins.queues.kueue.tried_sizes import TriedSizes

GPU = "nvidia.com/gpu"
KUEUE = "kueue.x-k8s.io"


def test_bounds_hold_until_the_mark_changes() -> None:
    sizes = TriedSizes()
    assert sizes.answer("a", 3, 0) is None
    sizes.add("a", 3, True)
    sizes.add("a", 6, False)
    assert [sizes.answer("a", count, 0) for count in (2, 3, 4, 6, 7)] == [
        *(True, True),
        None,
        *(False, False),
    ]
    assert sizes.answer("b", 2, 0) is None
    assert sizes.answer("a", 2, 1) is None


def plain_fits(rehearsal: DryRun, key: str, assignment: Assignment) -> bool:
    """Try a workload and take it off its nodes again."""
    with rehearsal._handle.snapshot.trial():
        return rehearsal._try(key, assignment)


def group(name: str, queue: str, size: int, gpu: int, node: str = "") -> list[Pod]:
    labels = {f"{KUEUE}/queue-name": queue, f"{KUEUE}/pod-group-name": name}
    annotations = {f"{KUEUE}/pod-group-total-count": str(size)}
    spec = {"nodeSelector": {"kind": node} if node else {}}
    return [
        make_pod(f"{name}-{i}", None, None, labels, annotations, gpu=gpu, spec=spec)
        for i in range(size)
    ]


def story(seed: int) -> dict[str, str]:
    """Return where pods run in the end; nodes are scarcer than quota."""
    chance = random.Random(seed)
    nodes = [
        make_node(f"n{index}", gpu=chance.choice([2, 4, 8]), labels={"kind": "ab"[index % 2]})
        for index in range(6)
    ]
    objects: list[ApiObject] = [*nodes, flavor("f")]
    for name in ("x", "y", "z"):
        objects += [cluster_queue(f"cq-{name}", {"f": {GPU: 30}}), local_queue(name, f"cq-{name}")]
    for index in range(14):
        queue, size = chance.choice("xyz"), chance.randint(1, 6)
        gpu, node = chance.choice([1, 1, 2, 4]), chance.choice(["", "", "a"])
        objects += group(f"g{index}", queue, size, gpu, node)
    cluster = Cluster(objects)
    cluster.schedule()
    cluster.advance(60.0)
    placed = sorted(cluster.placements())
    for name in placed[:: chance.randint(2, 5)]:
        cluster.api.delete(Pod, f"default/{name}")
    cluster.advance(120.0)
    return dict(cluster.placements())


@pytest.mark.parametrize("seed", range(12))
def test_alike_workloads_are_admitted_as_if_each_was_tried(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = story(seed)
    assert found
    monkeypatch.setattr(DryRun, "_beside", plain_fits)
    assert story(seed) == found


def taken_off(queues: int) -> float:
    """Return how often pods are tried off their nodes, for each queue that preempts at once."""
    nodes = [make_node(f"n{index}", gpu=8) for index in range(queues)]
    names = [f"q{index}" for index in range(queues)]
    preemption = {"withinClusterQueue": "LowerPriority"}
    objects: list[ApiObject] = [*nodes, flavor("f"), cohort("org")]
    for name in names:
        objects += [
            cluster_queue(name, {"f": {GPU: 8}}, "org", preemption=preemption),
            local_queue(name, name),
        ]
    cluster = Cluster(objects, plugins={"Queues": {"kueue": {}}})
    for name in names:
        labels = {f"{KUEUE}/queue-name": name}
        cluster.add(*(make_pod(f"{name}-{i}", None, None, labels, gpu=4) for i in range(2)))
    cluster.advance(60)
    for name in names:
        labels = {f"{KUEUE}/queue-name": name}
        cluster.add(make_pod(f"{name}-high", None, None, labels, priority=1, gpu=4))
    with patch.object(
        Snapshot, "remove_pod", autospec=True, side_effect=Snapshot.remove_pod
    ) as off:
        cluster.advance(60)
    assert {f"{name}-high" for name in names} <= set(cluster.placements())
    return off.call_count / queues


def test_of_queues_that_preempt_at_once_none_takes_longer_for_the_others() -> None:
    assert taken_off(24) < 1.5 * taken_off(6)

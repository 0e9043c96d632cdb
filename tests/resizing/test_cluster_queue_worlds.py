"""Random cohorts in which elastic jobs lend and give back: limits hold, and it comes to rest."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, cohort, flavor, local_queue
from tests.resizing.elastic_builders import GPU, cluster_of, events
from tests.resizing.queued_elastic_builders import elastic, job, with_priority

from bayplan.api import ApiObject, Job, Pod
from bayplan.testing import Cluster, make_node

_POLICIES = ("Never", "LowerPriority", "Any")


def world(rng: random.Random) -> tuple[list[ApiObject], int]:
    """Return nodes and queues, and how many GPUs the queues have."""
    names = "ab"[: rng.randint(1, 2)]
    quotas = {name: rng.randint(2, 5) for name in names}
    queues = [
        cluster_queue(
            f"c{name}",
            {"f": {GPU: quota}},
            "co",
            preemption={
                "withinClusterQueue": rng.choice(_POLICIES[:2]),
                "reclaimWithinCohort": rng.choice(_POLICIES),
            },
        )
        for name, quota in quotas.items()
    ]
    locals_ = [local_queue("lq" if name == "a" else "lb", f"c{name}") for name in names]
    nodes = [make_node(f"n{number}", cpu=64, **{GPU: 6}) for number in range(2)]
    return [*nodes, flavor("f"), cohort("co"), *queues, *locals_], sum(quotas.values())


def in_use(cluster: Cluster) -> int:
    return sum(bool(pod.spec.node_name) for pod in cluster.api.list(Pod))


def steps(rng: random.Random, two: bool) -> list[tuple[int, Job | str]]:
    """Return jobs that come, and names of jobs that go, with the seconds in between."""
    found: list[tuple[int, Job | str]] = []
    for number in range(6):
        queue = "lb" if two and rng.random() < 0.5 else "lq"
        name = f"j{number}"
        if number < 2:
            least = rng.randint(1, 2)
            made = elastic(name, least, least + rng.randint(1, 6), queue=queue)
        elif queue == "lq" and rng.random() < 0.5:
            made = with_priority(job(name, rng.randint(1, 4)), rng.choice((0, 10)))
        else:
            made = job(name, rng.randint(1, 4), queue=queue)
        found.append((rng.choice((5, 40, 200)), made))
    found += [(rng.choice((20, 150)), f"j{number}") for number in rng.sample(range(6), 3)]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_cohorts_with_elastic_jobs_keep_their_quota_and_come_to_rest(seed: int) -> None:
    rng = random.Random(seed)
    objects, quota = world(rng)
    cluster = cluster_of(*objects)
    two = any(one.metadata.name == "lb" for one in objects)
    for seconds, what in steps(rng, two):
        if isinstance(what, str):
            cluster.api.delete(Job, f"default/{what}")
        else:
            cluster.add(what)
        for _ in range(0, seconds, 5):
            cluster.advance(5)
            assert in_use(cluster) <= quota
    cluster.advance(900)
    rest = Counter(len(events(cluster, kind)) for kind in ("Resized", "Shrinking"))
    pods = {pod.metadata.uid for pod in cluster.api.list(Pod)}
    cluster.advance(900)
    assert in_use(cluster) <= quota
    assert {pod.metadata.uid for pod in cluster.api.list(Pod)} == pods
    assert Counter(len(events(cluster, kind)) for kind in ("Resized", "Shrinking")) == rest

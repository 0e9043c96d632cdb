"""Limits of queues hold although schedulers are killed while they bind, one after the other."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.live.stage import Stage, stage

from bayplan.api import ApiObject, Pod
from bayplan.testing import make_node, make_object, make_pod

QUEUES = ("a", "b", "c")
MOST = 4
"""Cores that a queue may have."""
PODS = 12
QUOTA = "quota.scheduling.koordinator.sh/name"


def volcano(name: str) -> ApiObject:
    spec = {"weight": 1, "capability": {"cpu": MOST}}
    return _queue("scheduling.volcano.sh/v1beta1", "Queue", name, spec)


def kai(name: str) -> ApiObject:
    free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    cores = {"quota": MOST * 1000, "limit": MOST * 1000, "overQuotaWeight": 1}
    spec = {"resources": {"cpu": cores, "memory": free, "gpu": free}}
    return _queue("scheduling.run.ai/v2", "Queue", name, spec)


def koordinator(name: str) -> ApiObject:
    spec = {"min": {"cpu": MOST}, "max": {"cpu": MOST}}
    return _queue("scheduling.sigs.k8s.io/v1alpha1", "ElasticQuota", name, spec)


def _queue(version: str, kind: str, name: str, spec: object) -> ApiObject:
    meta = {"name": name} | ({"namespace": "default"} if kind == "ElasticQuota" else {})
    return make_object({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})


def pods(mark: str, kind: str, first: int = 0) -> Iterator[ApiObject]:
    """Yield pods of all queues in turn; the queue is the first letter of the pod's name."""
    for number in range(first, first + PODS):
        queue = QUEUES[number % len(QUEUES)]
        yield make_pod(f"{queue}{number}", "1", **{kind: {mark: queue}})


SYSTEMS: dict[str, tuple[Callable[[str], ApiObject], str, str]] = {
    "volcano": (volcano, "scheduling.volcano.sh/queue-name", "annotations"),
    "kai": (kai, "kai.scheduler/queue", "labels"),
    "koordinator": (koordinator, QUOTA, "labels"),
}


def in_use(made: Stage) -> Counter[str]:
    return Counter(key.partition("/")[2][0] for key in made.placements())


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("name", SYSTEMS)
async def test_no_queue_exceeds_its_limit_when_schedulers_are_killed(name: str, seed: int) -> None:
    queue, mark, kind = SYSTEMS[name]
    rng = random.Random(seed)
    nodes = [make_node(f"n{index}", 8, "64Gi") for index in range(3)]
    async with stage([*nodes, *map(queue, QUEUES), *pods(mark, kind)]) as made:
        ticker = asyncio.create_task(made.tick())
        faults, limits = made.server.faults, dict.fromkeys(QUEUES, MOST)
        for number in range(8):
            # Bindings whose answers are lost, and lists that come late.
            faults.close(None, "create", "pods/binding", after=True, share=0.3)
            faults.fail(rng.randrange(4), "list", "pods", code=500)
            app = made.make(clock=asyncio.get_running_loop().time)
            made.run(app)
            # The first one fills the queues, so that there is something to delete.
            wait = rng.choice((0.0, 0.3, None)) if number else None
            if wait is not None:
                await asyncio.sleep(wait)
            async with asyncio.timeout(600):
                while wait is None and in_use(made) != Counter(limits):
                    await asyncio.sleep(0.05)
            for pod in rng.sample(sorted(made.placements()), min(3, len(made.placements()))):
                made.cluster.delete(Pod, pod, grace=0)
                await asyncio.sleep(rng.choice((0.0, 0.02)))
            await made.kill(app)
            assert in_use(made) <= Counter(limits), f"after {number + 1} schedulers"
            made.create(*pods(mark, kind, PODS * (number + 1)))
        faults.clear()
        await made.start(clock=asyncio.get_running_loop().time)
        async with asyncio.timeout(600):
            while in_use(made) != Counter(limits):
                assert in_use(made) <= Counter(limits)
                await asyncio.sleep(0.1)
        await asyncio.sleep(20)
        assert in_use(made) == Counter(limits)
        assert made.server.calls["create", "", "pods/binding", True] > MOST * len(QUEUES)
        ticker.cancel()
        with suppress(asyncio.CancelledError):
            await ticker

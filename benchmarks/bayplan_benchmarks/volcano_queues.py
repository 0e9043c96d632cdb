"""The same jobs in queues of Volcano: admitted by ``enqueue``, placed by ``capacity``."""

from __future__ import annotations

import random
from collections.abc import Iterable

from bayplan.api import (
    ApiObject,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    VolcanoPodGroup,
    VolcanoQueue,
)
from bayplan.api.podgroup import VolcanoPodGroupSpec
from bayplan.api.queue_objects import VolcanoQueueSpec
from bayplan_benchmarks.workloads import container

__all__ = ["jobs_in_queues"]

_GPU = "nvidia.com/gpu"


def jobs_in_queues(count: int, queues: int, most: int, gpus: int) -> list[ApiObject]:
    """Return jobs of 1 to ``most`` pods of one GPU, and their queues.

    :param gpus: those of the cluster, which the queues deserve in equal parts.
    """
    sizes = random.Random(0)  # noqa: S311 - only sizes
    deserved = {_GPU: Quantity(str(gpus // queues))}
    objects: list[ApiObject] = [
        VolcanoQueue(ObjectMeta(name=f"queue-{index}"), VolcanoQueueSpec(deserved=deserved))
        for index in range(queues)
    ]
    for index in range(count):
        objects += _job(f"job-{index}", f"queue-{index % queues}", sizes.randint(1, most))
    return objects


def _job(name: str, queue: str, size: int) -> Iterable[ApiObject]:
    yield VolcanoPodGroup(
        ObjectMeta(name=name, namespace="bench"), VolcanoPodGroupSpec(size, queue=queue)
    )
    one = container("1", "1Gi")
    resources = type(one.resources)({**one.resources.requests, _GPU: Quantity("1")})
    spec = PodSpec(containers=(type(one)(one.name, one.image, resources),))
    group = {"scheduling.k8s.io/group-name": name}
    for index in range(size):
        yield Pod(ObjectMeta(name=f"{name}-{index}", namespace="bench", annotations=group), spec)

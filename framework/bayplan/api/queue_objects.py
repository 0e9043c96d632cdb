"""The queues of Volcano and KAI, in the shapes of their own APIs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bayplan.api.meta import ApiStruct, ObjectMeta, explicit
from bayplan.api.quantity import Quantity
from bayplan.inputs.durations import parse_duration

__all__ = [
    "KaiQueue",
    "KaiQueueResource",
    "VolcanoQueue",
    "kai_queue_problems",
    "volcano_queue_problems",
]

Problem = tuple[str, str]
_MOST_WEIGHT = 65535


# Volcano -----------------------------------------------------------------------------------


class Guarantee(ApiStruct, frozen=True):
    """spec.guarantee: what is kept for the queue."""

    resource: dict[str, Quantity] = {}


class NodeGroupRules(ApiStruct, frozen=True):
    """spec.affinity.nodeGroupAffinity and nodeGroupAntiAffinity: names of node groups."""

    required_during_scheduling_ignored_during_execution: tuple[str, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[str, ...] = ()


class QueueAffinity(ApiStruct, frozen=True):
    """spec.affinity: the node groups that the queue's pods may or may not use."""

    node_group_affinity: NodeGroupRules | None = None
    node_group_anti_affinity: NodeGroupRules | None = None


class VolcanoQueueSpec(ApiStruct, frozen=True):
    """spec of a Volcano queue."""

    weight: int = explicit(1)
    capability: dict[str, Quantity] = {}
    deserved: dict[str, Quantity] = {}
    guarantee: Guarantee | None = None
    reclaimable: bool | None = None
    parent: str = ""
    priority: int = 0
    affinity: QueueAffinity | None = None
    dequeue_strategy: str = ""
    type: str = ""


class VolcanoQueueStatus(ApiStruct, frozen=True):
    """status of a Volcano queue: its state, counts of pod groups by phase, and what it uses."""

    state: str = ""
    unknown: int = 0
    pending: int = 0
    running: int = 0
    inqueue: int = 0
    completed: int = 0
    allocated: dict[str, Quantity] = {}


class VolcanoQueue(ApiStruct, frozen=True):
    """scheduling.volcano.sh/v1beta1 Queue."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolcanoQueueSpec = explicit(VolcanoQueueSpec())
    status: VolcanoQueueStatus = VolcanoQueueStatus()


def volcano_queue_problems(queue: VolcanoQueue) -> Iterator[Problem]:
    """Yield (JSON path, message) for what Volcano's webhook would refuse."""
    spec = queue.spec
    if not 1 <= spec.weight <= _MOST_WEIGHT:
        yield "$.spec.weight", f"expected 1 to {_MOST_WEIGHT}, got {spec.weight}"
    if spec.dequeue_strategy not in ("", "fifo", "traverse"):
        got = spec.dequeue_strategy[:40]
        yield "$.spec.dequeueStrategy", f'expected fifo or traverse, got "{got}"'
    guaranteed = spec.guarantee.resource if spec.guarantee is not None else {}
    named = {
        "capability": spec.capability,
        "deserved": spec.deserved,
        "guarantee.resource": guaranteed,
    }
    for field, amounts in named.items():
        yield from _negative(f"$.spec.{field}", amounts)
    for smaller, larger in (
        ("guarantee.resource", "deserved"),
        ("deserved", "capability"),
        ("guarantee.resource", "capability"),
    ):
        for name, amount in named[smaller].items():
            most = named[larger].get(name)
            if most is not None and amount.amount > most.amount:
                yield (
                    f"$.spec.{smaller}[{name}]",
                    f"{amount.text} is more than {larger} has, {most.text}",
                )
    if spec.parent and spec.parent == queue.metadata.name:
        yield "$.spec.parent", "a queue cannot be its own parent"


def _negative(path: str, amounts: Mapping[str, Quantity]) -> Iterator[Problem]:
    for name, amount in amounts.items():
        if amount.amount < 0:
            yield f"{path}[{name}]", f"expected 0 or more, got {amount.text}"


# KAI ---------------------------------------------------------------------------------------


class KaiQueueResource(ApiStruct, frozen=True):
    """spec.resources.<kind>: -1 is unlimited; CPU in milli-CPU, memory in MB, GPUs in devices."""

    quota: float = 0.0
    over_quota_weight: float = 0.0
    limit: float = 0.0


class KaiQueueResources(ApiStruct, frozen=True):
    """spec.resources of a KAI queue."""

    gpu: KaiQueueResource = KaiQueueResource()
    cpu: KaiQueueResource = KaiQueueResource()
    memory: KaiQueueResource = KaiQueueResource()


class KaiQueueSpec(ApiStruct, frozen=True):
    """spec of a KAI queue; without ``resources`` it may have nothing."""

    display_name: str = ""
    parent_queue: str = ""
    resources: KaiQueueResources | None = None
    priority: int | None = None
    preempt_min_runtime: str | None = None
    reclaim_min_runtime: str | None = None


class KaiQueueCondition(ApiStruct, frozen=True):
    """status.conditions[] of a KAI queue: Orphan, OverQuota, and those of other programs."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class KaiQueueStatus(ApiStruct, frozen=True):
    """status of a KAI queue."""

    child_queues: tuple[str, ...] = ()
    requested: dict[str, Quantity] = {}
    allocated: dict[str, Quantity] = {}
    allocated_non_preemptible: dict[str, Quantity] = {}
    conditions: tuple[KaiQueueCondition, ...] = ()


class KaiQueue(ApiStruct, frozen=True):
    """scheduling.run.ai/v2 Queue."""

    metadata: ObjectMeta = ObjectMeta()
    spec: KaiQueueSpec = explicit(KaiQueueSpec())
    status: KaiQueueStatus = KaiQueueStatus()


def kai_queue_problems(queue: KaiQueue) -> Iterator[Problem]:
    """Yield (JSON path, message) for amounts that mean nothing."""
    resources = queue.spec.resources or KaiQueueResources()
    for name in ("gpu", "cpu", "memory"):
        own: KaiQueueResource = getattr(resources, name)
        path = f"$.spec.resources.{name}"
        for field, amount in (("quota", own.quota), ("limit", own.limit)):
            if amount < 0 and amount != -1:
                yield f"{path}.{field}", f"expected -1 (unlimited), 0 or more, got {amount:g}"
        if own.over_quota_weight < 0:
            yield f"{path}.overQuotaWeight", f"expected 0 or more, got {own.over_quota_weight:g}"
    for field, text in (
        ("preemptMinRuntime", queue.spec.preempt_min_runtime),
        ("reclaimMinRuntime", queue.spec.reclaim_min_runtime),
    ):
        try:
            parse_duration(text or "0s")
        except ValueError as exc:
            yield f"$.spec.{field}", str(exc)
    if queue.spec.parent_queue and queue.spec.parent_queue == queue.metadata.name:
        yield "$.spec.parentQueue", "a queue cannot be its own parent"

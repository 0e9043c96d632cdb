"""Parts of objects that are never suspended, each of which waits in a queue by itself.

Such are the replicas of a LeaderWorkerSet. As with suspended jobs, what is needed to admit one is
in the object's pod templates, whichever of its pods exist already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import KINDS, ApiObject, OwnerReference
from bayplan.api.gang import OwnedPart
from bayplan.api.objects import kind_of
from bayplan.dialects.queued_job_checks import GATES_ANNOTATION, gates_of, refusals_of
from bayplan.dialects.queued_jobs import JobPods, job_pods, priority_of
from bayplan.kinds import (
    KINDS_OF_WORKLOADS,
    TemplateOf,
    WorkloadKind,
    templates_of,
    title_of,
    units_now,
)

__all__ = [
    "QueuedParts",
    "kinds_in_parts",
    "part_of",
    "queued_parts",
    "read_parts",
    "templates_of_sets",
    "title_of_part",
]

_MAIN = "main"


class QueuedParts(msgspec.Struct, frozen=True):
    """What a queue has to know of an object whose parts wait in it.

    :param pods: of one part, one entry for each template; :param numbers: how many parts there are.
    :param priority: the name of the priority class of its pods; "" without one.
    :param problem: why its parts cannot be queued.
    """

    obj: ApiObject
    pods: tuple[JobPods, ...]
    numbers: int
    priority: str = ""
    problem: str = ""

    def pod_set_of(self, labels: Mapping[str, str]) -> str:
        """Return the name of the pod set of a pod by its labels; "" if it tells of none."""
        found = (one.name for one in self.pods if one.labels.items() <= labels.items())
        return next(found, "")

    def has(self, number: str) -> bool:
        """Tell whether the object still has a part."""
        return not number or (number.isdecimal() and int(number) < self.numbers)


def kinds_in_parts() -> tuple[type[ApiObject], ...]:
    """Return the types of objects whose parts queue, those of users' own rows among them."""
    found = (KINDS.get(key) for key, row in KINDS_OF_WORKLOADS.items() if row.queued)
    return tuple(kind.type for kind in found if kind is not None)


def part_of(owner: OwnerReference, number: str) -> OwnedPart | None:
    """Return a part of an object by a reference to it; None where its parts do not queue."""
    row = _row(owner)
    if row is None or not row.queued:
        return None
    return OwnedPart(msgspec.structs.replace(owner, controller=None), number if row.unit else "")


def title_of_part(part: OwnedPart) -> str:
    """Return what the gang of a part's pods is called in its namespace."""
    row, number = _row(part.owner), f":{part.number}" if part.number else ""
    kind = title_of(row) if row is not None else part.owner.kind
    return f"{kind}:{part.owner.name}{number}"


def _row(owner: OwnerReference) -> WorkloadKind | None:
    return KINDS_OF_WORKLOADS.get((owner.api_version.rpartition("/")[0], owner.kind))


def queued_parts(obj: ApiObject) -> QueuedParts:
    """Return what a queue has to know of an object of one of ``kinds_in_parts``."""
    kind = kind_of(obj)
    content = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    return read_parts(KINDS_OF_WORKLOADS[kind.group, kind.name], content, obj)


def read_parts(row: WorkloadKind, content: Mapping[str, Any], obj: ApiObject) -> QueuedParts:
    """Return what a queue has to know of an object.

    :param content: the object as JSON; :param obj: the same, as bayplan reads it.
    """
    try:
        found = templates_of_sets(tuple(templates_of(row, content)))
        pods = tuple(job_pods(row, one, obj) for one in found)
        problem = next(map(str, refusals_of(obj, content, found)), "")
        numbers = units_now(row, content) if not problem else 0
    except ValueError as exc:
        return QueuedParts(obj, (), 0, problem=str(exc))
    gates = gates_of(obj.metadata.annotations)
    if gates and not problem:
        problem = f"{GATES_ANNOTATION}: waits for {', '.join(gates)}"
    return QueuedParts(obj, pods, numbers, priority_of(row, content, pods), problem)


def templates_of_sets(templates: Sequence[TemplateOf]) -> tuple[TemplateOf, ...]:
    """Return templates; roles that share their only one are a single pod set, as in Kueue."""
    if len(templates) < 2 or len({one.pointer for one in templates}) > 1:
        return tuple(templates)
    count = sum(one.count for one in templates)
    return (replace(templates[-1], name=_MAIN, count=count, labels={}),)

"""Moving pods that run: when they started, and where they fit once they are off their nodes."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan import Handle, Placement, PodInfo
from bayplan.dialects.reading import timestamp
from bayplan.plugin.hookspecs import IntColumn

__all__ = ["maker_of", "placed_again", "started_at"]


def maker_of(pod: PodInfo) -> str:
    """Return the controller that makes a pod again; "" for a pod without one."""
    owners = (one for one in pod.pod.metadata.owner_references if one.controller)
    return next((f"{pod.namespace}/{one.kind}/{one.name}/{one.uid}" for one in owners), "")


def started_at(pod: PodInfo) -> float:
    """Return when a pod started, or else when it got its node, or when it was created.

    In seconds since 1970.
    """
    status = pod.pod.status
    bound = next((c for c in status.conditions if c.type == "PodScheduled"), None)
    since = status.start_time or (bound.last_transition_time if bound is not None else None)
    return timestamp(since or pod.pod.metadata.creation_timestamp)


def placed_again(
    handle: Handle, pods: Iterable[PodInfo], rows: IntColumn | None = None
) -> dict[str, str]:
    """Place pods again, job by job, within a trial in which they are off their nodes.

    :param rows: the rows of the nodes that they may have; None for all.
    :returns: the new node of each pod, by key, that fits anywhere.
    :raises PluginError: when a plugin of the profile fails.
    """
    nodes: dict[str, str] = {}
    jobs: dict[str, list[PodInfo]] = {}
    for pod in pods:
        jobs.setdefault(pod.gang or pod.key, []).append(pod)
    for own in jobs.values():
        unit = handle.unit(own)
        given = [Placement("", rows)] if rows is not None else handle.offers(unit).candidates
        for candidate in given:
            found = handle.place(unit, candidate)
            if found is not None:
                nodes |= found
                break
    return nodes

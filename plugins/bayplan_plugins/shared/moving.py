"""Moving pods that run: when they started, and where they fit once they are off their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bayplan import Handle, Placement, PodInfo, Unit
from bayplan.dialects.koordinator.reservations import is_reserve_pod
from bayplan.dialects.reading import timestamp
from bayplan.plugin.hookspecs import IntColumn

__all__ = ["maker_of", "placed_again", "started_at", "still_fit"]


def maker_of(pod: PodInfo) -> str:
    """Return the controller that makes a pod again; "" for a pod without one.

    Nobody makes a pod again that only stands for a reservation, whatever its template copies.
    """
    if is_reserve_pod(pod.pod.metadata.annotations):
        return ""
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
        for candidate in _candidates(handle, unit, rows):
            found = handle.place(unit, candidate)
            if found is not None:
                nodes |= found
                break
    return nodes


def _candidates(handle: Handle, unit: Unit, rows: IntColumn | None) -> Iterator[Placement]:
    """Yield the parts of the cluster that may hold a unit, within rows if any are given.

    Where a gang has to be spread by a plan, a part of its rows is none that may hold it.
    """
    if rows is not None and len(unit.pods) == 1:
        yield Placement("", rows)
        return
    for one in handle.offers(unit).candidates:
        if rows is None:
            yield one
            continue
        own = rows if one.rows is None else one.rows[np.isin(one.rows, rows)]
        if one.rows is not None and one.exact and len(own) < len(one.rows):
            continue
        if len(own):
            yield Placement(one.name, own, plan=one.plan if one.exact else None, exact=one.exact)


def still_fit(handle: Handle, pods: Sequence[PodInfo]) -> bool:
    """Tell whether pods fit elsewhere once they are off their nodes."""
    snapshot = handle.snapshot
    own = [snapshot.placed[pod.key][0] for pod in pods if pod.key in snapshot.placed]
    with snapshot.trial():
        for pod in own:
            snapshot.remove_pod(pod.key)
        return len(placed_again(handle, own)) == len(own)

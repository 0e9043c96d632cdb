"""What a job that has grown over several network domains would gain if it moved into one."""

from __future__ import annotations

from bayplan import Handle, Placement, PodInfo
from bayplan.naming import counted
from bayplan.topology.network.tree import NetworkTree
from bayplan_plugins.resizer.jobs import State

__all__ = ["gain_of_moving"]

_MOST_DOMAINS = 8
"""Domains of a layer that the job is tentatively placed in."""


def gain_of_moving(handle: Handle, tree: NetworkTree, state: State) -> str:
    """Return which domain would hold all pods of a job that are in several now; "" for none.

    The innermost layer counts first. Nothing is evicted for it: it is for whoever decides that a
    restart is worth it.
    """
    snapshot = handle.snapshot
    pods = [pod for one in state.replicas for pod in one.pods]
    rows = [snapshot.nodes.row_of[snapshot.placed[pod.key][1]] for pod in pods]
    for layer in reversed(tree.layers):
        now = {tree.domain_of(row, layer) for row in rows}
        if len(now) == 1:
            return ""
        found = _domain_for(handle, tree, layer, pods)
        if found:
            apart = f"its {counted(len(pods), 'pod')} are in {len(now)} domains of {layer}"
            return f"{apart}; {found} would hold them all"
    return ""


def _domain_for(handle: Handle, tree: NetworkTree, layer: str, pods: list[PodInfo]) -> str:
    """Return the name of a domain in which all pods would be placed, without where they are now."""
    snapshot = handle.snapshot
    starts, ends = tree.bounds(layer)
    tried = 0
    with snapshot.trial():
        for pod in pods:
            snapshot.remove_pod(pod.key)
        unit = handle.unit(pods)
        slots = handle.free_slots(unit.pods[0])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            rows = tree.order[start:end]
            if slots[rows].clip(max=len(pods)).sum() < len(pods):
                continue
            tried += 1
            with snapshot.trial():
                nodes = handle.place(unit, Placement(layer, rows))
            if nodes is not None and len(nodes) == len(pods):
                domain = tree.domain_of(int(rows[0]), layer)
                return domain.label if domain is not None else ""
            if tried >= _MOST_DOMAINS:
                break
    return ""

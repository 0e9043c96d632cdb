"""Pods that have a node and are not bound yet, as others see that only later."""

from __future__ import annotations

from bayplan import Args, Plugin, PodInfo, Wait, hookimpl
from bayplan.api import ApiObject
from bayplan.testing import Cluster

__all__ = ["held_at_permit", "let_go"]


class _Waiting(Plugin[Args]):
    """Holds pods at Permit."""

    @hookimpl
    def permit(self, pod: PodInfo) -> Wait:
        return Wait(30)


def held_at_permit(*objects: ApiObject) -> Cluster:
    """Return a cluster whose pods are assumed on their nodes, and not bound."""
    cluster = Cluster(objects, plugins=[_Waiting])
    cluster.schedule()
    assert cluster.placements() == {}
    return cluster


def let_go(cluster: Cluster, pod: str) -> None:
    """Let a pod go on to its binding."""
    assert cluster.scheduler.allow(f"default/{pod}")
    cluster.schedule()

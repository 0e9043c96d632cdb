"""Which gangs there are and which pods belong to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bayplan.api.gang import Gang
from bayplan.naming import natural_key
from bayplan.snapshot import PodInfo

__all__ = ["GangDirectory", "GangMembers", "rank_order"]


def rank_order(pod: PodInfo) -> tuple[object, ...]:
    """Sort key of a gang's members: stated ranks first, then names with digits as numbers."""
    return (pod.rank is None, pod.rank or 0, natural_key(pod.name), pod.namespace)


@dataclass
class GangMembers:
    """A gang and its living pods: those without a node, and those that hold one."""

    gang: Gang | None = None
    pending: dict[str, PodInfo] = field(default_factory=dict)
    bound: dict[str, tuple[PodInfo, str]] = field(default_factory=dict)


class GangDirectory:
    """All gangs by key (``namespace/name``)."""

    def __init__(self) -> None:
        self._gangs: dict[str, GangMembers] = {}

    def __getitem__(self, key: str) -> GangMembers:
        return self._gangs.setdefault(key, GangMembers())

    def all(self) -> Mapping[str, GangMembers]:
        """Return every gang that is defined or has members."""
        return self._gangs

    def define(self, gang: Gang) -> None:
        """Add or replace a gang's definition."""
        self[gang.key].gang = gang

    def undefine(self, key: str) -> None:
        """Forget a gang's definition; its members stay."""
        self[key].gang = None
        self._drop_if_empty(key)

    def set_pending(self, pod: PodInfo) -> None:
        """Note a member without a node."""
        if pod.gang is not None:
            members = self[pod.gang]
            members.bound.pop(pod.key, None)
            members.pending[pod.key] = pod

    def set_bound(self, pod: PodInfo, node: str) -> None:
        """Note a member that holds a node."""
        if pod.gang is not None:
            members = self[pod.gang]
            members.pending.pop(pod.key, None)
            members.bound[pod.key] = (pod, node)

    def remove(self, pod: PodInfo) -> None:
        """Forget a member."""
        if pod.gang is not None:
            members = self[pod.gang]
            members.pending.pop(pod.key, None)
            members.bound.pop(pod.key, None)
            self._drop_if_empty(pod.gang)

    def _drop_if_empty(self, key: str) -> None:
        members = self._gangs[key]
        if members.gang is None and not members.pending and not members.bound:
            del self._gangs[key]

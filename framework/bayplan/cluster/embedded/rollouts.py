"""The sizes of a Deployment's ReplicaSets during a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from bayplan.api import Deployment, ReplicaSet
from bayplan.api.workloads import RollingDeployment
from bayplan.cluster.embedded.int_or_percent import amount_of

__all__ = [
    "DESIRED",
    "HISTORY",
    "MAXIMUM",
    "REVISION",
    "RolloutLimits",
    "new_size",
    "number_in",
    "old_sizes",
    "proportional_sizes",
    "revision_of",
]

REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"

Sizes = Iterator[tuple[ReplicaSet, int]]


class RolloutLimits(msgspec.Struct, frozen=True):
    """The most pods that may exist, and the fewest that must be available."""

    most: int
    least: int

    @classmethod
    def of(cls, owner: Deployment) -> RolloutLimits:
        """Return the limits of a Deployment."""
        replicas, strategy = owner.spec.replicas, owner.spec.strategy
        if strategy.type == "Recreate":
            return cls(replicas, replicas)
        rolling = strategy.rolling_update or RollingDeployment()
        surge = amount_of(rolling.max_surge, replicas, up=True)
        missing = amount_of(rolling.max_unavailable, replicas, up=False)
        if not surge and not missing:
            # Both percentages rounded to 0: allow one, or the rollout would never start.
            missing = 1
        return cls(replicas + surge if replicas else 0, max(0, replicas - missing))


def number_in(annotations: Mapping[str, str], key: str) -> int:
    """Return the number in an annotation, 0 when it is missing or invalid."""
    text = annotations.get(key, "")
    return int(text) if text.isdecimal() else 0


def revision_of(one: ReplicaSet) -> int:
    """Return the revision of a ReplicaSet, 0 for one without."""
    return number_in(one.metadata.annotations, REVISION)


def new_size(owner: Deployment, sets: list[ReplicaSet], now: int) -> int:
    """Return the next size of the ReplicaSet with the current template.

    :param sets: all ReplicaSets, with the new one if it exists.
    :param now: its present size.
    """
    wanted = owner.spec.replicas
    if owner.spec.strategy.type == "Recreate" or now >= wanted:
        return wanted
    room = RolloutLimits.of(owner).most - sum(one.spec.replicas for one in sets)
    return now + max(0, min(room, wanted - now))


def old_sizes(owner: Deployment, sets: list[ReplicaSet], new: ReplicaSet) -> Sizes:
    """Yield the old ReplicaSets to scale down, with their new sizes.

    Unavailable pods go first.
    """
    least = RolloutLimits.of(owner).least
    old = [one for one in sets if one.metadata.uid != new.metadata.uid]
    sizes = {one.metadata.uid: one.spec.replicas for one in old}
    waiting = new.spec.replicas - (new.status.available_replicas or 0)
    most = sum(sizes.values()) + new.spec.replicas - least - waiting
    if most <= 0:
        return
    for one in old:
        uid = one.metadata.uid
        sick = max(0, sizes[uid] - (one.status.available_replicas or 0))
        gone = min(sick, most)
        sizes[uid] -= gone
        most -= gone
    spare = sum(one.status.available_replicas or 0 for one in sets) - least
    for one in old:
        gone = max(0, min(sizes[one.metadata.uid], spare))
        sizes[one.metadata.uid] -= gone
        spare -= gone
    yield from ((one, s) for one in old if (s := sizes[one.metadata.uid]) != one.spec.replicas)


def proportional_sizes(owner: Deployment, sets: list[ReplicaSet], new: ReplicaSet | None) -> Sizes:
    """Yield the ReplicaSets and their sizes after spec.replicas changed."""
    active = [one for one in sets if one.spec.replicas]
    latest = new or max(sets, key=revision_of, default=None)
    if len(active) <= 1:
        only = active[0] if active else latest
        if only is not None:
            yield only, owner.spec.replicas
        return
    if new is not None and _is_saturated(owner, new):
        yield from ((one, 0) for one in active if one.metadata.uid != new.metadata.uid)
        return
    if owner.spec.strategy.type == "RollingUpdate":
        yield from _shares(owner, active)


def _is_saturated(owner: Deployment, new: ReplicaSet) -> bool:
    wanted = owner.spec.replicas
    return (
        new.metadata.annotations.get(DESIRED) == str(wanted)
        and new.spec.replicas == wanted
        and (new.status.available_replicas or 0) == wanted
    )


def _shares(owner: Deployment, active: list[ReplicaSet]) -> Sizes:
    """Distribute the change in proportion to the ReplicaSets' sizes."""
    most = RolloutLimits.of(owner).most
    added = most - sum(one.spec.replicas for one in active)
    newest = added > 0
    order = sorted(
        enumerate(active),
        key=lambda item: (-item[1].spec.replicas, -item[0] if newest else item[0]),
    )
    left, sizes = added, []
    for _, one in order:
        share = _share(owner, one, most)
        share = min(max(share, 0), left) if newest else max(min(share, 0), left)
        left -= share
        sizes.append(one.spec.replicas + share)
    sizes[0] = max(0, sizes[0] + left)
    yield from zip((one for _, one in order), sizes, strict=True)


def _share(owner: Deployment, one: ReplicaSet, most: int) -> int:
    """Return how many pods a ReplicaSet gains (or loses) in proportion."""
    if not owner.spec.replicas:
        return -one.spec.replicas
    before = number_in(one.metadata.annotations, MAXIMUM) or owner.status.replicas or most
    return int(one.spec.replicas * most / before + 0.5) - one.spec.replicas

"""How many alike pods were found to fit, and not to, while nothing changes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from bayplan import Handle, PodInfo
from bayplan.api.gang import Gang
from bayplan_plugins.queues.kueue.gates import is_gated

__all__ = ["TriedSizes", "kind_of"]

_OWN = "kueue.x-k8s.io/"


class _Bounds(msgspec.Struct):
    """The most pods that fitted, and the fewest that did not."""

    fit: float = 0.0
    refused: float = math.inf


class TriedSizes:
    """Bounds by kind of pods: fewer of a kind that fits do too, more of one that does not do not.

    They are those of one trial, and hold as long as nothing is changed in it.
    """

    def __init__(self) -> None:
        self._bounds: dict[Hashable, _Bounds] = {}
        self._mark = -1

    def answer(self, kind: Hashable, count: int, mark: int) -> bool | None:
        """Tell whether so many pods of a kind fit; None where nothing says it.

        :param mark: the trial's mark, another one after every change.
        """
        if mark != self._mark:
            self._mark = mark
            self._bounds.clear()
        known = self._bounds.get(kind, _Bounds())
        if count <= known.fit:
            return True
        return False if count >= known.refused else None

    def add(self, kind: Hashable, count: int, fits: bool) -> None:
        """Record whether so many pods fit, at the mark of the last question."""
        known = self._bounds.setdefault(kind, _Bounds())
        if fits:
            known.fit = max(known.fit, count)
        else:
            known.refused = min(known.refused, count)


def kind_of(handle: Handle, pods: Sequence[PodInfo], flavors: Mapping[str, str]) -> Hashable | None:
    """Return what pods of one pod set share if they are alike, and need nodes only; else None.

    :param pods: all pods of a workload, without nodes.
    :param flavors: their flavors by resource.
    """
    first = pods[0]
    spec = first.spec
    apart = (
        first.terms
        or first.facts.uses_claims
        or spec.resource_claims
        or spec.topology_spread_constraints
        or handle.snapshot.index.holds_terms
    )
    stated = _annotations(first)
    alike = all(
        pod.facts is first.facts and pod.gang == first.gang and _annotations(pod) == stated
        for pod in pods
    )
    gang = handle.gang(first.gang).gang if first.gang is not None else None
    if apart or not alike or not _is_plain(gang, len(pods)):
        return None
    chosen = tuple(sorted(flavors.items()))
    return first.facts, first.priority, is_gated(first), frozenset(stated.items()), chosen


def _annotations(pod: PodInfo) -> dict[str, str]:
    return {name: text for name, text in pod.annotations.items() if not name.startswith(_OWN)}


def _is_plain(gang: Gang | None, count: int) -> bool:
    """Tell whether a gang of so many pods asks for nothing but nodes for all of them."""
    if gang is None:
        return count == 1
    bare = Gang(gang.key, count)
    return replace(
        bare, wait=gang.wait, whole=gang.whole, queue=gang.queue, match_policy=gang.match_policy
    ) == replace(gang, satisfied=False, admitted=True)

"""Segments of a gang: runs of pods by index, each in a domain of its own.

KAI's annotations of a pod template cut a role into segments, and a LeaderWorkerSet's subGroupPolicy
a group of a leader and its workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from bayplan.api.gang import Gather, SubGroup
from bayplan.api.selectors import Requirement, Selector
from bayplan.dialects.kai import segment_of
from bayplan.dialects.reading import is_index
from bayplan.kinds import Role, SegmentSizes

__all__ = ["SegmentRule", "segment_rule", "segments_of_group", "segments_of_role"]

_MOST_SEGMENTS = 10_000


class SegmentRule(msgspec.Struct, frozen=True):
    """How long segments are, if annotations say it, where each lies, and the Topology's name."""

    size: int | None = None
    gather: tuple[Gather, ...] = ()
    topology: str = ""


_WHOLE = SegmentRule()


def segment_rule(annotations: Mapping[str, str], inherited: Mapping[str, str]) -> SegmentRule:
    """Return what annotations say of segments.

    :param annotations: those of a pod template; :param inherited: those of the owner.
    :raises ValueError: for a size that is none.
    """
    if not annotations and not inherited:
        return _WHOLE
    text, gather, topology = segment_of(annotations, inherited)
    if text is None:
        return SegmentRule(None, gather, topology)
    if not (is_index(text) and int(text) > 0):
        raise ValueError(f'expected a segment size of 1 or more, got "{text[:40]}"')
    return SegmentRule(int(text), gather, topology)


def segments_of_role(
    role: Role, least: int, size: int, gather: tuple[Gather, ...], selector: Selector
) -> Iterator[SubGroup]:
    """Yield the segments of a role, which is a sub-group itself.

    :param least: how many of its pods are needed; segments beyond these are not.
    :raises ValueError: for more segments than anybody can mean.
    """
    first = role.made.first
    starts = range(0, role.count, size)
    _limit(len(starts))
    needed = -(-least // size)
    for number, start in enumerate(starts):
        indexes = range(first + start, first + min(start + size, role.count))
        yield SubGroup(
            f"{role.name}-{number}",
            _with_indexes(selector, role.made.index, indexes),
            size=len(indexes) if number < needed else 0,
            min_groups=needed,
            gather=gather,
            parent=role.name,
            kind=f"child of {role.name}",
        )


def segments_of_group(
    sizes: SegmentSizes, pods: int, gather: tuple[Gather, ...]
) -> Iterator[SubGroup]:
    """Yield the segments of a leader and its workers.

    Where the workers alone can be divided, the leader comes on top of the first segment.

    :param pods: how many there are, with the leader.
    :raises ValueError: for sizes that do not divide.
    """
    size = sizes.size
    if not 0 < size <= pods:
        raise ValueError(f"subGroupSize: expected 1 to {pods}, got {size}")
    divides = (pods - 1) % size == 0
    if sizes.leader_excluded and not divides:
        raise ValueError(f"subGroupSize: {pods - 1} workers cannot be divided by {size}")
    groups: dict[int, list[int]] = {}
    for index in range(1, pods):
        groups.setdefault((index - 1) // size if divides else index // size, []).append(index)
    if sizes.leader_excluded:
        yield _segment("leader", sizes, (0,), ())
    else:
        groups.setdefault(0, []).insert(0, 0)
    _limit(len(groups))
    for number, indexes in sorted(groups.items()):
        yield _segment(f"segment-{number}", sizes, indexes, gather)


def _segment(
    name: str, sizes: SegmentSizes, indexes: Iterable[int], gather: tuple[Gather, ...]
) -> SubGroup:
    selector = _with_indexes(Selector(()), sizes.index, indexes)
    (found,) = (one for one in selector.requirements if one.key == sizes.index)
    return SubGroup(name, selector, size=len(found.values), gather=gather)


def _with_indexes(selector: Selector, label: str, indexes: Iterable[int]) -> Selector:
    values = frozenset(str(index) for index in indexes)
    return Selector((*selector.requirements, Requirement(label, "In", values)))


def _limit(segments: int) -> None:
    if segments > _MOST_SEGMENTS:
        raise ValueError(f"expected at most {_MOST_SEGMENTS} segments, got {segments}")

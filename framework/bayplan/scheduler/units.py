"""Turns pending pods into the unit of a cycle: a pod, a gang with sub-groups, a group of gangs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from bayplan.api.gang import Gang, SubGroup
from bayplan.api.selectors import Selector
from bayplan.dialects.tensor_fusion import side_of, workload_of
from bayplan.gangs.completeness import counts_ending, rank_order
from bayplan.gangs.directory import GangDirectory, GangMembers
from bayplan.plugin.base import Unit
from bayplan.scheduler.nominator import Nomination
from bayplan.snapshot import PodInfo

__all__ = ["make_unit"]

Bound = Sequence[tuple[PodInfo, str]]


def make_unit(
    key: str,
    pods: Iterable[PodInfo],
    gangs: GangDirectory,
    nomination: Nomination | None = None,
    gang: Gang | None = None,
) -> Unit:
    """Return the unit of some pods, as if they were pending: one pod, or members of gangs.

    :param key: the unit's key, as ``GangDirectory.unit_of`` gives it.
    :param pods: not empty.
    :param gang: the definition of their gang, where objects will say something else than now.
    """
    if gang is None:
        unit = _plain_unit(key, list(pods), gangs)
    else:
        members = gangs.all().get(gang.key, GangMembers())
        unit = _of_members(key, members, gang, pods, satisfied=False)
        unit.gang = replace(gang, min_member=len(unit.bound) + len(unit.pods))
    if nomination is not None:
        unit.nominated, unit.nominated_domain = nomination.nodes, nomination.domain
    return unit


def _plain_unit(key: str, pods: list[PodInfo], gangs: GangDirectory) -> Unit:
    if pods[0].gang is None:
        return Unit(key, pods)
    keys = gangs.gangs_of(key)
    if len(keys) == 1:
        return _of_gang(key, keys[0], pods, gangs)
    return _of_group(key, keys, pods, gangs)


def _of_gang(key: str, gang_key: str, pods: Iterable[PodInfo], gangs: GangDirectory) -> Unit:
    members = gangs[gang_key]
    satisfied = gangs.is_satisfied((gang_key,))
    return _of_members(key, members, members.gang, pods, satisfied)


def _of_members(
    key: str, members: GangMembers, gang: Gang | None, pods: Iterable[PodInfo], satisfied: bool
) -> Unit:
    ordered = sorted(pods, key=rank_order)
    own = {pod.key for pod in ordered}
    ending = gang is None or counts_ending(gang, satisfied)
    left_out = own if ending else own | members.ending
    others = (pair for key, pair in members.bound.items() if key not in left_out)
    bound = sorted(others, key=lambda item: rank_order(item[0]))
    done = sorted((pod for pod in members.done if pod.key not in own), key=rank_order)
    unit = Unit(key, ordered, gang, bound, satisfied=satisfied, succeeded=done)
    if gang is not None and gang.sub_groups:
        unit.parts = _parts(gang, "", ordered, bound, done)
    elif gang is not None and not gang.slices:
        unit.parts = _pairs(gang, unit)
    return unit


def _of_group(key: str, keys: Sequence[str], pods: Sequence[PodInfo], gangs: GangDirectory) -> Unit:
    """Join several gangs: one network domain for all, each with its own minimum."""
    tree = next((one.tree for k in keys if (one := gangs[k].gang) is not None and one.tree), ())
    if tree:
        return _of_tree(key, tree, pods, gangs)
    parts = []
    for gang_key in keys:
        own = [pod for pod in pods if pod.gang == gang_key]
        part = _of_gang(gang_key, gang_key, own, gangs)
        if part.gang is not None:
            part.gang = replace(part.gang, gather=(), slices=())
        part.kind = gang_key
        parts.append(part)
    first = next((gangs[k].gang for k in keys if gangs[k].gang is not None), None)
    definitions = [gangs[k].gang for k in keys]
    whole = None
    if first is not None:
        whole = replace(
            first,
            key=key,
            min_member=sum(gang.min_member for gang in definitions if gang is not None),
            sub_groups=(),
            roles=(),
        )
    return Unit(
        key,
        [pod for part in parts for pod in part.pods],
        whole,
        [pair for part in parts for pair in part.bound],
        _by_size(parts),
        satisfied=all(part.satisfied for part in parts),
    )


def _of_tree(
    key: str, tree: Sequence[SubGroup], pods: Sequence[PodInfo], gangs: GangDirectory
) -> Unit:
    """Join the gangs of a tree of groups, each with its own domain and its own minimum."""
    by_gang: dict[str, list[PodInfo]] = {}
    for pod in pods:
        by_gang.setdefault(pod.gang or "", []).append(pod)
    unit = _of_branch(tree[0], tree, by_gang, gangs)
    unit.key = key
    if unit.gang is not None:
        unit.gang = replace(unit.gang, key=key)
    return unit


def _of_branch(
    node: SubGroup,
    tree: Sequence[SubGroup],
    by_gang: Mapping[str, list[PodInfo]],
    gangs: GangDirectory,
) -> Unit:
    """Return a gang of a tree, or a group of them with those that it needs at least."""
    if node.size:
        unit = _of_gang(node.name, node.name, by_gang.get(node.name, ()), gangs)
    else:
        parts = [_of_branch(one, tree, by_gang, gangs) for one in tree if one.parent == node.name]
        sizes = sorted(part.gang.min_member for part in parts if part.gang is not None)
        needed = max((part.needed for part in parts), default=0)
        first = next((part.gang for part in parts if part.gang is not None), Gang(node.name, 0))
        own = replace(_plain(first, node.name, sum(sizes[:needed])), gather=node.gather, tree=())
        unit = Unit(
            node.name,
            [pod for part in parts for pod in part.pods],
            own,
            [pair for part in parts for pair in part.bound],
            _by_size(parts),
            satisfied=bool(parts) and all(part.satisfied for part in parts if part.pods),
        )
    unit.kind, unit.needed = node.kind, node.min_groups
    return unit


def _parts(
    gang: Gang, parent: str, pods: Sequence[PodInfo], bound: Bound, done: Sequence[PodInfo]
) -> list[Unit]:
    """Return the sub-groups under ``parent``, the largest first; the rest of the pods last."""
    parts: list[Unit] = []
    taken: set[str] = set()
    members = _MembersByLabels(pods, bound, done)
    for sub_group in gang.sub_groups:
        if sub_group.parent == parent:
            for part in _groups_of(gang, sub_group, members):
                parts.append(part)
                taken |= {pod.key for pod in part.pods}
    if not parts:
        return []
    rest = [pod for pod in pods if pod.key not in taken]
    ordered = _by_size(parts)
    if rest:
        others = _plain(gang, f"{gang.key}/others", 0)
        ordered.append(Unit(others.key, rest, others, kind=others.key, needed=0))
    return ordered


def _pairs(gang: Gang, unit: Unit) -> list[Unit]:
    """Return a part for each workload with GPUs over the network, its workers before its clients.

    The rest of the pods come last; there are no parts without workers to place.
    """
    if all(side_of(pod.pod) != "worker" for pod in unit.pods):
        return []
    groups: dict[str, list[PodInfo]] = {}
    for pod in unit.pods:
        groups.setdefault(workload_of(pod.pod) if side_of(pod.pod) else "", []).append(pod)
    rest = groups.pop("", [])
    counts = {len(own) for own in groups.values()}
    # If all are alike, some of them will do for a gang that does not need all of its members.
    spare = len(unit.pods) - max(unit.min_placed, len(rest)) if len(counts) == 1 else 0
    needed = len(groups) - spare // max(counts, default=1)
    parts = []
    for name, pods in groups.items():
        pods.sort(key=lambda pod: side_of(pod.pod) != "worker")
        own_gang = _plain(gang, f"{gang.key}/{name}", len(pods))
        parts.append(Unit(own_gang.key, pods, own_gang, kind="workload", needed=needed))
    if rest:
        others = _plain(gang, f"{gang.key}/others", 0)
        parts.append(Unit(others.key, rest, others, kind=others.key, needed=0))
    return parts


def _plain(gang: Gang, key: str, least: int) -> Gang:
    """Return a gang for some of a gang's members, without the constraints on the whole."""
    return replace(
        gang,
        key=key,
        min_member=least,
        gather=(),
        slices=(),
        sub_groups=(),
        roles=(),
        together=(),
        min_resources=(),
    )


def _by_size(parts: Sequence[Unit]) -> list[Unit]:
    return sorted(parts, key=lambda part: -len(part.pods))


class _MembersByLabels:
    """Members of a gang, found by the labels that a sub-group selects: many carry the same ones."""

    def __init__(self, pods: Sequence[PodInfo], bound: Bound, done: Sequence[PodInfo]) -> None:
        self._pods: dict[object, list[tuple[int, PodInfo]]] = {}
        self._bound: dict[object, list[tuple[int, PodInfo, str]]] = {}
        self._labels: dict[object, Mapping[str, str]] = {}
        self._with: dict[tuple[str, str], list[object]] = {}
        for order, pod in enumerate(pods):
            self._pods.setdefault(self._kind(pod), []).append((order, pod))
        for order, (pod, node) in enumerate(bound):
            self._bound.setdefault(self._kind(pod), []).append((order, pod, node))
        self._done: dict[object, list[PodInfo]] = {}
        for pod in done:
            self._done.setdefault(self._kind(pod), []).append(pod)

    def _kind(self, pod: PodInfo) -> object:
        if pod.labels_id not in self._labels:
            self._labels[pod.labels_id] = pod.labels
            for item in pod.labels.items():
                self._with.setdefault(item, []).append(pod.labels_id)
        return pod.labels_id

    def selected(
        self, sub_group: SubGroup
    ) -> tuple[
        list[tuple[PodInfo, tuple[str, ...]]],
        list[tuple[PodInfo, str, tuple[str, ...]]],
        list[tuple[PodInfo, tuple[str, ...]]],
    ]:
        """Return pending, bound and succeeded members, each with its values of the label keys."""
        done: list[tuple[PodInfo, tuple[str, ...]]] = []
        pods: list[tuple[int, PodInfo, tuple[str, ...]]] = []
        bound: list[tuple[int, PodInfo, str, tuple[str, ...]]] = []
        for kind in self._candidates(sub_group.selector):
            labels = self._labels[kind]
            mark = tuple(labels.get(key, "") for key in sub_group.label_keys)
            if not all(mark) or not sub_group.selector.matches(labels):
                continue
            pods += [(order, pod, mark) for order, pod in self._pods.get(kind, ())]
            bound += [(order, pod, node, mark) for order, pod, node in self._bound.get(kind, ())]
            done += [(pod, mark) for pod in self._done.get(kind, ())]
        pods.sort(key=lambda one: one[0])
        bound.sort(key=lambda one: one[0])
        return [one[1:] for one in pods], [one[1:] for one in bound], done

    def _candidates(self, selector: Selector) -> Iterable[object]:
        """Return the kinds of labels that a selector may select."""
        for term in selector.requirements:
            if term.operator == "In":
                pairs = ((term.key, value) for value in sorted(term.values))
                return [kind for pair in pairs for kind in self._with.get(pair, ())]
        return list(self._labels)


def _groups_of(gang: Gang, sub_group: SubGroup, members: _MembersByLabels) -> list[Unit]:
    groups: dict[
        tuple[str, ...], tuple[list[PodInfo], list[tuple[PodInfo, str]], list[PodInfo]]
    ] = {}
    pods, bound, done = members.selected(sub_group)
    for pod, mark in pods:
        groups.setdefault(mark, ([], [], []))[0].append(pod)
    for pod, node, mark in bound:
        groups.setdefault(mark, ([], [], []))[1].append((pod, node))
    for pod, mark in done:
        groups.setdefault(mark, ([], [], []))[2].append(pod)
    if not groups and sub_group.min_groups:
        # No member is in it yet: an empty part makes the gang report that it lacks one.
        groups[()] = ([], [], [])
    parts = []
    for mark, (own, placed, succeeded) in groups.items():
        name = "-".join((sub_group.name, *mark))
        own_gang = replace(
            _plain(gang, f"{gang.key}/{name}", sub_group.size),
            gather=sub_group.gather,
            slices=sub_group.slices,
            topology=sub_group.topology or gang.topology,
        )
        part = Unit(own_gang.key, own, own_gang, placed, succeeded=succeeded)
        part.kind, part.needed = sub_group.kind or sub_group.name, sub_group.min_groups
        if any(child.parent == sub_group.name for child in gang.sub_groups):
            part.parts = _parts(gang, sub_group.name, own, placed, succeeded)
        parts.append(part)
    return parts

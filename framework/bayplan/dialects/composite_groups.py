"""Kubernetes 1.37: trees of pod groups, by CompositePodGroups (scheduling.k8s.io, KEP-6012).

The pod groups of a tree are gangs that are placed together. Each composite group says how many of
the groups right below it have to run, and in one domain of which label they lie.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.api import CompositePodGroup, NativePodGroup
from bayplan.api.gang import Gang, Gather, SubGroup
from bayplan.api.object_key import object_key

__all__ = ["CompositeTree", "with_tree"]

_MOST_LEVELS = 4
Groups = Mapping[str, NativePodGroup]
Composites = Mapping[str, CompositePodGroup]


class CompositeTree:
    """The tree of one composite group that has no parent.

    :param root: its key; :param groups: all pod groups, :param composites: all composite ones, by
        key.
    """

    def __init__(self, root: str, groups: Groups, composites: Composites) -> None:
        self.root = root
        self._composites = composites
        self._children: dict[str, list[str]] = {}
        self._leaves = {
            key for key, one in groups.items() if one.spec.parent_composite_pod_group_name
        }
        for key, parent in _parents(groups, composites):
            self._children.setdefault(parent, []).append(key)
        self.leaves = tuple(sorted(self._below(root, 1)))

    def _below(self, key: str, level: int) -> list[str]:
        """Return the keys of the pod groups below a composite group.

        Nothing has a circle below it that has no parent; what is too deep is cut off.
        """
        if level > _MOST_LEVELS + 1:
            return []
        children = self._children.get(key, ())
        own = [one for one in children if one in self._leaves]
        composites = (one for one in children if one in self._composites)
        return own + [leaf for one in composites for leaf in self._below(one, level + 1)]

    def problem(self) -> str | None:
        """Return what makes the whole tree invalid, None for nothing."""
        workloads, stack = set(), [(self.root, 1)]
        while stack:
            key, level = stack.pop()
            composite = self._composites[key]
            if level > _MOST_LEVELS:
                return f"its tree of groups has more than {_MOST_LEVELS} levels"
            if composite.spec.workload_ref is not None:
                workloads.add(composite.spec.workload_ref.workload_name)
            policy = composite.spec.scheduling_policy
            if policy is None or (policy.basic is None) == (policy.gang is None):
                name = object_key(composite)
                expected = "expected exactly one of basic and gang"
                return f"CompositePodGroup {name}: schedulingPolicy: {expected}"
            if policy.gang is not None and policy.gang.min_group_count < 1:
                name, got = object_key(composite), policy.gang.min_group_count
                return f"CompositePodGroup {name}: minGroupCount: expected 1 or more, got {got}"
            children = self._children.get(key, ())
            stack += [(one, level + 1) for one in children if one in self._composites]
        if len(workloads) > 1:
            return f"its tree of groups is of several Workloads: {', '.join(sorted(workloads))}"
        return None

    def parts(self) -> tuple[SubGroup, ...]:
        """Return the groups of the tree, each after the one that it is in, named by key."""
        return tuple(self._parts(self.root, ""))

    def _parts(self, key: str, parent: str) -> list[SubGroup]:
        needed = self._needed(parent) if parent else 1
        kind = f"child of {parent}" if parent else "root"
        if key in self._leaves and key not in self._composites:
            return [SubGroup(key, min_groups=needed, parent=parent, kind=kind)]
        topology = self._composites[key].spec.scheduling_constraints.topology
        gather = tuple(Gather(one.key, required=True) for one in topology)
        own = SubGroup(key, size=0, min_groups=needed, gather=gather, parent=parent, kind=kind)
        children = sorted(self._children.get(key, ()))
        return [own, *(part for one in children for part in self._parts(one, key))]

    def _needed(self, key: str) -> int:
        """Return how many groups right below a composite group have to run."""
        policy = self._composites[key].spec.scheduling_policy
        return policy.gang.min_group_count if policy is not None and policy.gang is not None else 0


def _parents(groups: Groups, composites: Composites) -> list[tuple[str, str]]:
    """Return the groups that have a parent, each with the key of that."""
    objects: dict[str, NativePodGroup | CompositePodGroup] = {**groups, **composites}
    return [
        (key, f"{one.metadata.namespace}/{one.spec.parent_composite_pod_group_name}")
        for key, one in objects.items()
        if one.spec.parent_composite_pod_group_name
    ]


def root_of(group: NativePodGroup, composites: Composites) -> tuple[str, str]:
    """Return the key of the root of the tree of a pod group, and what is wrong with the way."""
    name, seen = group.spec.parent_composite_pod_group_name, set[str]()
    key = ""
    while name:
        key = f"{group.metadata.namespace}/{name}"
        if key in seen:
            return key, f"CompositePodGroup {key} is part of itself"
        if key not in composites:
            return key, f"waits for CompositePodGroup {key}, which does not exist"
        seen.add(key)
        name = composites[key].spec.parent_composite_pod_group_name
    return key, ""


def with_tree(gang: Gang, group: NativePodGroup, groups: Groups, composites: Composites) -> Gang:
    """Return the gang of a pod group as a part of the tree that the group is in."""
    if gang.problem is not None or not group.spec.parent_composite_pod_group_name:
        return gang
    root, problem = root_of(group, composites)
    if problem:
        return replace(gang, problem=problem)
    tree = CompositeTree(root, groups, composites)
    invalid = tree.problem()
    if invalid is not None:
        return replace(gang, problem=invalid)
    mode = composites[root].spec.disruption_mode
    whole = gang.whole or (isinstance(mode, dict) and "all" in mode)
    return replace(gang, together=tree.leaves, tree=tree.parts(), whole=whole)

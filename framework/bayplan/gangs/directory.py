"""Which gangs there are, which pods belong to them, and which are placed together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from bayplan.api.gang import Gang
from bayplan.gangs.completeness import counts_ending, counts_succeeded, has_minimum
from bayplan.snapshot import PodInfo

__all__ = ["GangDirectory", "GangMembers"]

_MOST_GONE = 10_000
"""So many gangs without members are remembered."""


class GangMembers(msgspec.Struct, eq=False, weakref=True):
    """A gang and its members: ``pending`` without a node, ``bound`` with one.

    ``owners`` counts living members by the kind and key of their controller ("", "" without one).
    ``ended`` holds the phases of members that have ended, by key, ``succeeded`` those members that
    have succeeded. ``lasts`` is set where these remind of a gang that its pods define, until they
    are deleted. ``was_complete`` is set once enough members were bound. ``restarting`` is set while
    what is left of it is evicted, until it is complete again. ``overdue`` is set when members are
    missing for longer than ``timeout`` seconds, the time that the gang allows. ``by_objects`` and
    ``by_pods`` are the definitions given by PodGroups (by kind) and by the annotations of pods (by
    key). ``ending`` are the keys of those bound members that end. ``former`` are the nodes that the
    members held that went last, by key: who is made again comes back there. ``version`` counts the
    changes of members and definition. ``most`` is how many members there were at a time, when one
    went.
    """

    gang: Gang | None = None
    pending: dict[str, PodInfo] = msgspec.field(default_factory=dict)
    bound: dict[str, tuple[PodInfo, str]] = msgspec.field(default_factory=dict)
    was_complete: bool = False
    restarting: bool = False
    overdue: bool = False
    timeout: float | None = None
    by_objects: dict[str, Gang] = msgspec.field(default_factory=dict)
    by_pods: dict[str, Gang] = msgspec.field(default_factory=dict)
    ended: dict[str, str] = msgspec.field(default_factory=dict)
    succeeded: dict[str, PodInfo] = msgspec.field(default_factory=dict)
    lasts: bool = False
    owners: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    ending: set[str] = msgspec.field(default_factory=set)
    former: dict[str, str] = msgspec.field(default_factory=dict)
    most: int = 0
    version: int = 0

    @property
    def present(self) -> int:
        """How many members exist and have not ended."""
        return len(self.pending) + len(self.bound)

    @property
    def staying(self) -> int:
        """How many members hold a node and do not end."""
        return len(self.bound) - len(self.ending)

    @property
    def done(self) -> Collection[PodInfo]:
        """The members that have succeeded, where they count towards the minimum."""
        counts = self.gang is not None and counts_succeeded(self.gang)
        return self.succeeded.values() if counts else ()

    @property
    def counted(self) -> int:
        """How many members count towards the minimum that need not be placed."""
        ending = self.gang is not None and counts_ending(self.gang, self.satisfied)
        return (len(self.bound) if ending else self.staying) + len(self.done)

    @property
    def satisfied(self) -> bool:
        """Whether the gang was complete before, as seen here or as its object says."""
        stated = self.gang is not None and self.gang.satisfied
        return not self.restarting and (self.was_complete or stated)

    @property
    def running(self) -> int:
        """How many members run."""
        return sum(pod.pod.status.phase == "Running" for pod, _ in self.bound.values())

    def count_ended(self, phase: str) -> int:
        """Return how many members have ended in a phase, Succeeded or Failed."""
        return sum(other == phase for other in self.ended.values())


class GangDirectory:
    """All gangs by key (``namespace/name``).

    A *unit* is what one cycle places: a single gang, or the gangs that name each other as a
    group; the key of a group is the keys of its gangs, sorted and joined by commas.

    :param on_change: called with the key of each gang whose members or definition changed.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._gangs: dict[str, GangMembers] = {}
        self._named_by: dict[str, set[str]] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._former: OrderedDict[str, dict[str, str]] = OrderedDict()
        """Where the members of gangs were that are gone for now, by their keys."""

    def __getitem__(self, key: str) -> GangMembers:
        members = self._gangs.get(key)
        if members is None:
            members = self._gangs[key] = GangMembers(former=self._former.pop(key, {}))
        return members

    def former_nodes(self, key: str) -> Mapping[str, str]:
        """Return the nodes that members of a gang hold, or held before they went, by pod key."""
        members = self._gangs.get(key)
        if members is None:
            return self._former.get(key, {})
        return members.former | {pod: node for pod, (_, node) in members.bound.items()}

    def all(self) -> Mapping[str, GangMembers]:
        """Return every gang that is defined or has members."""
        return self._gangs

    # Units -------------------------------------------------------------------------------

    def unit_of(self, pod: PodInfo) -> str:
        """Return the key of the unit that a pod belongs to."""
        if pod.gang is None:
            return pod.key
        members = self._gangs.get(pod.gang)
        gang = members.gang if members is not None else None
        if gang is None or len(gang.together) < 2:
            return pod.gang
        key = ",".join(gang.together)
        self._groups[key] = gang.together
        return key

    def gangs_of(self, unit_key: str) -> tuple[str, ...]:
        """Return the keys of the gangs that make up a unit."""
        return self._groups.get(unit_key, (unit_key,))

    # Definitions -------------------------------------------------------------------------

    def define(self, gang: Gang, source: str) -> set[str]:
        """Add or replace the definition that an object of kind ``source`` gives.

        :returns: the keys of the gangs whose definition changed.
        """
        self[gang.key].by_objects[source] = gang
        return self._resolve_all(gang.key)

    def undefine(self, key: str, source: str) -> set[str]:
        """Drop the definition that an object gave; the gang's members stay.

        :returns: the keys of the gangs whose definition changed.
        """
        self[key].by_objects.pop(source, None)
        changed = self._resolve_all(key)
        self._drop_if_empty(key)
        return changed

    def _resolve_all(self, key: str) -> set[str]:
        """Resolve a gang, and the gangs that its old or new definition names."""
        before = self._gangs[key].gang
        named = {key, *(before.together if before is not None else ())}
        fresh = self._merged(key)
        if fresh is not None:
            named |= set(fresh.together)
            for other in fresh.together:
                self._named_by.setdefault(other, set()).add(key)
        named |= self._named_by.get(key, set())
        changed = set()
        for other in sorted(named):
            self._on_change(other)
            members = self._gangs.get(other)
            if members is not None:
                members.version += 1
                members.gang, old = self._agreed(self._merged(other)), members.gang
                if members.gang != old:
                    changed.add(other)
        return changed

    def _merged(self, key: str) -> Gang | None:
        """Return the definition given by the gang's object, or else by its pods."""
        members = self._gangs.get(key)
        if members is None:
            return None
        if len(members.by_objects) > 1:
            sources = " and by ".join(f"a {source}" for source in sorted(members.by_objects))
            gang = next(iter(members.by_objects.values()))
            return replace(gang, problem=f"is defined by {sources}")
        if members.by_objects:
            return next(iter(members.by_objects.values()))
        if not members.by_pods:
            return None
        (first, gang), *others = members.by_pods.items()
        for name, other in others:
            if other != gang and gang.problem is None:
                return replace(gang, problem=f"its pods {first} and {name} define it differently")
        return gang

    def _agreed(self, gang: Gang | None) -> Gang | None:
        """Return the gang; its ``problem`` says what the gangs of its group disagree on."""
        if gang is None or gang.problem is not None:
            return gang
        for key in gang.together:
            other = self._merged(key) if key != gang.key else None
            if other is None:
                continue
            if other.together != gang.together:
                return replace(
                    gang,
                    together=(),
                    problem=f"the gangs of one group disagree: {gang.key} names "
                    f"[{', '.join(gang.together)}], {key} names [{', '.join(other.together)}]",
                )
            if gang.tree:
                # Each group of a tree has constraints of its own.
                continue
            if other.gather != gang.gather or other.slices != gang.slices:
                return replace(
                    gang,
                    together=(),
                    problem=f"the gangs of one group disagree: {gang.key} and {key} "
                    "ask for different network topologies",
                )
        return gang

    # Members -----------------------------------------------------------------------------

    def set_pending(self, pod: PodInfo) -> set[str]:
        """Add a member without a node; return the gangs whose definition it changed."""
        if pod.gang is None:
            return set()
        self._on_change(pod.gang)
        members = self[pod.gang]
        members.version += 1
        _count_owner(members, pod)
        members.bound.pop(pod.key, None)
        members.ending.discard(pod.key)
        members.pending[pod.key] = pod
        return self._defined_by(pod)

    def set_bound(self, pod: PodInfo, node: str) -> set[str]:
        """Add a member that holds a node; return the gangs whose definition it changed."""
        if pod.gang is None:
            return set()
        self._on_change(pod.gang)
        members = self[pod.gang]
        begins_again = members.restarting or _may_begin_again(members)
        if pod.pod.metadata.deletion_timestamp is not None and begins_again:
            # Whoever takes its place is another member.
            return self.remove(pod)
        members.version += 1
        _count_owner(members, pod)
        members.pending.pop(pod.key, None)
        members.bound[pod.key] = (pod, node)
        (members.ending.add if pod.terminating else members.ending.discard)(pod.key)
        changed = self._defined_by(pod)
        if members.gang is not None and has_minimum(members.gang, members.staying):
            members.was_complete, members.restarting = True, False
        return changed

    def restart(self, key: str) -> None:
        """Let a gang need its minimum again: what is left of it is evicted."""
        members = self._gangs.get(key)
        if members is not None:
            self._on_change(key)
            members.version += 1
            members.was_complete, members.restarting = False, True
            # Those that end already count for nothing any more, however long that takes.
            for pod in [pod for pod, _ in members.bound.values() if pod.terminating]:
                self.remove(pod)

    def _defined_by(self, pod: PodInfo) -> set[str]:
        if pod.definition is None or pod.gang is None:
            return set()
        members = self[pod.gang]
        before = members.by_pods.get(pod.key)
        if before == pod.definition:
            return set()
        first = next(iter(members.by_pods.values()), None)
        members.by_pods[pod.key] = pod.definition
        if before is None and first == pod.definition:
            # It agrees: do not compare all pods of a large gang each time one is added.
            return set()
        return self._resolve_all(pod.gang)

    def remove(self, pod: PodInfo) -> set[str]:
        """Remove a member; return the gangs whose definition that changed."""
        if pod.gang is None or pod.gang not in self._gangs:
            return set()
        self._on_change(pod.gang)
        members = self._gangs[pod.gang]
        members.version += 1
        if pod.key in members.pending or pod.key in members.bound:
            members.owners[owner_of(pod)] -= 1
        members.pending.pop(pod.key, None)
        held = members.bound.pop(pod.key, None)
        if held is not None:
            _note_former(members, pod.key, held[1])
        members.ending.discard(pod.key)
        changed: set[str] = set()
        if members.by_pods.pop(pod.key, None) is not None and not _still_agreed(members):
            changed = self._resolve_all(pod.gang)
        _begin_again(members)
        self._drop_if_empty(pod.gang)
        return changed

    def set_ended(self, pod: PodInfo, phase: str | None) -> None:
        """Record the phase in which a member ended; None when it was deleted."""
        if pod.gang is None:
            return
        lasts = _is_until_all_end(pod.definition)
        if pod.gang not in self._gangs and not (lasts and phase == "Succeeded"):
            return
        self._on_change(pod.gang)
        members = self[pod.gang]
        members.version += 1
        members.succeeded.pop(pod.key, None)
        if phase is None:
            members.ended.pop(pod.key, None)
            _begin_again(members)
            self._drop_if_empty(pod.gang)
        else:
            members.ended[pod.key] = phase
            if phase == "Succeeded":
                members.succeeded[pod.key] = pod
                members.lasts |= lasts
            # Who has succeeded was placed, so the gang was complete: perhaps before this process.
            known = lasts or _may_begin_again(members)
            members.was_complete |= known and phase == "Succeeded"

    def is_satisfied(self, keys: Iterable[str]) -> bool:
        """Whether all of these gangs were complete before."""
        for key in keys:
            members = self._gangs.get(key)
            if members is None or members.gang is None or not members.satisfied:
                return False
        return True

    def _drop_if_empty(self, key: str) -> None:
        members = self._gangs[key]
        lasts = members.lasts and members.succeeded
        if not (lasts or members.by_objects or members.pending or members.bound):
            del self._gangs[key]
            if members.former:
                # What defines it may lose it while its pods are made again.
                self._former[key] = members.former
                if len(self._former) > _MOST_GONE:
                    self._former.popitem(last=False)


def _note_former(members: GangMembers, pod: str, node: str) -> None:
    """Note where a member was, of so many as there have been at a time."""
    # It is no longer among those that are there.
    members.most = max(members.most, members.present + 1)
    members.former.pop(pod, None)
    members.former[pod] = node
    while len(members.former) > members.most:
        del members.former[next(iter(members.former))]


def _may_begin_again(members: GangMembers) -> bool:
    return _is_until_all_end(members.gang)


def _is_until_all_end(gang: Gang | None) -> bool:
    return gang is not None and gang.match_policy == "until-all-end"


def _begin_again(members: GangMembers) -> None:
    """Ask for the minimum again once no member is left, if the gang's policy is so."""
    if _may_begin_again(members) and not members.present:
        members.was_complete = "Succeeded" in members.ended.values()


def _still_agreed(members: GangMembers) -> bool:
    """Whether pods that define the gang are left, and all of them agree."""
    gang = members.gang
    return bool(members.by_pods) and gang is not None and gang.problem is None


def owner_of(pod: PodInfo) -> tuple[str, str]:
    """Return the kind and key of a pod's controller, ("", "") without one."""
    for owner in pod.pod.metadata.owner_references:
        if owner.controller:
            return owner.kind, f"{pod.namespace}/{owner.name}"
    return "", ""


def _count_owner(members: GangMembers, pod: PodInfo) -> None:
    if pod.key not in members.pending and pod.key not in members.bound:
        owner = owner_of(pod)
        members.owners[owner] = members.owners.get(owner, 0) + 1

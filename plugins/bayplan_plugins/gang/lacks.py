"""What gangs wait for before they may be tried: a definition, members, roles, other gangs."""

from __future__ import annotations

import msgspec

from bayplan import Handle
from bayplan.api import Job, ReplicaSet, StatefulSet, VolcanoJob
from bayplan.api.gang import Gang
from bayplan.gangs.completeness import (
    counts_ending,
    has_enough_groups,
    missing_role,
    needs_no_minimum,
    still_needed,
)
from bayplan.gangs.directory import GangMembers

__all__ = ["Lack", "Lacks"]


class Lack(msgspec.Struct, frozen=True):
    """What a gang waits for.

    :param passing: whether whoever makes its pods may just not be done yet.
    """

    text: str
    passing: bool = True


class Lacks:
    """Tells what gangs wait for."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def of(self, gang: Gang) -> Lack | None:
        """Return what a gang, or another of its group, waits for; None for nothing."""
        if gang.tree:
            return self._of_tree(gang)
        for key in gang.together or (gang.key,):
            lack = self._incomplete(key)
            if lack is not None:
                return lack if key == gang.key else _elsewhere(lack, "a gang of the same group")
        return None

    def _of_tree(self, gang: Gang) -> Lack | None:
        """Return what a gang of a tree of gangs waits for: its own members, or other gangs."""
        own = self._incomplete(gang.key)
        if own is not None:
            return own
        lacks = {key: self._incomplete(key) for key in gang.together}
        complete = [key for key, lack in lacks.items() if lack is None]
        if has_enough_groups(gang.tree, complete):
            return None
        first = next(lack for lack in lacks.values() if lack is not None)
        return _elsewhere(first, "a group of the same tree")

    def _incomplete(self, key: str) -> Lack | None:
        members = self._handle.gang(key)
        gang = members.gang
        if gang is None:
            return Lack(f'waiting for PodGroup "{key}", which does not exist')
        satisfied = members.satisfied
        if needs_no_minimum(gang, satisfied):
            return None
        counted = gang.min_member - still_needed(gang, members.counted, satisfied)
        need, have = gang.min_member, counted + len(members.pending)
        if have >= need:
            return _without_role(gang, members)
        overdue = ""
        if members.overdue:
            overdue = f", for longer than the {members.timeout:g} s that it allows"
        possible = self._possible(members)
        if possible is None or possible >= need:
            text = f'gang "{key}" is waiting for members: {have} of {need} exist{overdue}'
            return Lack(text, not overdue)
        text = f'gang "{key}" needs {need} members, but its controllers make {possible} at most'
        return Lack(f"{text}{overdue}", passing=False)

    def _possible(self, members: GangMembers) -> int | None:
        """Return the most members that controllers make; None where others make some, too."""
        total = 0
        for (kind, key), count in members.owners.items():
            if not kind and not count:
                continue
            # Whoever creates single pods may create more.
            size = self._size_of(kind, key)
            if size is None:
                return None
            total += max(count, size)
        return total

    def _size_of(self, kind: str, key: str) -> int | None:
        objects = self._handle.snapshot.objects
        job = objects(Job).get(key) if kind == "Job" else None
        if job is not None:
            return min(job.spec.parallelism, job.spec.completions or job.spec.parallelism)
        volcano = objects(VolcanoJob).get(key) if kind == "Job" else None
        if volcano is not None:
            return sum(task.replicas for task in volcano.spec.tasks)
        replicas = objects(ReplicaSet).get(key) if kind == "ReplicaSet" else None
        stateful = objects(StatefulSet).get(key) if kind == "StatefulSet" else None
        owner = replicas or stateful
        return owner.spec.replicas if owner is not None else None


def _elsewhere(lack: Lack, where: str) -> Lack:
    return Lack(f"{lack.text} ({where})", lack.passing)


def _without_role(gang: Gang, members: GangMembers) -> Lack | None:
    if not gang.roles:
        # Asked for each member of a gang: a walk over all of them would count.
        return None
    ending = () if counts_ending(gang, members.satisfied) else members.ending
    bound = (pod for key, (pod, _) in members.bound.items() if key not in ending)
    existing = [*members.pending.values(), *bound, *members.done]
    missing = missing_role(gang, existing)
    if missing is None:
        return None
    role, have, least = missing
    return Lack(f'gang "{gang.key}" is waiting for role "{role}": {have} of {least} exist')

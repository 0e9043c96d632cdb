"""When a gang has enough members, and the order of its members: one rule for each."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Sequence

from bayplan.api.gang import Gang, SubGroup
from bayplan.naming import natural_key
from bayplan.snapshot import PodInfo

__all__ = [
    "counts_ending",
    "counts_succeeded",
    "has_enough_groups",
    "has_minimum",
    "missing_role",
    "needs_no_minimum",
    "rank_order",
    "still_needed",
]

_ROLE = operator.attrgetter("role")


def rank_order(pod: PodInfo) -> tuple[object, ...]:
    """Sort key of a gang's members: stated ranks first, then names with digits as numbers."""
    return (pod.rank is None, pod.rank or 0, natural_key(pod.name), pod.namespace)


def has_minimum(gang: Gang, count: int) -> bool:
    """Tell whether ``count`` members are as many as the gang needs to run."""
    return count >= gang.min_member


def has_enough_groups(
    tree: Sequence[SubGroup], complete: Collection[str], parent: str = ""
) -> bool:
    """Tell whether a tree of gangs has as many complete ones as each of its groups needs.

    :param complete: the keys of the gangs that are complete; :param parent: the group to look at.
    """
    children = [one for one in tree if one.parent == parent]
    groups = {one.parent for one in tree}
    done = sum(
        has_enough_groups(tree, complete, one.name) if one.name in groups else one.name in complete
        for one in children
    )
    return done >= max((one.min_groups for one in children), default=0)


def needs_no_minimum(gang: Gang, satisfied: bool) -> bool:
    """Tell whether a gang that was complete before runs with any number of members from then on."""
    return satisfied and gang.match_policy in ("once-satisfied", "until-all-end")


def counts_succeeded(gang: Gang) -> bool:
    """Tell whether members that have succeeded count as if they ran."""
    return gang.match_policy == "staying-and-succeeded"


def counts_ending(gang: Gang, satisfied: bool) -> bool:
    """Tell whether members that are being deleted count until they are gone.

    What ends is of no use to a gang that has yet to run.
    """
    return satisfied and gang.match_policy != "staying-and-succeeded"


def still_needed(gang: Gang, bound: int, satisfied: bool) -> int:
    """Return how many pending members have to be placed at once for the gang to run.

    :param bound: how many members hold a node already, or have succeeded where that counts;
        ``match_policy`` says whether they count.
    :param satisfied: whether the gang was complete before.
    """
    if needs_no_minimum(gang, satisfied):
        return 0
    counted = 0 if gang.match_policy == "only-waiting" else bound
    return max(0, gang.min_member - counted)


def missing_role(gang: Gang, pods: Collection[PodInfo]) -> tuple[str, int, int] | None:
    """Return the first role with too few of these pods: its name, how many it has and needs."""
    if not gang.roles:
        return None
    there = Counter(map(_ROLE, pods))
    for role, least in gang.roles:
        if there[role] < least:
            return role, there[role], least
    return None

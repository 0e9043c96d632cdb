"""What a set of used devices costs: how much of the node's topology it breaks.

The nearest devices come first (see :mod:`.reach`), then the fewest pieces of hardware divided, then
the most room on those that are (see :mod:`.room`), then the fewest groups broken, level by level.
Of devices that are shared, those are filled up first that have the least left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bayplan_dra.allocator.model import Amount
from bayplan_dra.allocator.table import Group

__all__ = ["WORST", "broken_groups", "group_cost", "large_rests", "room_cost"]

_BASE = 1_000_000
_REST = 1000
WORST: int = _BASE**16
"""More than any set of devices costs."""


def broken_groups(groups: Sequence[Group], used: int) -> int:
    """Return how many groups are used in part; ``used`` has one bit for each device."""
    return sum(_is_broken(group, (used & group.mask).bit_count()) for group in groups)


def group_cost(group: Group, used: int) -> int:
    """Return what one group costs when ``used`` of its devices are in use."""
    if group.reach:
        # A device that has to be attached costs more than all that nearer ones can break.
        price: int = _BASE ** (10 + group.reach)
        return price * used
    broken = _is_broken(group, used)
    free = group.mask.bit_count() - used
    weight: int = _BASE ** (8 - min(group.level, 7) if group.level else 9)
    return int(broken) * weight - free * free


def room_cost(room: int) -> int:
    """Return what it costs that no more than ``room`` is left; see ``Division.value``."""
    weight: int = _BASE**8
    return -room * weight


def large_rests(left: Iterable[tuple[tuple[int, str], Amount]], most: Mapping[str, Amount]) -> int:
    """Return what the rests of shared devices are worth; a large one more than two small ones.

    :param left: what is left of each device's capacities.
    :param most: the largest amount of each capacity that a device has.
    """
    parts = ((amount / most[name]) if most[name] else 0 for (_, name), amount in left)
    return sum(int(_REST * part * part) for part in parts)


def _is_broken(group: Group, used: int) -> bool:
    return used > 0 and not group.reach and (group.partition or used < group.mask.bit_count())

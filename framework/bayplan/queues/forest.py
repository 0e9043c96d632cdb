"""The forest of queues that people define: which of them reach a root, and which do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["MOST_LEVELS", "cycle_text", "detached"]

MOST_LEVELS = 32
"""How deep queues may lie: more is nobody's organisation, and each level costs every decision."""
_MOST_NAMED = 5


def detached(parents: Mapping[str, str]) -> dict[str, str]:
    """Return the queues that hang on no root, and why: it takes as long as there are queues.

    These are those with a missing parent, those in a cycle, and those that lie too deep. Queues
    below the first two kinds are not among them.

    :param parents: the parent of each queue, "" for a root.
    """
    found: dict[str, str] = {}
    levels: dict[str, int] = {"": 0}
    for start in parents:
        chain: dict[str, None] = {}
        name = start
        while name in parents and name not in levels and name not in chain:
            chain[name] = None
            name = parents[name]
        way = list(chain)
        if name in chain:
            at = way.index(name)
            cycle, way = way[at:], way[:at]
            found |= dict.fromkeys(cycle, f"queues are their own ancestors: {cycle_text(cycle)}")
            levels |= dict.fromkeys(cycle, 1)
        elif name not in levels:
            found[way[-1]] = f'its parent "{name}" does not exist'
        level = levels.get(name, 0)
        for one in reversed(way):
            level += 1
            levels[one] = level
            if level > MOST_LEVELS:
                found.setdefault(one, f"it lies below more than {MOST_LEVELS - 1} others")
    return found


def cycle_text(names: Sequence[str]) -> str:
    """Return a cycle for people, from its first name back to it: ``a -> b -> a``."""
    shown = list(names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        shown.append(f"... ({len(names)} in all)")
    return " -> ".join([*shown, names[0]])

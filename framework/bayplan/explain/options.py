"""Options (what would let a pod onto a node), and the suggestions that users read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from bayplan.naming import natural_key, short_key
from bayplan.plugin.base import Remedy

__all__ = ["Option", "Suggestion", "change_only", "joined"]

_MOST_STEPS = 8


class Suggestion(msgspec.Struct, frozen=True):
    """A change that would help; ``text`` continues "it" or "the gang".

    ``ends`` are the pods, by key, that would have to end. ``changes`` is how many things would have
    to change at once. ``places`` are the nodes that the pods would then have, by key, as far as
    they were tried.
    """

    text: str
    ends: tuple[str, ...] = ()
    changes: int = 1
    places: Mapping[str, str] = msgspec.field(default_factory=dict)


class Option(msgspec.Struct, frozen=True):
    """What would let one node take a pod: each plugin that refuses it, with its remedy."""

    row: int
    parts: tuple[tuple[str, Remedy], ...]
    ends: tuple[str, ...] = ()

    @property
    def plugins(self) -> frozenset[str]:
        """The plugins that refuse the node."""
        return frozenset(name for name, _ in self.parts)

    @property
    def texts(self) -> list[str]:
        """The changes, each once: when two plugins ask for the same, the larger one."""
        texts = dict.fromkeys(remedy.text for _, remedy in self.parts)
        return [
            text for text in texts if not any(text in other for other in texts if other != text)
        ]

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: fewest changes first, then those that end no pod, then the cheapest."""
        costly = any(remedy.frees or remedy.ends for _, remedy in self.parts)
        texts = self.texts
        cost = sum({r.text: r.cost for _, r in self.parts if r.text in texts}.values())
        return (len(texts), costly, cost, natural_key(texts[0]))

    def suggestion(self, pod: str, node: str) -> Suggestion:
        """Return the option in words.

        :param pod: the key of the pod that the option is for.
        :param node: the name of its node.
        """
        first, *others = self.texts
        text = " and ".join([first, *(change_only(other) for other in others)])
        return Suggestion(text, self.ends, len(self.texts), {pod: node})


_HEAD = re.compile(r"would fit (?:on \S+ )?")


def change_only(text: str) -> str:
    """Return the change without the effect: "if 2 CPUs were freed on n0"."""
    return _HEAD.sub("", text, count=1)


def joined(
    found: Sequence[Option],
    used: Mapping[int, int],
    names: Sequence[str],
    where: str,
    places: Mapping[str, str],
) -> list[Suggestion]:
    """Join the changes that the members of a gang need.

    ``places`` are the nodes of all of them, by key. When several members need capacity on one node,
    no single amount is right; the text names the pods that have to end instead.
    """
    if not found:
        return []
    ends = tuple(dict.fromkeys(key for one in found for key in one.ends))
    rows = [one.row for one in found]
    shared = len(set(rows)) < len(rows) or len(found) < sum(used.values())
    texts: dict[str, None] = {}
    for one in found:
        if one.ends and shared and any(remedy.frees for _, remedy in one.parts):
            continue
        texts.update(dict.fromkeys(one.texts))
    freed = [one for one in found if one.ends and not set(one.texts) <= texts.keys()]
    if freed:
        leaving = list(dict.fromkeys(key for one in freed for key in one.ends))
        shown = ", ".join(short_key(key) for key in leaving[:_MOST_STEPS])
        more = len(leaving) - _MOST_STEPS
        tail = f" and {more} more" if more > 0 else ""
        nodes = len({one.row for one in freed})
        on = names[freed[0].row] if nodes == 1 else f"{nodes} nodes"
        texts[f"would fit if {shown}{tail} ended on {on}"] = None
    first, *others = texts
    if len(others) >= _MOST_STEPS:
        text = f"{first}, and so on for {len(found)} members{where}"
    else:
        tails = [other.removeprefix("would fit ") for other in others]
        if all(tail.startswith("if ") for tail in (first.removeprefix("would fit "), *tails)):
            tails = [tail.removeprefix("if ") for tail in tails]
        text = f"{' and '.join([first, *tails])}{where}"
    return [Suggestion(text, ends, max(1, len(texts)), places)]

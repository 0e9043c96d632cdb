"""Definitions of queues made sound: what is broken is set apart, with what is below it.

A broken queue keeps its name, so that its jobs learn why they wait and what runs of it is counted.
It has no share of anything, and nobody may reclaim what its pods have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from msgspec.structs import replace

from bayplan.api import ApiObject
from bayplan.api.queue import Queue, Share
from bayplan.queues.forest import detached

__all__ = ["Translations", "sound"]

_AMOUNTS = ("deserved", "guaranteed", "limit", "weight", "lent", "borrowed")
_NOTHING = Share()
_ANCESTOR = "its ancestor "


_Object = TypeVar("_Object", bound=ApiObject)
_Definition = TypeVar("_Definition")


class Translations(Generic[_Object, _Definition]):
    """Definitions by the objects that state them: an object that is as it was is not read again.

    :param translate: returns the queue that an object defines, in whatever terms.
    """

    def __init__(self, translate: Callable[[_Object], _Definition]) -> None:
        self._translate = translate
        self._known: dict[str, tuple[_Object, _Definition]] = {}

    def of(self, objects: Mapping[str, _Object]) -> list[_Definition]:
        """Return the definitions of objects, given by key, in their order."""
        found = [self.one(key, obj) for key, obj in objects.items()]
        if len(self._known) > len(objects):
            self._known = {key: self._known[key] for key in objects}
        return found

    def one(self, key: str, obj: _Object) -> _Definition:
        """Return the definition of the object with this key."""
        known = self._known.get(key)
        if known is None or known[0] is not obj:
            known = self._known[key] = obj, self._translate(obj)
        return known[1]


def sound(queues: Iterable[Queue]) -> list[Queue]:
    """Return queues of which :class:`~bayplan.queues.tree.QueueTree` makes a tree.

    Queues that share a name, have a missing parent, are in a cycle, lie too deep or have an amount
    below zero get a ``problem``, and so do all below them. Of several with one name the first is
    kept. Those with a missing parent, in a cycle or too deep become roots. All others stay as they
    are.
    """
    named: dict[str, list[Queue]] = {}
    for queue in queues:
        named.setdefault(queue.name, []).append(queue)
    found = {name: same[0] for name, same in named.items()}
    problems = {name: text for name, same in named.items() if (text := _own_problem(same))}
    rootless = detached({name: queue.parent for name, queue in found.items()})
    for name, text in rootless.items():
        problems.setdefault(name, text)
    for name in found:
        _inherit(name, found, problems)
    return [
        _broken(queue, problems[name], "" if name in rootless else queue.parent)
        if name in problems
        else queue
        for name, queue in found.items()
    ]


def _own_problem(same: list[Queue]) -> str:
    queue = same[0]
    if len(same) > 1:
        sources = " and ".join(sorted(one.source or one.name for one in same))
        return f'{len(same)} queues have the name "{queue.name}": {sources}'
    if queue.problem:
        return queue.problem
    for field in _AMOUNTS:
        share: Share = getattr(queue, field)
        for resource, amount in (*share.amounts.items(), ("other resources", share.other)):
            if math.isnan(amount) or amount < 0:
                return f"{field} of {resource}: expected 0 or more, got {amount:g}"
    return ""


def _inherit(name: str, queues: Mapping[str, Queue], problems: dict[str, str]) -> None:
    """Give a queue the problem of its nearest broken ancestor, if it has none of its own."""
    above = name
    while above and above not in problems:
        above = queues[above].parent
    if above and above != name:
        text = problems[above]
        said = text if text.startswith(_ANCESTOR) else f'{_ANCESTOR}"{above}": {text}'
        problems[name] = said


def _broken(queue: Queue, problem: str, parent: str) -> Queue:
    return replace(
        queue,
        parent=parent,
        problem=problem,
        reclaimable=False,
        deserved=_NOTHING,
        guaranteed=_NOTHING,
        limit=_NOTHING,
        weight=_NOTHING,
        lent=_NOTHING,
        borrowed=_NOTHING,
    )

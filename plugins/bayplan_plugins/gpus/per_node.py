"""Answers about nodes that hold until what pods have of a node's GPUs changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from bayplan_plugins.gpus.vendors.adapter import ShareRequest

__all__ = ["PerNode"]

_MOST_REQUESTS = 64
T = TypeVar("T")


class PerNode(Generic[T]):
    """One answer for each request and node, computed once for each state of the node's GPUs."""

    def __init__(self) -> None:
        self._known: OrderedDict[ShareRequest, dict[str, tuple[int, T]]] = OrderedDict()

    def get(self, request: ShareRequest, node: str, version: int, compute: Callable[[], T]) -> T:
        """Return the answer, computed if the node has changed since.

        :param version: that of the node's GPUs.
        """
        known = self._known.setdefault(request, {})
        self._known.move_to_end(request)
        if len(self._known) > _MOST_REQUESTS:
            self._known.popitem(last=False)
        found = known.get(node)
        if found is None or found[0] != version:
            found = known[node] = version, compute()
        return found[1]

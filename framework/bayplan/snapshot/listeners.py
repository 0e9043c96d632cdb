"""Listeners of changes, in order; one with nothing to follow for now is passed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["Listeners", "Subscription"]

L = TypeVar("L", bound=Callable[..., Any])


class Subscription:
    """A listener's place among others, which it keeps while it does not listen."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._listens = True

    @property
    def listens(self) -> bool:
        """Whether the listener is called; a change under way may still miss it, or reach it."""
        return self._listens

    @listens.setter
    def listens(self, listens: bool) -> None:
        if listens is not self._listens:
            self._listens = listens
            self._changed()


class Listeners(Generic[L]):
    """Listeners in the order in which they subscribed; ``now`` holds those that listen."""

    def __init__(self) -> None:
        self._all: list[tuple[L, Subscription]] = []
        self.now: tuple[L, ...] = ()

    def add(self, listener: L) -> Subscription:
        """Add a listener, which listens from now on."""
        subscription = Subscription(self._select)
        self._all.append((listener, subscription))
        self.now = (*self.now, listener)
        return subscription

    def _select(self) -> None:
        self.now = tuple(listener for listener, one in self._all if one.listens)

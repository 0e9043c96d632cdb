"""The profiles that share one admission: each tries its own pods."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan import Handle, PodInfo

__all__ = ["Handles"]


class Handles:
    """The handles of the profiles that share one admission.

    :param first: that of the profile that lets it act, which also tries pods of no profile.
    """

    def __init__(self, first: Handle) -> None:
        self.first = first
        self._all = [first]

    def add(self, handle: Handle) -> None:
        """Add the handle of another profile."""
        if handle not in self._all:
            self._all.append(handle)

    def of(self, pod: PodInfo) -> Handle:
        """Return the handle of the profile that schedules a pod."""
        if len(self._all) == 1:
            return self.first
        return next((one for one in self._all if one.schedules(pod)), self.first)

    def may_give_up(self) -> Iterator[PodInfo]:
        """Yield the pods that elastic jobs would give up."""
        for one in self._all:
            yield from one.may_give_up()

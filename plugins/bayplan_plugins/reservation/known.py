"""The reservations of a cluster, found by name, by uid, and by the pods that may own them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from bayplan import PodInfo
from bayplan.api import Pod, Reservation
from bayplan.api.meta import OwnerReference
from bayplan.api.reservation import ReservationOwner

__all__ = ["KnownReservations", "Users"]

_Mark = tuple[str, str, str]
"""What a pod has to have to be named by an owner: one of its labels, names or controllers."""
_ANY: _Mark = ("", "", "")


class KnownReservations:
    """Keeps reservations; its costs are those of the ones that are asked for."""

    def __init__(self) -> None:
        self._by_name: dict[str, Reservation] = {}
        self._names: dict[str, str] = {}
        """The names by uid."""
        self._marked: dict[_Mark, dict[str, None]] = {}
        """The names of those of which an owner has to have a mark."""
        self._of_pods: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def get(self, name: str) -> Reservation | None:
        """Return a reservation by its name."""
        return self._by_name.get(name)

    def of_uid(self, uid: str) -> Reservation | None:
        """Return a reservation by its uid."""
        return self._by_name.get(self._names.get(uid, ""))

    def all(self) -> list[Reservation]:
        """Return all reservations."""
        return list(self._by_name.values())

    @property
    def name_pods(self) -> bool:
        """Whether some owner is a single pod."""
        return bool(self._of_pods)

    def put(self, new: Reservation) -> None:
        """Keep a reservation, or its new version."""
        old = self._by_name.get(new.key)
        if old is None or old.spec != new.spec or old.metadata.uid != new.metadata.uid:
            if old is not None:
                self.drop(old)
            for owner in new.spec.owners:
                self._marked.setdefault(_mark_of(owner), {})[new.key] = None
            if any(owner.object is not None for owner in new.spec.owners):
                self._of_pods.add(new.key)
            self._names[new.metadata.uid] = new.key
        self._by_name[new.key] = new

    def drop(self, old: Reservation) -> None:
        """Forget a reservation."""
        known = self._by_name.pop(old.key, None)
        if known is None:
            return
        self._of_pods.discard(known.key)
        self._names.pop(known.metadata.uid, None)
        for owner in known.spec.owners:
            mark = _mark_of(owner)
            names = self._marked.get(mark, {})
            names.pop(known.key, None)
            if not names:
                self._marked.pop(mark, None)

    def may_be_owned_by(self, pod: Pod) -> Iterator[Reservation]:
        """Yield each reservation of which the pod has a mark, once; it need not be an owner."""
        seen: set[str] = set()
        for mark in _marks(pod):
            for name in self._marked.get(mark, ()):
                if name not in seen:
                    seen.add(name)
                    yield self._by_name[name]


def _mark_of(owner: ReservationOwner) -> _Mark:
    """Return a mark that every pod has that an owner names."""
    if owner.object is not None:
        if owner.object.uid:
            return ("uid", owner.object.uid, "")
        if owner.object.name:
            return ("name", owner.object.name, "")
    if owner.controller is not None:
        if owner.controller.uid:
            return ("controller uid", owner.controller.uid, "")
        if owner.controller.name:
            return ("controller", owner.controller.name, "")
    if owner.label_selector is not None and owner.label_selector.match_labels:
        key, value = min(owner.label_selector.match_labels.items())
        return ("label", key, value)
    return _ANY


def _marks(pod: Pod) -> Iterable[_Mark]:
    meta = pod.metadata
    yield _ANY
    yield ("uid", meta.uid, "")
    yield ("name", meta.name, "")
    for reference in meta.owner_references:
        yield from _marks_of_controller(reference)
    for key, value in meta.labels.items():
        yield ("label", key, value)


def _marks_of_controller(reference: OwnerReference) -> Iterable[_Mark]:
    yield ("controller uid", reference.uid, "")
    yield ("controller", reference.name, "")


class Users:
    """The pods that use reservations, by the uids of both."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, PodInfo]] = {}
        self._used: dict[str, set[str]] = {}

    def of(self, reservation: str) -> Mapping[str, PodInfo]:
        """Return the pods that use a reservation, by their uids."""
        return self._pods.get(reservation, {})

    def add(self, reservation: str, pod: PodInfo) -> None:
        """Let a pod use a reservation."""
        self._pods.setdefault(reservation, {})[pod.uid] = pod
        self._used.setdefault(pod.uid, set()).add(reservation)

    def remove(self, reservation: str, pod: PodInfo) -> None:
        """Let a pod use a reservation no longer."""
        self._pods.get(reservation, {}).pop(pod.uid, None)
        used = self._used.get(pod.uid, set())
        used.discard(reservation)
        if not used:
            self._used.pop(pod.uid, None)

    def leave(self, pod: PodInfo) -> set[str]:
        """Let a pod use nothing; return the uids of the reservations that it used."""
        used = self._used.pop(pod.uid, set())
        for reservation in used:
            self._pods[reservation].pop(pod.uid, None)
        return used

    def forget(self, reservation: str) -> None:
        """Forget a reservation that is gone."""
        for uid in self._pods.pop(reservation, {}):
            self._used.get(uid, set()).discard(reservation)

"""The statuses of queues, in the words of their systems, as plugins provide them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from bayplan.api import ApiObject
from bayplan.api.conditions import without_times
from bayplan.cluster.protocol import Cluster, Done, PatchAnnotations, PatchStatus
from bayplan.errors import ClusterError, Forbidden, Invalid
from bayplan.snapshot import Snapshot

__all__ = ["QueueStatusWriter"]

_Subject = tuple[type, type[ApiObject], str]
_Patch = PatchStatus | PatchAnnotations
_TAKING_OVER = 60.0
"""Seconds after which no write of a scheduler that was killed before is still under way."""

_log = logging.getLogger("bayplan.scheduler")


class _Reported(msgspec.Struct):
    """What was written last, the object as it was seen since then, and whether it was repeated.

    ``given`` is it as a plugin gave it, with times.
    """

    patch: _Patch
    given: _Patch
    seen: ApiObject
    again: bool = False


class QueueStatusWriter:
    """Writes what the objects of queues do not say yet.

    What was written once is not written again until it changes: where another program writes
    something else, as the controllers of a queue's own system may, it has the last word. In the
    first minute it is written once more: a scheduler that was killed may have had a write under
    way, which came after the first one of its successor.
    """

    def __init__(self, cluster: Cluster, snapshot: Snapshot) -> None:
        self._cluster = cluster
        self._snapshot = snapshot
        self._reported: dict[_Subject, _Reported] = {}
        self._refused: dict[_Subject, str] = {}
        """Why writes were refused for good, to say it once."""
        self._began: float | None = None

    def write(self, wanted: Iterable[_Patch]) -> None:
        """Write what has changed; nothing for objects that do not exist."""
        if self._began is None:
            self._began = self._cluster.now
        before, self._reported = self._reported, {}
        for one in wanted:
            obj = self._snapshot.objects(one.type).get(one.key)
            subject = (type(one), one.type, one.key)
            # Several profiles know the same queues.
            if obj is None or subject in self._reported:
                continue
            last = before.get(subject)
            if last is not None and last.given is one and last.seen is obj:
                # Of thousands of queues, few change at a time.
                self._reported[subject] = last
            else:
                self._write(one, obj, subject, last)

    def _write(
        self, one: _Patch, obj: ApiObject, subject: _Subject, last: _Reported | None
    ) -> None:
        same = last is not None and last.given is one
        reported = last.patch if last is not None and same else _without_times(one)
        known = self._reported[subject] = _Reported(reported, one, obj)
        if last is None:
            due = not _says(obj, reported)
        elif same or last.patch == reported:
            # After a write the object may be shown as it was before it.
            due = self._is_overwritten(last, obj)
            known.again = due or last.again
        else:
            due = True
        if due:
            self._cluster.submit(one, self._forgetting(subject, reported))

    def _is_overwritten(self, last: _Reported, obj: ApiObject) -> bool:
        """Tell whether another program has changed what was written: it is written again."""
        assert self._began is not None, "written before"
        if last.again or last.seen is obj or self._cluster.now > self._began + _TAKING_OVER:
            return False
        return not _says(obj, last.patch)

    def _forgetting(self, subject: _Subject, patch: _Patch) -> Done:
        """Return what forgets a write that was refused, so that it is tried again."""

        def answered(error: ClusterError | None) -> None:
            self._say(subject, error)
            known = self._reported.get(subject)
            if error is not None and known is not None and known.patch == patch:
                del self._reported[subject]

        return answered

    def _say(self, subject: _Subject, error: ClusterError | None) -> None:
        """Log a write that the cluster would refuse again, once for each reason."""
        if not isinstance(error, (Invalid, Forbidden)):
            if error is None:
                self._refused.pop(subject, None)
            return
        why = str(error)
        if self._refused.get(subject) != why:
            self._refused[subject] = why
            _, kind, key = subject
            _log.warning("what %s %s says of its jobs is refused: %s", kind.__name__, key, why)


def _without_times(write: _Patch) -> _Patch:
    if isinstance(write, PatchStatus):
        return PatchStatus(write.type, write.key, without_times(write.status))
    return write


def _says(obj: ApiObject, write: _Patch) -> bool:
    if isinstance(write, PatchStatus):
        return bool(without_times(getattr(obj, "status", None)) == write.status)
    has = obj.metadata.annotations
    return all(has.get(name) == text for name, text in write.annotations.items())

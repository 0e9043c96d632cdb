"""The statuses of queues, in the words of their systems, as plugins provide them."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api import ApiObject
from bayplan.cluster.conditions import without_times
from bayplan.cluster.protocol import Cluster, Done, PatchAnnotations, PatchStatus
from bayplan.errors import ClusterError
from bayplan.snapshot import Snapshot

__all__ = ["QueueStatusWriter"]

_Subject = tuple[type, type[ApiObject], str]


class QueueStatusWriter:
    """Writes what the objects of queues do not say yet.

    What was written once is not written again until it changes: where another program writes
    something else, as the controllers of a queue's own system may, it has the last word.
    """

    def __init__(self, cluster: Cluster, snapshot: Snapshot) -> None:
        self._cluster = cluster
        self._snapshot = snapshot
        self._written: dict[_Subject, PatchStatus | PatchAnnotations] = {}

    def write(self, wanted: Iterable[PatchStatus | PatchAnnotations]) -> None:
        """Write what has changed; nothing for objects that do not exist."""
        before, self._written = self._written, {}
        for one in wanted:
            obj = self._snapshot.objects(one.type).get(one.key)
            if obj is None:
                continue
            subject, told = (type(one), one.type, one.key), _without_times(one)
            if subject in self._written:
                # Several profiles know the same queues.
                continue
            self._written[subject] = told
            last = before.get(subject)
            # After a write the object may be shown as it was before it.
            if last != told if last is not None else not _says(obj, told):
                self._cluster.submit(one, self._forgetting(subject, told))

    def _forgetting(self, subject: _Subject, write: PatchStatus | PatchAnnotations) -> Done:
        """Return what forgets a write that was refused, so that it is tried again."""

        def answered(error: ClusterError | None) -> None:
            if error is not None and self._written.get(subject) is write:
                del self._written[subject]

        return answered


def _without_times(write: PatchStatus | PatchAnnotations) -> PatchStatus | PatchAnnotations:
    if isinstance(write, PatchStatus):
        return PatchStatus(write.type, write.key, without_times(write.status))
    return write


def _says(obj: ApiObject, write: PatchStatus | PatchAnnotations) -> bool:
    if isinstance(write, PatchStatus):
        return bool(without_times(getattr(obj, "status", None)) == write.status)
    has = obj.metadata.annotations
    return all(has.get(name) == text for name, text in write.annotations.items())

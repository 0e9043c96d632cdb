"""The status of Volcano's queues, as Volcano's controllers and scheduler write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bayplan.api import VolcanoPodGroup, VolcanoQueue
from bayplan.api.queue_objects import VolcanoQueueStatus
from bayplan.cluster.protocol import PatchStatus
from bayplan.queues.amounts import quantities
from bayplan.queues.ledger import Ledger
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.isolation import alone

__all__ = ["QueueStatuses"]


class QueueStatuses:
    """Keeps how many pod groups each queue has in each phase."""

    def __init__(self, snapshot: Snapshot, ledger: Ledger) -> None:
        self._snapshot = snapshot
        self._ledger = ledger
        self._phases: dict[str, Counter[str]] = {}
        self._known: dict[str, PatchStatus] = {}
        self._seen: tuple[object, ...] | None = None
        for group in snapshot.objects(VolcanoPodGroup).values():
            self._changed(None, group)
        snapshot.on_object(VolcanoPodGroup, self._changed)

    def now(self) -> Iterator[PatchStatus]:
        """Yield the status of each queue: its state, its pod groups by phase, what it uses.

        One that did not change is the one that was made last.
        """
        tree = self._ledger.tree
        seen = tree, tree.changes, len(tree.resources), self._snapshot.objects_version
        if self._seen == seen:
            yield from list(self._known.values())
            return
        known, self._known = self._known, {}
        for name, queue in self._snapshot.objects(VolcanoQueue).items():
            groups, row = self._phases.get(name, Counter()), tree.row_of.get(name)
            with alone(f"status of Queue {name}"):
                status = VolcanoQueueStatus(
                    _state(queue.status.state, groups.total() > 0),
                    groups["Unknown"],
                    groups["Pending"],
                    groups["Running"],
                    groups["Inqueue"],
                    groups["Completed"],
                    quantities(tree.amounts(tree.used[row])) if row is not None else {},
                )
                last = known.get(name)
                same = last is not None and last.status == status
                made = (
                    last if last is not None and same else PatchStatus(VolcanoQueue, name, status)
                )
                self._known[name] = made
                yield made
        self._seen = seen

    def _changed(self, old: VolcanoPodGroup | None, new: VolcanoPodGroup | None) -> None:
        for group, change in ((old, -1), (new, 1)):
            if group is not None:
                phases = self._phases.setdefault(group.spec.queue, Counter())
                phases[group.status.phase or "Pending"] += change


def _state(state: str, has_groups: bool) -> str:
    """Return the state of a queue: one that is closed is closing while it has pod groups."""
    if state in ("Closing", "Closed"):
        return "Closing" if has_groups else "Closed"
    return state or "Open"

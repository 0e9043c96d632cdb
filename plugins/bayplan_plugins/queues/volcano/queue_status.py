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

__all__ = ["statuses"]


def statuses(snapshot: Snapshot, ledger: Ledger) -> Iterator[PatchStatus]:
    """Yield the status of each queue: its state, its pod groups by phase, what it uses."""
    phases: dict[str, Counter[str]] = {}
    for group in snapshot.objects(VolcanoPodGroup).values():
        phases.setdefault(group.spec.queue, Counter())[group.status.phase or "Pending"] += 1
    tree = ledger.tree
    for name, queue in snapshot.objects(VolcanoQueue).items():
        groups, row = phases.get(name, Counter()), tree.row_of.get(name)
        with alone(f"status of Queue {name}"):
            status = VolcanoQueueStatus(
                _state(queue.status.state, bool(groups)),
                groups["Unknown"],
                groups["Pending"],
                groups["Running"],
                groups["Inqueue"],
                groups["Completed"],
                quantities(tree.amounts(tree.used[row])) if row is not None else {},
            )
            yield PatchStatus(VolcanoQueue, name, status)


def _state(state: str, has_groups: bool) -> str:
    """Return the state of a queue: one that is closed is closing while it has pod groups."""
    if state in ("Closing", "Closed"):
        return "Closing" if has_groups else "Closed"
    return state or "Open"

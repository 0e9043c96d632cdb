"""The ledger: what each queue of one tree uses and asks for, in step with the snapshot.

Pods on nodes count as used, in trials, too: a trial that places or removes pods changes what their
queues use, and undoing it restores that. Every living pod counts as demand. A pod counts in its
queue and in each of its ancestors. A ResourceClaim that pods name counts once, for the first of
those that use it; when that one leaves, for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from bayplan.api import ApiObject, ResourceClaim
from bayplan.api.definition import same_definition
from bayplan.api.queue import Amounts, Queue
from bayplan.queues.claim_users import ClaimUsers, named_claims
from bayplan.queues.definitions import sound
from bayplan.queues.tree import AmountRows, QueueTree
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["Ledger", "PodRules"]


_EXACT = 2.0**43
"""Sums of amounts up to here (8 TiB, billions of devices) are exact to a thousandth."""


class PodRules(msgspec.Struct, frozen=True):
    """How one system counts pods.

    ``queue_of`` returns the name of a pod's queue, None for a pod that has none. ``amounts`` is
    what a pod takes of its queue, without the claims that ``claims`` names: ``claim`` is what one
    of these takes of a pod's queue, None where claims do not count. ``is_fixed`` tells whether what
    a pod has cannot be taken back, ``counts`` whether a pod on a node counts as used at all. Where
    ``amounts`` depends on more than the pod, ``basis`` changes with that: all pods are then counted
    again.
    """

    queue_of: Callable[[PodInfo], str | None]
    amounts: Callable[[PodInfo], Amounts]
    is_fixed: Callable[[PodInfo], bool]
    counts: Callable[[PodInfo], bool]
    claim: Callable[[ResourceClaim, PodInfo], Amounts] | None = None
    claims: Callable[[PodInfo], Sequence[str]] = named_claims
    basis: Callable[[], int] = int


class _Entry(msgspec.Struct, frozen=True):
    """What a pod counts: in which row, how much, and whether it can be taken back."""

    row: int
    amounts: AmountRows
    fixed: bool

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Entry)
            and (self.row, self.fixed) == (other.row, other.fixed)
            and np.array_equal(self.amounts, other.amounts)
        )


class Ledger:
    """Follows the snapshot; ``tree`` is always up to date.

    :param define: returns the queues of the tree from the snapshot's objects. Those that make no
        tree are set apart by :func:`~bayplan.queues.definitions.sound`.
    :param kinds: the types of the objects that define queues or say which queue a pod belongs to;
        a change of one of them builds the tree again, a change of its status only where that
        changes a queue.
    :param concerns: whether an object of ``kinds`` has a say at all, as a ConfigMap that defines no
        queue has none.
    :param states: returns what the status of an object of ``kinds`` says of its queue; without it,
        nothing.
    :param group_kinds: the types of the objects that name the queue of a pod group; their status
        says nothing of it.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        define: Callable[[Snapshot], Iterable[Queue]],
        kinds: Iterable[type[ApiObject]],
        group_kinds: Iterable[type[ApiObject]],
        rules: PodRules,
        concerns: Callable[[ApiObject], bool] = bool,
        states: Callable[[ApiObject], object] = type,
    ) -> None:
        self._snapshot = snapshot
        self._concerns = concerns
        self._states = states
        self._define = define
        self._rules = rules
        self._tree = QueueTree(())
        self._definitions: list[Queue] = []
        self._stale = True
        self._restated = False
        self._used: dict[str, _Entry] = {}
        self._asked: dict[str, _Entry] = {}
        self._by_group: dict[str, set[str]] = {}
        self._vectors: dict[object, AmountRows] = {}
        self._users = ClaimUsers(snapshot, rules.claims)
        self._claims_used: dict[str, _Entry] = {}
        self._claims_asked: dict[str, _Entry] = {}
        self._version = 0
        self._basis = 0
        self.kinds = tuple(kinds)
        """The types of the objects that define the queues."""
        for kind in self.kinds:
            snapshot.on_object(kind, self._queue_changed)
        for kind in group_kinds:
            snapshot.on_object(kind, self._group_changed)
        if rules.claim is not None:
            snapshot.on_object(ResourceClaim, self._claim_changed)
        self._following = (
            snapshot.on_pod(self._pod_moved),
            snapshot.on_living(self._pod_lives),
            snapshot.on_supposed(self._supposed),
        )
        self._follow_pods(False)

    @property
    def is_used(self) -> bool:
        """Whether any object is there that may define a queue."""
        return any(map(self._snapshot.objects, self.kinds))

    @property
    def tree(self) -> QueueTree:
        """The tree, with what its queues use now."""
        if self._is_old():
            self._refresh()
        return self._tree

    @property
    def version(self) -> int:
        """Changes whenever shares may have changed: the queues or the demand."""
        if self._is_old():
            self._refresh()
        return self._version

    def row_of(self, pod: PodInfo) -> int | None:
        """Return the row of a pod's queue, None for a pod without a queue of this tree."""
        if self._is_old():
            self._refresh()
        return self._row_of(pod)

    def amounts_of(self, pod: PodInfo) -> AmountRows:
        """Return what a pod takes of its queue, as a row of the tree's columns.

        A claim that it names counts unless another pod uses it.
        """
        if self._is_old():
            self._refresh()
        if not self._claims_of(pod):
            return self._amounts_of(pod)
        return self.sum_of((pod,))

    def is_fixed(self, pod: PodInfo) -> bool:
        """Tell whether what a pod has, or is to have, cannot be taken back."""
        return self._rules.is_fixed(pod)

    def sum_of(self, pods: Iterable[PodInfo]) -> AmountRows:
        """Return what several pods take together, as a row of the tree's columns.

        A claim that they name counts once, and not if any other pod uses it.
        """
        if self._is_old():
            self._refresh()
        # Pods of one job mostly are equal, and equal pods have one vector.
        counts: dict[int, tuple[AmountRows, int]] = {}
        naming: dict[str, dict[str, PodInfo]] = {}
        for pod in pods:
            own = self._amounts_of(pod)
            counts[id(own)] = (own, counts.get(id(own), (own, 0))[1] + 1)
            for claim in self._claims_of(pod):
                naming.setdefault(claim, {})[pod.key] = pod
        parts = list(counts.values())
        for claim, users in naming.items():
            if all(user in users for user in self._users.of(claim) if user in self._used):
                parts.append((self._claim_amounts(claim, next(iter(users.values()))), 1))
        total = np.zeros(len(self._tree.resources))
        for own, count in parts:
            total[: len(own)] += own * count
        return total

    def restate(self) -> None:
        """Look at the definitions again, because what they follow from has changed."""
        self._restated = True

    def _is_old(self) -> bool:
        return self._stale or self._restated or self._rules.basis() != self._basis

    # Following ---------------------------------------------------------------------------

    def _queue_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        if not any(one is not None and self._concerns(one) for one in (old, new)):
            return
        if old is None or new is None or not same_definition(old, new):
            self._stale = True
            self._begin()
        elif self._states(old) != self._states(new):
            self._restated = True

    def _group_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        group = new or old
        if self._stale or group is None or (new is not None and same_definition(old, new)):
            return
        meta = group.metadata
        for key in list(self._by_group.get(f"{meta.namespace}/{meta.name}", ())):
            pod = self._snapshot.living.get(key)
            if pod is not None:
                self._count_again(pod)

    def _count_again(self, pod: PodInfo) -> None:
        placed = self._snapshot.placed.get(pod.key)
        entry = self._entry(pod)
        if entry == self._asked.get(pod.key):
            return
        self._take_back(self._used, pod.key, self._tree.use)
        self._take_back(self._asked, pod.key, self._ask)
        if entry is not None:
            self._asked[pod.key] = entry
            self._ask(entry.row, entry.amounts)
            if placed is not None and self._rules.counts(placed[0]):
                self._used[pod.key] = entry
                self._tree.use(entry.row, entry.amounts, 1, entry.fixed)
        self._charge_claims(pod)
        self._version += 1

    def _follow_pods(self, follow: bool) -> None:
        """Follow pods, or none while there is no queue: unused, a system costs nothing."""
        for one in self._following:
            one.listens = follow

    def _begin(self) -> None:
        """Follow pods from the first queue on; those with nodes have their turn at a claim."""
        if not self._following[0].listens:
            self._follow_pods(True)
            for pod, _ in self._snapshot.placed.values():
                if self._claims_of(pod):
                    self._users.placed(pod)

    def _pod_moved(self, pod: PodInfo, node: str, placed: bool) -> None:
        claims = self._claims_of(pod)
        if claims:
            (self._users.placed if placed else self._users.removed)(pod)
        if self._stale:
            return
        if not placed:
            self._take_back(self._used, pod.key, self._tree.use)
        elif self._rules.counts(pod):
            entry = self._entry(pod)
            if entry is not None:
                self._used[pod.key] = entry
                self._tree.use(entry.row, entry.amounts, 1, entry.fixed)
        if claims:
            self._charge_claims(pod)

    def _supposed(self, pods: Sequence[PodInfo], times: int) -> None:
        row = self.row_of(pods[0]) if len(self.tree) else None
        if row is not None:
            self._tree.use(row, self.sum_of(pods), times, self.is_fixed(pods[0]))

    def _pod_lives(self, pod: PodInfo, added: bool) -> None:
        if pod.gang is not None:
            members = self._by_group.setdefault(pod.gang, set())
            if added:
                members.add(pod.key)
            else:
                members.discard(pod.key)
                if not members:
                    del self._by_group[pod.gang]
        if self._stale:
            return
        if not added:
            self._version += pod.key in self._asked
            self._take_back(self._asked, pod.key, self._ask)
            self._charge_claims(pod)
            return
        entry = self._entry(pod)
        if entry is not None:
            self._version += 1
            self._asked[pod.key] = entry
            self._ask(entry.row, entry.amounts)
            if self._used.get(pod.key, entry) != entry:
                self._take_back(self._used, pod.key, self._tree.use)
                self._used[pod.key] = entry
                self._tree.use(entry.row, entry.amounts, 1, entry.fixed)
        self._charge_claims(pod)

    # Claims that pods name ---------------------------------------------------------------

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = new or old
        if claim is not None and not self._stale:
            self._charge(claim.key)

    def _charge_claims(self, pod: PodInfo) -> None:
        """Charge the claims that a pod names again, because it came, left or moved."""
        if self._claims_of(pod):
            for claim in self._users.follow(pod):
                self._charge(claim)

    def _claims_of(self, pod: PodInfo) -> Sequence[str]:
        """Return the claims that count beside a pod, by key."""
        return self._rules.claims(pod) if self._rules.claim is not None else ()

    def _charge(self, claim: str) -> None:
        """Charge a claim to the first of its users; what waits for it counts if nobody has it."""
        used = self._claim_entry(claim, self._used, None)
        asked = self._claim_entry(claim, self._asked, used)
        self._replace(self._claims_used, claim, used, self._tree.use)
        if self._replace(self._claims_asked, claim, asked, self._ask):
            self._version += 1

    def _claim_entry(
        self, claim: str, entries: dict[str, _Entry], holding: _Entry | None
    ) -> _Entry | None:
        users = [user for user in self._users.of(claim) if user in entries]
        holders = [user for user in users if user in self._used] if holding is not None else []
        first = self._users.first(claim, holders or users)
        if first is None:
            return None
        entry, pod = entries[first], self._users.latest(first)
        return _Entry(entry.row, self._claim_amounts(claim, pod), entry.fixed)

    def _claim_amounts(self, claim: str, pod: PodInfo) -> AmountRows:
        found = self._snapshot.objects(ResourceClaim).get(claim)
        rule = self._rules.claim
        return self._tree.vector(rule(found, pod) if found is not None and rule is not None else {})

    def _replace(
        self,
        entries: dict[str, _Entry],
        claim: str,
        entry: _Entry | None,
        change: Callable[[int, AmountRows, int, bool], None],
    ) -> bool:
        """Count a claim's new entry instead of the old one; return whether it is another one."""
        old = entries.get(claim)
        if old == entry:
            return False
        self._take_back(entries, claim, change)
        if entry is not None:
            change(entry.row, entry.amounts, 1, entry.fixed)
            entries[claim] = entry
        return True

    def _ask(self, row: int, amounts: AmountRows, sign: int = 1, fixed: bool = False) -> None:
        self._tree.ask(row, amounts, sign)

    def _take_back(
        self,
        entries: dict[str, _Entry],
        key: str,
        change: Callable[[int, AmountRows, int, bool], None],
    ) -> None:
        entry = entries.pop(key, None)
        if entry is not None:
            change(entry.row, entry.amounts, -1, entry.fixed)
            if entry.amounts.max(initial=0.0) > _EXACT:
                # What others have was rounded away beside so much.
                self._stale = True

    def _entry(self, pod: PodInfo) -> _Entry | None:
        row = self._row_of(pod)
        if row is None:
            return None
        return _Entry(row, self._amounts_of(pod), self._rules.is_fixed(pod))

    def _row_of(self, pod: PodInfo) -> int | None:
        name = self._rules.queue_of(pod)
        return self._tree.row_of.get(name) if name is not None else None

    def _amounts_of(self, pod: PodInfo) -> AmountRows:
        key = (pod.facts, tuple(self._rules.amounts(pod).items()))
        vector = self._vectors.get(key)
        if vector is None or len(vector) < len(self._tree.resources):
            vector = self._vectors[key] = self._tree.vector(dict(key[1]))
        return vector

    # Building ----------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Build the tree again, unless only statuses changed that no queue depends on."""
        definitions = sound(self._define(self._snapshot))
        basis = self._rules.basis()
        stale = self._stale or definitions != self._definitions or basis != self._basis
        self._basis = basis
        self._stale = self._restated = False
        if stale:
            self._definitions = definitions
            self._version += 1
            self._rebuild()

    def _rebuild(self) -> None:
        """Build the tree again and count every pod; none counts where there is no queue."""
        self._tree = QueueTree(self._definitions, self._tree.resources)
        for queue in self._definitions:
            for share in (queue.deserved, queue.guaranteed, queue.limit):
                self._tree.add_resources(share.amounts)
        for entries in (self._used, self._asked, self._claims_used, self._claims_asked):
            entries.clear()
        self._vectors.clear()
        self._users.clear()
        self._by_group.clear()
        self._follow_pods(len(self._tree) > 0)
        if not len(self._tree):
            return
        for pod, node in list(self._snapshot.placed.values()):
            self._pod_moved(pod, node, True)
        for pod in list(self._snapshot.living.values()):
            if pod.gang is not None:
                self._by_group.setdefault(pod.gang, set()).add(pod.key)
            entry = self._entry(pod)
            if entry is not None:
                self._asked[pod.key] = entry
                self._ask(entry.row, entry.amounts)
            self._charge_claims(pod)

    def placed(self) -> dict[int, list[PodInfo]]:
        """Return the pods on nodes that count as used, by the row of their queue."""
        found: dict[int, list[PodInfo]] = {}
        placed = self._snapshot.placed
        if self._stale:
            self._rebuild()
        for key, entry in self._used.items():
            found.setdefault(entry.row, []).append(placed[key][0])
        return found

    def jobs(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return how many jobs wait and run in each row, those of its descendants included.

        A job is a pod group, or a pod without one; it runs once one of its pods has a node.
        """
        placed = self._snapshot.placed
        runs: dict[str, tuple[int, bool]] = {}
        tree = self.tree
        for key, entry in self._asked.items():
            pod = self._snapshot.living.get(key)
            job = (pod.gang if pod is not None else None) or key
            _, running = runs.get(job, (0, False))
            runs[job] = (entry.row, running or key in placed)
        waiting: dict[int, int] = {}
        running_jobs: dict[int, int] = {}
        for row, running in runs.values():
            counts = running_jobs if running else waiting
            for ancestor in tree.path(row):
                counts[ancestor] = counts.get(ancestor, 0) + 1
        return waiting, running_jobs

    def recounted(self) -> QueueTree:
        """Return the tree as counted from nothing, to compare with the one that was followed."""
        tree = QueueTree(sound(self._define(self._snapshot)), self.tree.resources)
        users: dict[str, list[PodInfo]] = {}
        waiting: dict[str, list[PodInfo]] = {}
        for pod, _ in self._snapshot.placed.values():
            row = self.row_of(pod)
            if row is not None and self._rules.counts(pod):
                tree.use(row, self._amounts_of(pod), 1, self._rules.is_fixed(pod))
                for claim in self._claims_of(pod):
                    users.setdefault(claim, []).append(pod)
        for pod in self._snapshot.living.values():
            row = self.row_of(pod)
            if row is not None:
                tree.ask(row, self._amounts_of(pod))
                for claim in self._claims_of(pod):
                    waiting.setdefault(claim, []).append(pod)
        if self._rules.claim is not None:
            self._recount_claims(tree, users, waiting)
        return tree

    def _recount_claims(
        self,
        tree: QueueTree,
        users: dict[str, list[PodInfo]],
        waiting: dict[str, list[PodInfo]],
    ) -> None:
        for claim in users.keys() | waiting.keys():
            for pods, charge in ((users.get(claim, []), True), (waiting.get(claim, []), False)):
                known = {pod.key: pod for pod in pods}
                holders = [pod.key for pod in users.get(claim, ()) if pod.key in known]
                first = self._users.first(claim, holders or known)
                row = self.row_of(known[first]) if first is not None else None
                if first is None or row is None:
                    continue
                amounts = self._claim_amounts(claim, known[first])
                if charge:
                    tree.use(row, amounts, 1, self._rules.is_fixed(known[first]))
                else:
                    tree.ask(row, amounts)

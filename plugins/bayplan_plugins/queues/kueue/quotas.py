"""The quotas of ClusterQueues and Cohorts as one forest, and what is used of them.

The arithmetic is Kueue's (pkg/cache/scheduler/resource_node.go). A node's subtree quota is its own
plus what its children lend; its local quota is the part of it that a lending limit keeps from the
parent. Usage counts in the parent only beyond the local quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from bayplan.api.kueue import ClusterQueue, Cohort, ResourceGroup
from bayplan.api.queue import UNLIMITED, Amounts, Order, Queue, QueueState, Share
from bayplan.queues.forest import MOST_LEVELS, detached
from bayplan.queues.tree import QueueTree
from bayplan_plugins.queues.kueue.amounts import amount_in, column

__all__ = ["QuotaForest", "cohort_row_name", "queues_of"]

_COHORT = "cohort/"


def cohort_row_name(name: str) -> str:
    """Return the name of a cohort's row; it differs from every ClusterQueue's."""
    return f"{_COHORT}{name}"


def queues_of(cluster_queues: Iterable[ClusterQueue], cohorts: Iterable[Cohort]) -> list[Queue]:
    """Translate Kueue's objects into queues of one vocabulary; columns are ``flavor/resource``.

    Cohorts that only a queue or a child names exist without quota. The parents of cohorts that
    contain themselves, or lie too deep, are dropped; a problem says so.
    """
    cluster_queues, cohorts = list(cluster_queues), list(cohorts)
    parents = {one.metadata.name: one.spec.parent_name for one in cohorts}
    rootless = _rootless(parents)
    named = {parent for parent in parents.values() if parent}
    named |= {queue.spec.cohort_name for queue in cluster_queues if queue.spec.cohort_name}
    found = [_cohort(one, rootless) for one in cohorts]
    found += [
        Queue(
            name=cohort_row_name(name),
            source=f"Cohort {name}",
            deserved=Share(),
            lent=_ALL,
            pools=True,
        )
        for name in sorted(named - parents.keys())
    ]
    return found + [_cluster_queue(queue, rootless) for queue in cluster_queues]


_ALL = Share(other=UNLIMITED)
_CYCLE = "belongs to a cohort that contains itself"
_DEEP = f"belongs to a cohort below more than {MOST_LEVELS - 1} others"


def _rootless(parents: Mapping[str, str]) -> dict[str, str]:
    """Return the cohorts whose way to the root does not end, or is too long, and which it is."""
    stated = {name: parent if parent in parents else "" for name, parent in parents.items()}
    why = detached(stated)
    cycles = {name for name, text in why.items() if "their own ancestors" in text}
    found = {name: _CYCLE if name in cycles else _DEEP for name in why}
    for name in parents:
        way = [name]
        while stated[way[-1]] and way[-1] not in found:
            way.append(stated[way[-1]])
        if way[-1] in found:
            found |= dict.fromkeys(way, found[way[-1]])
    return found


def _cohort(cohort: Cohort, rootless: Mapping[str, str]) -> Queue:
    name, spec = cohort.metadata.name, cohort.spec
    parent = "" if name in rootless else spec.parent_name
    weight = spec.fair_sharing.weight if spec.fair_sharing else None
    shares = _shares(spec.resource_groups)
    return Queue(
        name=cohort_row_name(name),
        parent=cohort_row_name(parent) if parent else "",
        source=f"Cohort {name}",
        weight=Share(other=float(weight.amount) if weight is not None else 1.0),
        problem=rootless.get(name),
        pools=True,
        uid=cohort.metadata.uid,
        deserved=shares.nominal,
        lent=shares.lent,
        borrowed=shares.borrowed,
    )


def _cluster_queue(queue: ClusterQueue, rootless: Mapping[str, str]) -> Queue:
    name, spec = queue.metadata.name, queue.spec
    weight = spec.fair_sharing.weight if spec.fair_sharing else None
    strict = spec.queueing_strategy == "StrictFIFO"
    stopped = spec.stop_policy in ("Hold", "HoldAndDrain")
    shares = _shares(spec.resource_groups)
    return Queue(
        name=name,
        parent=cohort_row_name(spec.cohort_name) if spec.cohort_name else "",
        source=f"ClusterQueue {name}",
        weight=Share(other=float(weight.amount) if weight is not None else 1.0),
        order=Order.STRICT if strict else Order.PRIORITY,
        state=QueueState.CLOSED if stopped else QueueState.OPEN,
        problem=rootless.get(spec.cohort_name),
        uid=queue.metadata.uid,
        labels=queue.metadata.labels,
        deserved=shares.nominal,
        lent=shares.lent,
        borrowed=shares.borrowed,
    )


class _Shares(msgspec.Struct, frozen=True):
    nominal: Share
    lent: Share
    borrowed: Share


def _shares(groups: Iterable[ResourceGroup]) -> _Shares:
    nominal: dict[str, float] = {}
    lent: dict[str, float] = {}
    borrowed: dict[str, float] = {}
    for group in groups:
        for flavor in group.flavors:
            for quota in flavor.resources:
                name = column(flavor.name, quota.name)
                nominal[name] = amount_in(quota.name, quota.nominal_quota)
                if quota.lending_limit is not None:
                    lent[name] = amount_in(quota.name, quota.lending_limit)
                if quota.borrowing_limit is not None:
                    borrowed[name] = amount_in(quota.name, quota.borrowing_limit)
    return _Shares(Share(nominal), Share(lent, UNLIMITED), Share(borrowed, UNLIMITED))


class QuotaForest:
    """The rows of a queue tree with Kueue's quotas and usage.

    ``subtree``, ``local`` and ``used`` are amounts by column for each row. ``used`` changes; all
    else is shared by copies. ``changes`` counts the changes of each row's usage. ``lendable`` keeps
    what shares are measured against.

    :param tree: queues from :func:`queues_of`.
    """

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self.row_of = tree.row_of
        self.parent: list[int] = tree.parent.tolist()
        self.children = tree.children
        self.weight = [queue.weight.other for queue in tree.queues]
        self._cohorts = [queue.name.startswith(_COHORT) for queue in tree.queues]
        self.subtree: list[dict[str, float]] = [{} for _ in tree.queues]
        self.local: list[dict[str, float]] = [{} for _ in tree.queues]
        self.height: list[int] = [0 for _ in tree.queues]
        self.used: list[dict[str, float]] = [{} for _ in tree.queues]
        self.changes: list[int] = [0 for _ in tree.queues]
        self._potential: dict[tuple[int, str], float] = {}
        self.lendable: dict[int, dict[str, float]] = {}
        for row in reversed(range(len(tree))):
            self._sum_up(row)

    def _sum_up(self, row: int) -> None:
        """Set a row's subtree quota, its local part and its height; children come first."""
        queue = self.tree.queues[row]
        total = dict(queue.deserved.amounts)
        height = 1 if self.children[row] else 0
        for child in self.children[row]:
            for name, amount in self.subtree[child].items():
                lendable = amount - self.local[child].get(name, 0)
                total[name] = total.get(name, 0) + lendable
            if self.is_cohort(child):
                height = max(height, self.height[child] + 1)
        self.subtree[row] = total
        self.local[row] = {
            name: max(0, total[name] - limit)
            for name, limit in queue.lent.amounts.items()
            if name in total
        }
        self.height[row] = height

    def copy(self) -> QuotaForest:
        """Return a forest with the same quotas and usage of its own."""
        other = object.__new__(QuotaForest)
        other.__dict__.update(self.__dict__)
        other.used = [dict(row) for row in self.used]
        other.changes = list(self.changes)
        return other

    # Shape -------------------------------------------------------------------------------

    def is_cohort(self, row: int) -> bool:
        """Tell whether a row is a cohort, not a ClusterQueue."""
        return self._cohorts[row]

    def name(self, row: int) -> str:
        """Return the name of a row's object."""
        return self.tree.queues[row].name.removeprefix(_COHORT)

    def ancestors(self, row: int) -> Iterator[int]:
        """Yield the rows above, from the parent to the root."""
        row = self.parent[row]
        while row >= 0:
            yield row
            row = self.parent[row]

    def root(self, row: int) -> int:
        """Return the root above a row, or the row itself."""
        for above in self.ancestors(row):
            row = above
        return row

    def queues_below(self, row: int) -> Iterator[int]:
        """Yield the rows of all ClusterQueues in a cohort and its children."""
        for child in self.children[row]:
            if self.is_cohort(child):
                yield from self.queues_below(child)
            else:
                yield child

    def path(self, row: int) -> str:
        """Return the names from the root to a row: ``/root/cohort/queue``."""
        return "/" + "/".join(self.name(at) for at in [row, *self.ancestors(row)][::-1])

    # Quota -------------------------------------------------------------------------------

    def nominal(self, row: int, name: str) -> float:
        """Return a row's own quota of a column."""
        return self.tree.queues[row].deserved.amounts.get(name, 0)

    def local_available(self, row: int, name: str) -> float:
        """Return what is free of the quota that the parent cannot see."""
        return max(0, self.local[row].get(name, 0) - self.used[row].get(name, 0))

    def available(self, row: int, name: str) -> float:
        """Return what is free for a row with all that it may borrow; never less than nothing."""
        return max(0, self.balance(row, name))

    def balance(self, row: int, name: str) -> float:
        """Return what is free for a row, or by how much more is used than there is.

        More than there is can be used after a quota was cut; then it is negative.
        """
        subtree, used = self.subtree[row].get(name, 0), self.used[row].get(name, 0)
        parent = self.parent[row]
        if parent < 0:
            return subtree - used
        local = self.local[row].get(name, 0)
        from_parent = self.balance(parent, name)
        limit = self.tree.queues[row].borrowed.amounts.get(name)
        if limit is not None:
            from_parent = min(subtree - local - max(0, used - local) + limit, from_parent)
        return max(0, local - used) + from_parent

    def potential(self, row: int, name: str) -> float:
        """Return what a row could have if nothing were used."""
        found = self._potential.get((row, name))
        if found is not None:
            return found
        subtree, parent = self.subtree[row].get(name, 0), self.parent[row]
        most = subtree
        if parent >= 0:
            most = self.local[row].get(name, 0) + self.potential(parent, name)
            limit = self.tree.queues[row].borrowed.amounts.get(name)
            if limit is not None:
                most = min(subtree + limit, most)
        self._potential[row, name] = most
        return most

    def borrows_with(self, row: int, name: str, amount: float) -> bool:
        """Tell whether a row is above its subtree's quota with an additional amount."""
        return self.used[row].get(name, 0) + amount > self.subtree[row].get(name, 0)

    def within_nominal(self, row: int, names: Iterable[str]) -> bool:
        """Tell whether a row is within its subtree's quota in all columns."""
        used, subtree = self.used[row], self.subtree[row]
        return all(used.get(name, 0) <= subtree.get(name, 0) for name in names)

    def borrow_height(self, row: int, name: str, amount: float) -> tuple[int, bool]:
        """Return the height of the lowest subtree with room for an amount.

        It is 0 for the queue itself, and the root's if no subtree has room. The second value says
        whether the subtree is smaller than the whole tree, so others' workloads can be reclaimed.
        """
        inside = self.parent[row] >= 0
        if not inside or not self.borrows_with(row, name, amount):
            return 0, inside
        missing = amount - self.local_available(row, name)
        for above in self.ancestors(row):
            if not self.borrows_with(above, name, missing):
                return self.height[above], self.parent[above] >= 0
            missing -= self.local_available(above, name)
        return self.height[self.root(row)], False

    def beyond_local(self, row: int, amounts: Amounts) -> tuple[bool, dict[str, float]]:
        """Return whether amounts fit a row's subtree, and what its parent would have to give."""
        used, subtree = self.used[row], self.subtree[row]
        fits = all(used.get(n, 0) + a <= subtree.get(n, 0) for n, a in amounts.items())
        return fits, self.passed_up(row, amounts)

    # Usage -------------------------------------------------------------------------------

    def add(self, row: int, amounts: Amounts) -> None:
        """Count amounts as used by a ClusterQueue."""
        for name, amount in amounts.items():
            self._add(row, name, amount)

    def _add(self, row: int, name: str, amount: float) -> None:
        while True:
            spare = self.local_available(row, name)
            self.used[row][name] = self.used[row].get(name, 0) + amount
            self.changes[row] += 1
            row, amount = self.parent[row], amount - spare
            if row < 0 or amount <= 0:
                return

    def remove(self, row: int, amounts: Amounts) -> None:
        """Take back what :meth:`add` counted."""
        for name, amount in amounts.items():
            self._remove(row, name, amount)

    def _remove(self, row: int, name: str, amount: float) -> None:
        while True:
            used = self.used[row].get(name, 0)
            in_parent = used - self.local[row].get(name, 0)
            self.used[row][name] = used - amount
            self.changes[row] += 1
            row, amount = self.parent[row], min(amount, in_parent)
            if row < 0 or in_parent <= 0:
                return

    def passed_up(self, row: int, amounts: Amounts) -> dict[str, float]:
        """Return what a row's parent would count if the row used more."""
        return {n: max(0, a - self.local_available(row, n)) for n, a in amounts.items()}

    def taken_up(self, row: int, amounts: Amounts) -> dict[str, float]:
        """Return what a row's parent would count less if the row used less."""
        used, local = self.used[row], self.local[row]
        return {
            name: max(0, min(amount, used.get(name, 0) - local.get(name, 0)))
            for name, amount in amounts.items()
        }

"""The policy of compute pools: the tenants of a pool share its nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from bayplan import Handle, Overdue, PodInfo
from bayplan.api import AiComputePool, ComputePool, Quantity
from bayplan.api.meta import Condition
from bayplan.api.pools import ComputePoolStatus, ModelCapacity
from bayplan.api.quantity import countable
from bayplan.api.queue import UNLIMITED, Amounts, Queue
from bayplan.cluster.protocol import PatchStatus
from bayplan.dialects import compute_pool
from bayplan.queues.amounts import total_of
from bayplan.queues.devices import in_thousandths, is_device
from bayplan.queues.pools import PoolAccount, PoolAmounts, account_of, problems_of
from bayplan.queues.tree import AmountRows, QueueTree
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.isolation import alone
from bayplan_plugins.queues.plain.budgets import BudgetArgs, BudgetGate
from bayplan_plugins.queues.plain.claimed_devices import ClaimedDevices
from bayplan_plugins.queues.plain.policy import Flavour, PlainArgs, PlainPolicy
from bayplan_plugins.queues.policy import AssignsNodes, QuotaRefusal

__all__ = ["PoolArgs", "PoolPolicy"]

_KINDS: tuple[type[ComputePool], ...] = (ComputePool, AiComputePool)


class PoolArgs(PlainArgs):
    """Arguments of compute pools; with ``budgets`` tenants that have spent theirs are held back."""

    policy: Flavour = "capacity"
    budgets: BudgetArgs | None = None


class PoolPolicy(PlainPolicy, AssignsNodes):
    """Pools as roots over their nodes, tenants as queues; pods use the nodes of their pool only."""

    def __init__(self, args: PoolArgs, handle: Handle) -> None:
        self._devices = ClaimedDevices(handle.snapshot, self._pool_of_pod)
        super().__init__(
            compute_pool.NAME,
            args,
            handle,
            _KINDS,
            self._define,
            self._queue_of_pod,
            devices=self._devices,
        )
        self._of_slices: Amounts = {}
        """What all pools may give of devices in slices, by resource."""
        self._seen: Hashable = None
        self._budgets = BudgetGate(args.budgets) if args.budgets is not None else None
        self._held: dict[str, PodInfo] = {}
        """Pods whose tenants have spent their budget; that may change with time alone."""

    # Which pool --------------------------------------------------------------------------

    def _pools(self) -> dict[str, ComputePool]:
        """Return the pools by name; one of bayplan.dev hides one of the same name."""
        snapshot = self._handle.snapshot
        found: dict[str, ComputePool] = {}
        for kind in reversed(_KINDS):
            found |= snapshot.objects(kind)
        return found

    def _queue_of_pod(self, pod: PodInfo) -> str | None:
        pools = self._pools()
        name = compute_pool.pool_of(pod.labels, pod.namespace, pools.values())
        if name is None:
            return None
        pool = pools.get(name)
        if pool is None:
            return name
        tenant = compute_pool.tenant_of(pod.labels, pod.namespace, pool)
        known = any(quota.tenant == tenant for quota in pool.spec.quotas)
        return f"{name}/{tenant if known else compute_pool.OTHERS}"

    def _pool_of_pod(self, pod: PodInfo) -> ComputePool | None:
        pools = self._pools()
        if not pools:
            return None
        name = compute_pool.pool_of(pod.labels, pod.namespace, pools.values())
        return pools.get(name) if name is not None else None

    def node_labels(self, pod: PodInfo) -> Mapping[str, str]:
        """Return the labels of the nodes of a pod's pool."""
        pool = self._pool_of_pod(pod)
        return pool.spec.node_selector if pool is not None else {}

    # What messages say -------------------------------------------------------------------

    def title(self, queue: str) -> str:
        """Return what messages call a queue: a pool, or one of its tenants."""
        pool, _, tenant = queue.partition("/")
        if not tenant:
            return f'pool "{pool}"'
        if tenant == compute_pool.OTHERS:
            return f'tenants of pool "{pool}" without a quota'
        return f'tenant "{tenant}" of pool "{pool}"'

    def beyond(self, row: int, request: AmountRows, more: float) -> QuotaRefusal | None:
        """Return the first quota that is exceeded, with the tenant or the pool that has it."""
        found = super().beyond(row, request, more)
        return found and replace(found, title=self.title(found.ancestor))

    # Budgets -----------------------------------------------------------------------------

    def gate(self, pod: PodInfo, queue: str) -> str | None:
        """Hold back pods of pools that take none, and of tenants that have spent their budget."""
        tree, root = self.ledger.tree, queue.partition("/")[0]
        broken = root in tree.row_of and tree.queues[tree.row_of[root]].problem is not None
        refusal = super().gate(pod, root if broken else queue)
        if refusal is not None or self._budgets is None or pod.key in self._placed:
            return refusal
        pool = self._pools().get(root)
        tenant = compute_pool.tenant_of(pod.labels, pod.namespace, pool)
        spent = self._budgets.refusal(tenant, self._handle.unix_time)
        if spent is None:
            self._held.pop(pod.key, None)
            return None
        self._held[pod.key] = pod
        return f'tenant "{tenant}": {spent}'

    @property
    def _placed(self) -> Mapping[str, object]:
        return self._handle.snapshot.placed

    def overdue(self) -> Overdue | None:
        """Evict nobody; ask again for pods that a budget holds back."""
        if self._budgets is None or not self._held:
            return None
        living = self._handle.snapshot.living
        for pod in [living[key] for key in self._held if key in living]:
            self._handle.recheck_gates(pod)
        self._held = {key: pod for key, pod in self._held.items() if key in living}
        now = self._handle.unix_time
        return Overdue(again=self._handle.now + self._budgets.again(now) - now)

    # Capacity ----------------------------------------------------------------------------

    def _define(self, snapshot: Snapshot) -> list[Queue]:
        pools = self._pools()
        problems = problems_of(pools.values(), snapshot)
        accounts = {name: (pool, account_of(pool, snapshot)) for name, pool in pools.items()}
        self._devices.follow(accounts)
        found: list[Queue] = []
        self._of_slices = {}
        for name, (pool, account) in accounts.items():
            by_class = self._devices.usable(name)
            by_driver = {one: most for one, most in account.usable.items() if is_device(one)}
            self._of_slices = total_of(self._of_slices, by_class, by_driver)
            usable = total_of(account.usable, by_class)
            bounded = dict.fromkeys(self._devices.implicit, UNLIMITED) | usable
            found += compute_pool.queues_of(pool, usable, bounded, problems.get(name))
        return found

    def admit(self) -> None:
        """Take in nodes and devices that came, went, or changed what they offer."""
        seen = self._handle.snapshot.nodes.node_version, self._devices.state
        if seen != self._seen:
            self._seen = seen
            self.ledger.restate()

    def _total(self, tree: QueueTree) -> AmountRows:
        """Return what the nodes offer; of devices in slices, what the pools may give."""
        total = super()._total(tree)
        for name, amount in self._of_slices.items():
            if name in tree.column_of:
                total[tree.column_of[name]] += amount
        return total

    # Status ------------------------------------------------------------------------------

    def statuses(self) -> Sequence[PatchStatus]:
        """Return what each pool has, by resource and model."""
        return list(self._statuses())

    def _statuses(self) -> Iterator[PatchStatus]:
        snapshot = self._handle.snapshot
        for kind in _KINDS:
            for name, pool in snapshot.objects(kind).items():
                with alone(f"status of {kind.__name__} {name}"):
                    yield PatchStatus(kind, name, self._status(name, account_of(pool, snapshot)))

    def _status(self, name: str, account: PoolAccount) -> ComputePoolStatus:
        tree = self.ledger.tree
        row = tree.row_of.get(name)
        problem = tree.queues[row].problem if row is not None else None
        ready = Condition("Ready", "True", "NodesInService", "pods may use the pool")
        if problem is not None:
            ready = Condition("Ready", "False", "Invalid", problem)
        elif not any(account.usable.values()):
            ready = Condition("Ready", "False", "NoNodes", "no node of the pool is in service")

        def by(field: str) -> dict[str, Quantity]:
            found = ((n, getattr(one, field)) for n, one in account.amounts.items())
            return {name: _quantity(name, amount) for name, amount in found}

        return ComputePoolStatus(
            phase="Ready" if ready.status == "True" else ready.reason,
            total=by("total"),
            allocated=by("allocated"),
            available=by("available"),
            reserved=by("reserved"),
            maintenance=by("maintenance"),
            failed=by("failed"),
            models=tuple(_model(*key, one) for key, one in sorted(account.models.items())),
            nodes=len(account.nodes),
            conditions=(ready,),
        )


def _model(resource: str, model: str, amounts: PoolAmounts) -> ModelCapacity:
    def of(amount: int) -> Quantity:
        return _quantity(resource, amount)

    return ModelCapacity(
        model, resource, of(amounts.total), of(amounts.allocated), of(amounts.available)
    )


def _quantity(resource: str, amount: int) -> Quantity:
    amount = int(countable(amount))
    if not in_thousandths(resource):
        return Quantity(amount)
    return Quantity(f"{amount}m" if amount % 1000 else amount // 1000)

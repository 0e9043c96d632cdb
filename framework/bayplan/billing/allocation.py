"""What namespaces, pods, queues or tenants cost over time, in the shape of OpenCost's API.

What a pod requests is what it holds and what it is charged for; use is not measured, so averages
of use and efficiencies are unknown (None). Costs are at list price, without the discounts and the
minimum periods of an invoice. Idle cost is that of capacity in service that nobody holds; capacity
that a pool reserves counts as idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import msgspec

from bayplan.api.times import rfc3339
from bayplan.billing.allocation_query import FIELDS, AllocationQuery, aggregate_key
from bayplan.billing.idle import UnusedRecord, unused
from bayplan.billing.pricelist_file import PRICE_PLACES
from bayplan.billing.prices import PriceList, thousandths_of
from bayplan.billing.tariff import Tariff, pieces
from bayplan.billing.usage_source import UsageSource
from bayplan.billing.window import Window
from bayplan.metering.record import UsageRecord

__all__ = ["allocations"]

IDLE = "__idle__"
_HOUR = 3_600_000
_GIB = 2**30
_PARTS = 10**PRICE_PLACES
_COST = _PARTS * _HOUR * 1000 * _GIB
_PLACES = 100_000
_STORAGE = ("ephemeral-storage", "storage")
_PROPERTIES = ("cluster", "node", "namespace", "controller", "pod")


# Sums ---------------------------------------------------------------------------------------


class _Kind(msgspec.Struct):
    """What one kind of resource adds up to, in thousandths times milliseconds, and its cost.

    Costs are in ``_COST`` parts of the currency, so that sums stay whole numbers.
    """

    quantity: int = 0
    cost: int | Fraction = 0


class _Row(msgspec.Struct):
    """One allocation: exact sums over a window. ``properties`` holds what all its parts share."""

    name: str
    window: Window
    since: int
    until: int
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    kinds: dict[str, _Kind] = msgspec.field(default_factory=dict)

    @property
    def cost(self) -> int | Fraction:
        return sum(kind.cost for kind in self.kinds.values())

    def add(self, kind: str, quantity: int, cost: int | Fraction) -> None:
        found = self.kinds.setdefault(kind, _Kind())
        found.quantity += quantity
        found.cost += cost

    def cover(
        self, since: int, until: int, properties: Mapping[str, str], labels: Mapping[str, str]
    ) -> None:
        """Reach over another time, and keep what the row's parts have in common."""
        self.since, self.until = min(self.since, since), max(self.until, until)
        _keep_shared(self.properties, properties)
        _keep_shared(self.labels, labels)

    def take(self, other: _Row) -> None:
        """Add a row of the same name."""
        self.cover(other.since, other.until, other.properties, other.labels)
        for name, kind in other.kinds.items():
            self.add(name, kind.quantity, kind.cost)


def _keep_shared(own: dict[str, str], other: Mapping[str, str]) -> None:
    for key in [key for key, value in own.items() if other.get(key) != value]:
        del own[key]


def allocations(
    query: AllocationQuery, prices: PriceList, source: UsageSource, known: int
) -> list[dict[str, Any]]:
    """Return one map of allocations by name for each step, as OpenCost's JSON has them.

    :param known: until when usage is known, in milliseconds since 1970; later times cost nothing.
    :raises InputError: for usage at a time without prices.
    """
    since, until = query.window.since, min(query.window.until, known)
    costs = _Costs(query, Tariff(prices, since, max(since, until)), until)
    usage = source.records(since, until, query.tenant)
    if query.include_idle:
        usage = list(usage)
        costs.add_idle(unused(usage, source.capacity(since, until), since, until))
    costs.add_usage(usage)
    steps = costs.steps()
    if query.accumulate:
        steps = [_by_name((row for rows in steps for row in rows.values()), query.window)]
    return [{name: _as_json(row) for name, row in sorted(rows.items())} for rows in steps]


class _Costs:
    """The rows of each step. Where idle cost is spread node by node, a row is one node's."""

    def __init__(self, query: AllocationQuery, tariff: Tariff, until: int) -> None:
        self._query = query
        self._until = until
        self._tariff = tariff
        self._windows = query.window.steps(query.step)
        self._rows: list[dict[tuple[str, str], _Row]] = [{} for _ in self._windows]
        self._idle: list[dict[str, _Row]] = [{} for _ in self._windows]

    def add_usage(self, records: Iterable[UsageRecord]) -> None:
        """Add what was used."""
        query = self._query
        for record in records:
            name = "/".join(aggregate_key(record, key) for key in query.aggregate)
            place = (name, record.node if query.share_idle and query.idle_by_node else "")
            properties = {key: FIELDS[key](record) for key in _PROPERTIES}
            for index, since, until in self._parts(record):
                row = self._rows[index].get(place)
                if row is None:
                    labels = dict(record.labels)
                    step = self._windows[index]
                    row = _Row(name, step, since, until, dict(properties), labels)
                    self._rows[index][place] = row
                row.cover(since, until, properties, record.labels)
                self._charge(row, record, since, until)

    def add_idle(self, records: Iterable[UnusedRecord]) -> None:
        """Add what was idle: by node, or in one row under ""."""
        for record in records:
            node = record.node if self._query.idle_by_node else ""
            for index, since, until in self._parts(record):
                row = self._idle[index].get(node)
                if row is None:
                    step = self._windows[index]
                    properties = {"cluster": "cluster"} | ({"node": node} if node else {})
                    name = f"{node}/{IDLE}" if node else IDLE
                    row = _Row(name, step, step.since, step.until, properties)
                    self._idle[index][node] = row
                self._charge(row, record, since, until)

    def steps(self) -> list[dict[str, _Row]]:
        """Return the rows of each step by name."""
        found = []
        for window, rows, idle in zip(self._windows, self._rows, self._idle, strict=True):
            if self._query.share_idle:
                _spread(rows, idle)
            left = [row for row in idle.values() if row.kinds]
            found.append(_by_name([*rows.values(), *left], window))
        return found

    def _parts(self, record: UsageRecord | UnusedRecord) -> Iterator[tuple[int, int, int]]:
        """Yield (step, since, until) of the steps in which a record lies."""
        window = self._query.window
        step = self._query.step or window.until - window.since
        begin = max(record.since, window.since)
        end = self._until if record.until is None else min(record.until, self._until)
        while begin < end:
            index = (begin - window.since) // step
            until = min(end, window.since + (index + 1) * step)
            yield index, begin, until
            begin = until

    def _charge(
        self, row: _Row, record: UsageRecord | UnusedRecord, since: int, until: int
    ) -> None:
        self._tariff.prices.check(since, until)
        rates = self._tariff.rates(record.resource, record.model, record.pool)
        cost = sum(int(rate.per_hour * _PARTS) * of for rate, of in pieces(rates, since, until))
        # Priced by the GiB, an amount is of bytes.
        cost *= record.amount * (_GIB // (thousandths_of(record.resource) // 1000))
        row.add(_kind(record), record.amount * (until - since), cost)


def _kind(record: UsageRecord | UnusedRecord) -> str:
    if record.resource == "cpu":
        return "cpu"
    if record.resource == "memory" or record.resource.startswith("hugepages-"):
        return "ram"
    if record.resource in _STORAGE:
        return "pv"
    name = record.resource.lower()
    return "gpu" if record.model or "gpu" in name or "/mig-" in name else "external"


def _spread(rows: Mapping[tuple[str, str], _Row], idle: Mapping[str, _Row]) -> None:
    """Spread idle cost over the rows (of its node) by their cost of the same kind.

    What has nobody to go to stays idle.
    """
    for node, row in idle.items():
        place = [one for (_, at), one in rows.items() if not node or at == node]
        for name, kind in list(row.kinds.items()):
            sharing = [one.kinds[name] for one in place if name in one.kinds]
            total = Fraction(sum(one.cost for one in sharing))
            if not total:
                continue
            for one in sharing:
                one.cost += kind.cost * (one.cost / total)
            del row.kinds[name]


def _by_name(rows: Iterable[_Row], window: Window) -> dict[str, _Row]:
    """Add up rows of one name, which then are rows of a window."""
    found: dict[str, _Row] = {}
    for row in rows:
        if row.name in found:
            found[row.name].take(row)
        else:
            found[row.name] = row
    for row in found.values():
        row.window = window
    return found


# JSON ---------------------------------------------------------------------------------------


def _as_json(row: _Row) -> dict[str, Any]:
    hours = Fraction(row.until - row.since, _HOUR)
    properties: dict[str, Any] = dict(row.properties)
    if row.labels:
        properties["labels"] = row.labels
    found: dict[str, Any] = {
        "name": row.name,
        "properties": properties,
        "window": {"start": _time(row.window.since), "end": _time(row.window.until)},
        "start": _time(row.since),
        "end": _time(row.until),
        "minutes": _number(hours * 60),
    }
    for kind, average, total in _SHAPE:
        of_kind = row.kinds.get(kind, _Kind())
        amount_hours = Fraction(of_kind.quantity, 1000 * _HOUR)
        mean = _number(amount_hours / hours) if hours else None
        found[average] = mean
        found[total] = _number(amount_hours)
        found[f"{kind}Cost"] = _number(Fraction(of_kind.cost) / _COST)
        found[f"{kind}CostAdjustment"] = 0.0
        if kind != "pv":
            found[f"{kind}CostIdle"] = 0.0
            found[f"{kind}Efficiency"] = None
    found["cpuCoreRequestAverage"] = found["cpuCores"]
    found["ramByteRequestAverage"] = found["ramBytes"]
    for name in ("cpuCoreLimitAverage", "cpuCoreUsageAverage"):
        found[name] = None
    for name in ("ramByteLimitAverage", "ramByteUsageAverage"):
        found[name] = None
    found |= dict.fromkeys(_NOT_CHARGED, 0.0)
    found["externalCost"] = _number(Fraction(row.kinds.get("external", _Kind()).cost) / _COST)
    found["totalCost"] = _number(Fraction(row.cost) / _COST)
    found["totalEfficiency"] = None
    found |= dict.fromkeys(("pvs", "lbAllocations", "gpuAllocation"))
    return found


_SHAPE = (
    ("cpu", "cpuCores", "cpuCoreHours"),
    ("gpu", "gpuCount", "gpuHours"),
    ("ram", "ramBytes", "ramByteHours"),
    ("pv", "pvBytes", "pvByteHours"),
)
"""A kind's prefix, its average and its sum over hours."""
_NOT_CHARGED = (
    "networkTransferBytes",
    "networkReceiveBytes",
    "networkCost",
    "networkCrossZoneCost",
    "networkCrossRegionCost",
    "networkInternetCost",
    "networkCostAdjustment",
    "loadBalancerCost",
    "loadBalancerCostAdjustment",
    "sharedCost",
)


def _number(value: Fraction) -> float:
    """Return a number with five decimal places, for JSON."""
    return round(value * _PLACES) / _PLACES


def _time(moment: int) -> str:
    return rfc3339(moment / 1000)

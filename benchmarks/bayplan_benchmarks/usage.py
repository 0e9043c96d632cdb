"""The journal of usage: how fast records are taken in, and a month is added up."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.billing.invoice import invoice
from bayplan.billing.month import Month
from bayplan.billing.prices import PriceList, load_prices
from bayplan.metering.journal import Journal
from bayplan.metering.record import CapacityRecord, CapacityState, UsageRecord
from bayplan.metering.summary import Summary

__all__ = ["usage"]

_START = 1_788_220_800_000
_HOUR = 3_600_000
_MONTH = 30 * 24 * _HOUR
_BILLED = Month(2026, 9)
_TENANTS = 200
_BATCH = 20_000
_HELD = (("cpu", "", 8000), ("memory", "", 64 * 2**30 * 1000), ("nvidia.com/gpu", "H100", 8000))
"""What each pod holds: a record for each."""
_RECORDS_PER_POD = len(_HELD)
_LEAST = 30 * 60_000
_SHORT = 10
"""One pod in so many ends before the minimum period of half an hour."""
_CAPACITY = "  capacity: [{pool: pool, owner: tenant-7, idle: 0.25, reserved: 1}]\n"
_PRICES = """
apiVersion: bayplan.dev/v1alpha1
kind: PriceList
currency: EUR
timeZone: Europe/Berlin
versions:
- from: 2026-01-01
  prices:
  - resource: nvidia.com/gpu
    perHour: 4
    bands: [{name: night, from: "22:30", to: "06:30", perHour: 2.5}]
  - {resource: cpu, perHour: 0.03}
  - {resource: memory, perHour: 0.004}
  discounts:
  - resource: nvidia.com/gpu
    tiers: [{above: 1000, factor: 0.9}, {above: 100000, factor: 0.8}]
"""


def _records(first: int, last: int, pods: int, nodes: int) -> Iterator[UsageRecord]:
    """Yield the records of pods that begin all over a month and run for up to five hours."""
    for pod in range(first, last):
        tenant = f"tenant-{pod % _TENANTS}"
        since = _START + pod * _MONTH // pods
        length = _HOUR + pod * 7_777 % (4 * _HOUR)
        if pod // _TENANTS % _SHORT == 0:
            length = 1 + length % _LEAST
        until = since + length
        for resource, model, amount in _HELD:
            yield UsageRecord(
                tenant,
                f"queue-{pod % _TENANTS}",
                "pool",
                f"team-{pod % _TENANTS}",
                f"train/job-{pod // 8}",
                f"train/pod-{pod}",
                f"00000000-0000-0000-0000-{pod:012}",
                f"node-{pod % nodes}",
                resource,
                model,
                amount,
                since,
                until,
            )


def _offers(pods: int, nodes: int) -> Iterator[CapacityRecord]:
    """Yield what nodes offer, which all pods fit into."""
    for node in range(nodes):
        for resource, model, amount in _HELD:
            whole = amount * (pods // nodes + 1)
            parts = ((CapacityState.IN_SERVICE, whole), (CapacityState.RESERVED, amount))
            for state, part in parts:
                own = ("pool", f"node-{node}", resource, model, state, part, _START, None)
                yield CapacityRecord(*own)


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        journal = Journal(str(path))
        journal.claim()
        started = time.perf_counter()
        for first in range(0, pods, _BATCH // _RECORDS_PER_POD):
            last = min(pods, first + _BATCH // _RECORDS_PER_POD)
            journal.append(list(_records(first, last, pods, nodes)))
        ingest = time.perf_counter() - started
        journal.append(list(_offers(pods, nodes)))
        month = Summary(journal, _START, _START + _MONTH)
        ragged = Summary(journal, _START + 12_345, _START + _MONTH - 54_321)
        by = ("tenant", "resource", "model")
        prices = _prices(Path(folder), "")
        least = _prices(Path(folder), "  minimumPeriod: 30m\n")
        owned = _prices(Path(folder), _CAPACITY)
        figures = {
            "recordsPerSecond": pods * _RECORDS_PER_POD / ingest,
            "summarySeconds": _seconds(lambda: month.usage(by)),
            "raggedSummarySeconds": _seconds(lambda: ragged.usage(by)),
            "tenantRecordsSeconds": _seconds(
                lambda: list(journal.records(_START, _START + _MONTH, "tenant-7"))
            ),
            "invoiceSeconds": _seconds(
                lambda: invoice("tenant-7", _BILLED, prices, journal, _START + _MONTH)
            ),
            "minimumInvoiceSeconds": _seconds(
                lambda: invoice("tenant-7", _BILLED, least, journal, _START + _MONTH)
            ),
            "ownerInvoiceSeconds": _seconds(
                lambda: invoice("tenant-7", _BILLED, owned, journal, _START + _MONTH)
            ),
            "gigabytes": sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e9,
        }
        journal.close()
    given = {"nodes": nodes, "pods": pods, "records": pods * _RECORDS_PER_POD}
    return BenchmarkResult(given, figures)


def _prices(folder: Path, more: str) -> PriceList:
    """Return prices with bands that cut hours, discounts, and more of a version."""
    path = folder / "prices.yaml"
    path.write_text(_PRICES + more)
    return load_prices(path)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


usage = Benchmark("the journal of usage: three records a pod", (1000,), 3_333_334, _measure)

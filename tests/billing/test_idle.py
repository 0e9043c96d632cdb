"""What nobody uses, and that nothing is counted twice or left out."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.billing.bills import SECOND, Records, at, offered, prices, used

from bayplan.billing.allocation import allocations
from bayplan.billing.allocation_query import parse_query
from bayplan.billing.idle import Unused, unused
from bayplan.billing.invoice import make_invoice
from bayplan.billing.month import Month
from bayplan.metering.record import CapacityRecord, CapacityState, UsageRecord

BEGIN = at("2026-01-05")
LENGTH = 1000
END = BEGIN + LENGTH * SECOND
DEVICES = 4
NODES = ("n1", "n2")


@st.composite
def device_use(draw: st.DrawFn) -> list[UsageRecord]:
    """Pods one after the other on each device, with gaps."""
    found = []
    for node in NODES:
        for device in range(DEVICES):
            times = sorted(draw(st.sets(st.integers(0, LENGTH), max_size=6)))
            for index in range(0, len(times) - 1, 2):
                since, until = (BEGIN + times[index + side] * SECOND for side in (0, 1))
                tenant = draw(st.sampled_from(("lab", "guest")))
                uid = f"{node}-{device}-{index}"
                found.append(used(since, until, tenant=tenant, node=node, pod_uid=uid, pool="p"))
    return found


@st.composite
def capacity(draw: st.DrawFn) -> list[CapacityRecord]:
    """Each node's devices over time: in service, reserved, or out of service."""
    found = []
    for node in NODES:
        cuts = sorted({0, LENGTH, *draw(st.sets(st.integers(1, LENGTH - 1), max_size=3))})
        for since, until in itertools.pairwise(cuts):
            kept = draw(st.integers(0, 2))
            span = (BEGIN + since * SECOND, BEGIN + until * SECOND)
            if kept:
                state = CapacityState.RESERVED
                found.append(offered(*span, kept, node=node, pool="p", state=state))
            found.append(offered(*span, DEVICES - kept, node=node, pool="p"))
    return found


def total(records: list[tuple[int, int, int]]) -> int:
    return sum(amount * (until - since) for amount, since, until in records)


def sums(usage: list[UsageRecord], offers: list[CapacityRecord]) -> tuple[int, int, int]:
    in_use = total([(one.amount, one.since, one.until or END) for one in usage])
    idle = [(one.amount, one.since, one.until) for one in unused(usage, offers, BEGIN, END)]
    return in_use, total(idle), total([(o.amount, o.since, o.until or END) for o in offers])


@settings(max_examples=60, deadline=None)
@given(device_use(), capacity())
def test_used_idle_and_reserved_are_the_capacity(
    usage: list[UsageRecord], offers: list[CapacityRecord]
) -> None:
    in_use, idle, whole = sums(usage, offers)
    assert in_use + idle == whole


@settings(max_examples=30, deadline=None)
@given(device_use(), capacity(), st.sampled_from(("1m", "5m", "1h")), st.booleans(), st.booleans())
def test_all_rows_cost_what_the_capacity_costs(
    usage: list[UsageRecord],
    offers: list[CapacityRecord],
    step: str,
    share: bool,
    by_node: bool,
) -> None:
    window = f"{BEGIN // 1000},{END // 1000}"
    asked = {
        "window": window,
        "step": step,
        "aggregate": "tenant",
        "accumulate": "true",
        "shareIdle" if share else "includeIdle": "true",
        "idleByNode": str(by_node).lower(),
    }
    with tempfile.TemporaryDirectory() as folder:
        flat = prices(Path(folder))
    [found] = allocations(parse_query(asked, END, None), flat, Records(usage, offers), END)
    # 8 devices at 2 an hour; five decimal places of each row.
    whole = 2 * DEVICES * len(NODES) * LENGTH / 3600
    assert abs(sum(row["totalCost"] for row in found.values()) - whole) <= 1e-5 * len(found)


@settings(max_examples=30, deadline=None)
@given(device_use(), capacity())
def test_all_invoices_bill_the_capacity_once(
    usage: list[UsageRecord], offers: list[CapacityRecord]
) -> None:
    owned = {"pool": "p", "owner": "lab", "idle": 1, "reserved": 1}
    version = {"from": "2026-01-01", "capacity": [owned]}
    version["prices"] = [{"resource": "nvidia.com/gpu", "perHour": 2}]
    with tempfile.TemporaryDirectory() as folder:
        price_list = prices(Path(folder), version)
    source = Records(usage, offers)
    bills = [
        make_invoice(tenant, Month(2026, 1), price_list, source, END) for tenant in ("lab", "guest")
    ]
    hours = sum(line.exact_hours for bill in bills for line in bill.lines)
    assert hours * 3600 == DEVICES * len(NODES) * LENGTH


def test_a_node_that_changes_its_pool_is_idle_in_both() -> None:
    middle = BEGIN + 400 * SECOND
    offers = [offered(BEGIN, middle, 2, pool="a"), offered(middle, END, 2, pool="b")]
    usage = [used(BEGIN, END, 1, pool="a")]
    found = [
        (one.kind, one.pool, one.amount, one.until - one.since)
        for one in unused(usage, offers, BEGIN, END)
    ]
    assert found == [
        (Unused.IDLE, "a", 1000, 400 * SECOND),
        (Unused.IDLE, "b", 1000, 600 * SECOND),
    ]


def test_what_runs_on_a_cordoned_node_leaves_nothing_idle() -> None:
    offers = [offered(BEGIN, END, 2, state=CapacityState.MAINTENANCE)]
    assert list(unused([used(BEGIN, END)], offers, BEGIN, END)) == []

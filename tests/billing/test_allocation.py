"""Costs in OpenCost's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.billing.bills import GPU, H100, Records, at, offered, prices, used, version

from bayplan.billing.allocation import allocations
from bayplan.billing.allocation_query import parse_query
from bayplan.billing.prices import PriceList
from bayplan.billing.window import Window, parse_window
from bayplan.metering.record import CapacityState

DAY = "2026-01-05T00:00:00Z,2026-01-06T00:00:00Z"
NOW = at("2026-02-01")
GIB = 2**30


def price_list(folder: Path) -> PriceList:
    entries = [
        {"resource": GPU, "perHour": 2},
        {"resource": "cpu", "perHour": "0.1"},
        {"resource": "memory", "perHour": "0.01"},
    ]
    return prices(folder, version(prices=entries))


def source() -> Records:
    one: dict[str, Any] = {
        "namespace": "a",
        "pod": "a/p",
        "pod_uid": "p",
        "labels": {"team": "x", "app": "l"},
    }
    two: dict[str, Any] = {
        "namespace": "b",
        "pod": "b/q",
        "pod_uid": "q",
        "tenant": "other",
        "node": "n2",
    }
    hours = ("2026-01-05 10:00", "2026-01-05 14:00")
    return Records(
        [
            used(*hours, 4, model=H100, **one),
            used(*hours, 8, resource="cpu", **one),
            used(*hours, 16 * GIB, resource="memory", **one),
            used("2026-01-04 12:00", "2026-01-05 06:00", 2, model=H100, **two),
        ],
        [
            offered("2026-01-05", None, 4, model=H100),
            offered("2026-01-05", None, 3, model=H100, node="n2"),
            offered("2026-01-05", None, 1, model=H100, node="n2", state=CapacityState.RESERVED),
        ],
    )


def asked(folder: Path, tenant: str | None = None, **query: str) -> list[dict[str, Any]]:
    parsed = parse_query({"window": DAY} | query, NOW, tenant)
    return allocations(parsed, price_list(folder), source(), NOW)


def costs(found: dict[str, Any]) -> dict[str, float]:
    return {name: row["totalCost"] for name, row in found.items()}


def test_a_namespaces_cost_is_the_sum_of_its_resources(tmp_path: Path) -> None:
    [found] = asked(tmp_path, aggregate="namespace")
    assert list(found) == ["a", "b"]
    row = found["a"]
    expected = {
        "name": "a",
        "start": "2026-01-05T10:00:00Z",
        "end": "2026-01-05T14:00:00Z",
        "window": {"start": "2026-01-05T00:00:00Z", "end": "2026-01-06T00:00:00Z"},
        "minutes": 240.0,
        "cpuCores": 8.0,
        "cpuCoreRequestAverage": 8.0,
        "cpuCoreHours": 32.0,
        "cpuCost": 3.2,
        "gpuCount": 4.0,
        "gpuHours": 16.0,
        "gpuCost": 32.0,
        "ramBytes": 16.0 * GIB,
        "ramByteHours": 64.0 * GIB,
        "ramCost": 0.64,
        "totalCost": 35.84,
        "cpuEfficiency": None,
        "totalEfficiency": None,
    }
    assert {key: row[key] for key in expected} == expected
    assert row["properties"]["labels"] == {"team": "x", "app": "l"}
    assert found["b"]["totalCost"] == 24.0
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("pod", {"p": 35.84, "q": 24.0}),
        ("node", {"n1": 35.84, "n2": 24.0}),
        ("tenant", {"lab": 35.84, "other": 24.0}),
        ("queue", {"lab": 59.84}),
        ("controller", {"job": 59.84}),
        ("label:team", {"x": 35.84, "__unallocated__": 24.0}),
        ("namespace,label:app", {"a/l": 35.84, "b/__unallocated__": 24.0}),
        ("resource", {"cpu": 3.2, "memory": 0.64, GPU: 56.0}),
        ("", {"cluster/n1/a/p": 35.84, "cluster/n2/b/q": 24.0}),
    ],
)
def test_costs_are_added_up_by_what_is_asked_for(
    tmp_path: Path, aggregate: str, expected: dict[str, float]
) -> None:
    [found] = asked(tmp_path, aggregate=aggregate)
    assert costs(found) == expected


def test_steps_are_maps_of_their_own_unless_they_are_added_up(tmp_path: Path) -> None:
    found = asked(tmp_path, aggregate="namespace", step="4h")
    assert [costs(one) for one in found] == [
        {"b": 16.0},
        {"b": 8.0},
        {"a": 17.92},
        {"a": 17.92},
        {},
        {},
    ]
    whole = asked(tmp_path, aggregate="namespace", step="4h", accumulate="true")
    assert whole == asked(tmp_path, aggregate="namespace")
    assert whole == asked(tmp_path, aggregate="namespace", accumulate="all")
    assert asked(tmp_path, aggregate="namespace", accumulate="hour") == asked(
        tmp_path, aggregate="namespace", step="1h"
    )


def test_idle_capacity_is_a_row_or_a_row_by_node(tmp_path: Path) -> None:
    [found] = asked(tmp_path, aggregate="namespace", includeIdle="true")
    # n1: 4 GPUs for 24 h without 16 GPU hours; n2: 4 without 12.
    assert costs(found)["__idle__"] == 2.0 * (80 + 84)
    [found] = asked(tmp_path, aggregate="namespace", includeIdle="true", idleByNode="true")
    assert costs(found)["n1/__idle__"] == 160.0
    assert costs(found)["n2/__idle__"] == 168.0


def test_idle_cost_is_shared_by_cost(tmp_path: Path) -> None:
    [found] = asked(tmp_path, aggregate="namespace", shareIdle="true")
    assert costs(found) == {"a": 35.84 + round(328 * 32 / 56, 5), "b": 24 + round(328 * 24 / 56, 5)}
    by_node = {"shareIdle": "weighted", "idleByNode": "true"}
    [found] = asked(tmp_path, aggregate="namespace", **by_node)
    assert costs(found) == {"a": 195.84, "b": 192.0}


def test_idle_cost_that_nobody_can_share_stays_idle(tmp_path: Path) -> None:
    query = {"window": "2026-01-05T20:00:00Z,2026-01-05T21:00:00Z", "shareIdle": "true"}
    [found] = asked(tmp_path, **query)
    assert costs(found) == {"__idle__": 16.0}


def test_a_tenant_sees_its_own_and_no_idle_capacity(tmp_path: Path) -> None:
    [found] = asked(tmp_path, tenant="other", aggregate="namespace")
    assert costs(found) == {"b": 24.0}
    with pytest.raises(ValueError, match="idle capacity"):
        asked(tmp_path, tenant="other", includeIdle="true")
    with pytest.raises(ValueError, match="idle capacity"):
        asked(tmp_path, tenant="other", shareIdle="true")


def test_what_is_open_counts_until_it_is_known(tmp_path: Path) -> None:
    open_usage = Records([used("2026-01-05 10:00", None)], [offered("2026-01-05", None, 3)])
    query = parse_query({"window": DAY, "aggregate": "tenant", "includeIdle": "true"}, NOW, None)
    [found] = allocations(query, price_list(tmp_path), open_usage, at("2026-01-05 12:00"))
    assert costs(found) == {"lab": 4.0, "__idle__": 2.0 * (36 - 2)}
    [found] = allocations(query, price_list(tmp_path), open_usage, at("2026-01-04"))
    assert found == {}


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"window": ""}, "expected a window"),
        ({"window": "tomorrow"}, "expected a window"),
        ({"window": "1h,2h"}, "expected a window"),
        ({"window": "2026-01-02T00:00:00Z,2026-01-01T00:00:00Z"}, "after its begin"),
        ({"window": "500d"}, "400 days"),
        ({"step": "0h"}, "expected a step"),
        ({"step": "1m"}, "1,000 steps"),
        ({"aggregate": "colour"}, "cannot aggregate by"),
        ({"aggregate": "label:"}, "cannot aggregate by"),
        ({"aggregate": ",".join(["pod"] * 9)}, "at most 8"),
        ({"accumulate": "perhaps"}, "expected true or false"),
    ],
)
def test_what_cannot_be_asked_for_is_named(
    tmp_path: Path, query: dict[str, str], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        asked(tmp_path, **query)


def test_windows_have_opencosts_words() -> None:
    now = at("2026-01-07 15:30")
    expected = {
        "today": ("2026-01-07", "2026-01-07 15:30"),
        "yesterday": ("2026-01-06", "2026-01-07"),
        "week": ("2026-01-04", "2026-01-07 15:30"),
        "lastweek": ("2025-12-28", "2026-01-04"),
        "month": ("2026-01-01", "2026-01-07 15:30"),
        "lastmonth": ("2025-12-01", "2026-01-01"),
        "90m": ("2026-01-07 14:00", "2026-01-07 15:30"),
        "2d": ("2026-01-05 15:30", "2026-01-07 15:30"),
        "1767225600,1767312000": ("2026-01-01", "2026-01-02"),
    }
    for text, (since, until) in expected.items():
        assert parse_window(text, now) == Window(at(since), at(until)), text

"""What a request for costs asks for, in the parameters of OpenCost's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from bayplan.billing.window import Window, parse_step, parse_window
from bayplan.metering.record import UsageRecord

__all__ = ["FIELDS", "UNALLOCATED", "AllocationQuery", "aggregate_key", "parse_query"]

UNALLOCATED = "__unallocated__"
_MOST_KEYS = 8
_LENGTHS = ("hour", "day", "week")

FIELDS: Mapping[str, Callable[[UsageRecord], str]] = {
    "cluster": lambda record: "cluster",
    "namespace": lambda record: record.namespace,
    "controller": lambda record: record.job.partition("/")[2] or record.job,
    "pod": lambda record: record.pod.partition("/")[2] or record.pod,
    "node": lambda record: record.node,
    "queue": lambda record: record.queue,
    "tenant": lambda record: record.tenant,
    "pool": lambda record: record.pool,
    "resource": lambda record: record.resource,
    "model": lambda record: record.model,
}
"""What costs can be added up by; ``label:NAME`` is another."""
_DEFAULT = ("cluster", "node", "namespace", "pod")


class AllocationQuery(msgspec.Struct, frozen=True):
    """What a request asks for.

    :param step: milliseconds, None for one step.
    :param tenant: whose usage counts, None for all.
    """

    window: Window
    aggregate: tuple[str, ...] = _DEFAULT
    step: int | None = None
    accumulate: bool = False
    include_idle: bool = False
    share_idle: bool = False
    idle_by_node: bool = False
    tenant: str | None = None


def parse_query(query: Mapping[str, str], now: int, tenant: str | None) -> AllocationQuery:
    """Return what the parameters of a request ask for; OpenCost's other parameters have no effect.

    :param now: milliseconds since 1970.
    :param tenant: whose usage the caller may see, None for all; then no idle capacity is shown.
    :raises ValueError: for a parameter that cannot be used.
    """
    if "window" not in query:
        raise ValueError("give ?window=, such as 24h")
    window = parse_window(query["window"], now)
    accumulate = query.get("accumulate", "").lower()
    # OpenCost's accumulate=day adds shorter steps up to days.
    length = accumulate if accumulate in _LENGTHS else query.get("step")
    step = parse_step(length, window) if length else None
    share = _flag(query, "shareIdle", weighted=True)
    asked = AllocationQuery(
        window,
        _keys(query.get("aggregate", "")),
        step,
        accumulate == "all" or (accumulate not in _LENGTHS and _flag(query, "accumulate")),
        _flag(query, "includeIdle") or share,
        share,
        _flag(query, "idleByNode"),
        tenant,
    )
    if tenant is not None and asked.include_idle:
        raise ValueError("idle capacity is only shown to who may see all tenants")
    return asked


def _flag(query: Mapping[str, str], name: str, weighted: bool = False) -> bool:
    words = {"": False, "false": False, "true": True} | ({"weighted": True} if weighted else {})
    text = query.get(name, "").lower()
    if text not in words:
        raise ValueError(f"expected true or false for {name}")
    return words[text]


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(text.split(",")) if text else _DEFAULT
    for key in keys:
        if key not in FIELDS and not (key.startswith("label:") and len(key) > len("label:")):
            known = ", ".join(FIELDS)
            raise ValueError(f'cannot aggregate by "{key[:80]}"; known are {known} and label:NAME')
    if len(keys) > _MOST_KEYS:
        raise ValueError(f"expected at most {_MOST_KEYS} keys to aggregate by")
    return keys


def aggregate_key(record: UsageRecord, key: str) -> str:
    """Return what a record is added up by for one key."""
    if key in FIELDS:
        return FIELDS[key](record) or UNALLOCATED
    return record.labels.get(key.removeprefix("label:")) or UNALLOCATED

"""Usage records and price lists for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from bayplan.billing.accounts import Accounts, load_accounts
from bayplan.billing.prices import PriceList, load_prices
from bayplan.metering.record import CapacityRecord, CapacityState, UsageRecord

GPU = "nvidia.com/gpu"
H100 = "NVIDIA-H100-80GB-HBM3"
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


def at(text: str) -> int:
    """Return a time such as "2026-01-31 12:00" in milliseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def used(
    since: str | int,
    until: str | int | None,
    amount: float = 1,
    **fields: Any,
) -> UsageRecord:
    begin = at(since) if isinstance(since, str) else since
    end = at(until) if isinstance(until, str) else until
    given = {
        "tenant": "lab",
        "queue": "lab",
        "pool": "",
        "namespace": "default",
        "job": "default/job",
        "pod": "default/pod",
        "pod_uid": "pod",
        "node": "n1",
        "resource": GPU,
        "model": "",
    }
    return UsageRecord(**(given | fields), amount=round(amount * 1000), since=begin, until=end)


def offered(
    since: str | int, until: str | int | None, amount: float, **fields: Any
) -> CapacityRecord:
    begin = at(since) if isinstance(since, str) else since
    end = at(until) if isinstance(until, str) else until
    given: dict[str, Any] = {
        "pool": "",
        "node": "n1",
        "resource": GPU,
        "model": "",
        "state": CapacityState.IN_SERVICE,
    }
    return CapacityRecord(**(given | fields), amount=round(amount * 1000), since=begin, until=end)


@dataclass
class Records:
    """The records of a test as a source of usage."""

    usage: list[UsageRecord] = field(default_factory=list)
    offers: list[CapacityRecord] = field(default_factory=list)

    def records(self, since: int, until: int, tenant: str | None = None) -> Iterable[UsageRecord]:
        return [
            one
            for one in self.usage
            if one.since < until
            and (one.until is None or one.until > since)
            and tenant in (None, one.tenant)
        ]

    def capacity(self, since: int, until: int) -> Iterable[CapacityRecord]:
        return [
            one
            for one in self.offers
            if one.since < until and (one.until is None or one.until > since)
        ]


def version(start: str = "2026-01-01", **fields: Any) -> dict[str, Any]:
    return {"from": start, "prices": [{"resource": GPU, "perHour": 2}]} | fields


def price_file(folder: Path, *versions: dict[str, Any], **fields: Any) -> Path:
    content = {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "PriceList",
        "currency": "EUR",
        "versions": list(versions) or [version()],
    }
    path = folder / "prices.yaml"
    path.write_text(yaml.safe_dump(content | fields, sort_keys=False))
    return path


def prices(folder: Path, *versions: dict[str, Any], **fields: Any) -> PriceList:
    return load_prices(price_file(folder, *versions, **fields))


def accounts(folder: Path, *entries: dict[str, Any], currency: str = "EUR") -> Accounts:
    content = {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "Accounts",
        "currency": currency,
        "accounts": list(entries),
    }
    path = folder / "accounts.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_accounts(path)

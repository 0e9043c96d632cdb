"""How many hours of each resource somebody used, without prices."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

from bayplan.billing.allocation_query import AllocationQuery, aggregate_key
from bayplan.billing.money import decimal_text
from bayplan.billing.prices import thousandths_of, unit_of
from bayplan.billing.usage_source import UsageSource

__all__ = ["usage_totals"]

_HOUR = 3_600_000


def usage_totals(query: AllocationQuery, source: UsageSource, known: int) -> list[dict[str, Any]]:
    """Return what was used in a window by what the query aggregates by, resource and model.

    Hours are those of devices, of cores or of GiB, as decimals in text.

    :param known: until when usage is known, in milliseconds since 1970.
    """
    since, until = query.window.since, min(query.window.until, known)
    found: dict[tuple[str, str, str], int] = defaultdict(int)
    for record in source.records(since, until, query.tenant):
        end = until if record.until is None else min(record.until, until)
        begin = max(record.since, since)
        if begin < end:
            name = "/".join(aggregate_key(record, key) for key in query.aggregate)
            found[name, record.resource, record.model] += record.amount * (end - begin)
    return [
        {
            "name": name,
            "resource": resource,
            "model": model,
            "unit": f"{unit_of(resource)} h".lstrip(),
            "hours": decimal_text(Fraction(amount, _HOUR * thousandths_of(resource)), 6),
        }
        for (name, resource, model), amount in sorted(found.items())
    ]

"""How many hours of each resource somebody used, without prices."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from bayplan.billing.allocation_query import UNALLOCATED, AllocationQuery, aggregate_key
from bayplan.billing.money import decimal_text
from bayplan.billing.prices import thousandths_of, unit_of
from bayplan.billing.usage_source import UsageSource

if TYPE_CHECKING:
    from bayplan.metering.journal import Journal

__all__ = ["usage_totals"]

_HOUR = 3_600_000
_SUMMED = {"tenant", "queue", "pool", "namespace", "resource", "model"}
_Key = tuple[str, str, str]


def usage_totals(query: AllocationQuery, source: UsageSource, known: int) -> list[dict[str, Any]]:
    """Return what was used in a window by what the query aggregates by, resource and model.

    Hours are those of devices, of cores or of GiB, as decimals in text.

    :param known: until when usage is known, in milliseconds since 1970.
    """
    from bayplan.metering.journal import Journal

    until = min(query.window.until, known)
    if isinstance(source, Journal) and set(query.aggregate) <= _SUMMED:
        found = _of_journal(query, source, until)
    else:
        found = _of_records(query, source, until)
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


def _of_journal(query: AllocationQuery, journal: Journal, until: int) -> dict[_Key, int]:
    """Return what a journal's own sums say, which do not read every record."""
    from bayplan.metering.summary import Summary

    equal = {} if query.tenant is None else {"tenant": query.tenant}
    summary = Summary(journal, query.window.since, until, equal)
    fields = list(dict.fromkeys((*query.aggregate, "resource", "model")))
    found: dict[_Key, int] = defaultdict(int)
    for values, amount in summary.usage(fields).items():
        named = dict(zip(fields, values, strict=True))
        name = "/".join(named[key] or UNALLOCATED for key in query.aggregate)
        found[name, named["resource"], named["model"]] += amount
    return found


def _of_records(query: AllocationQuery, source: UsageSource, until: int) -> dict[_Key, int]:
    since = query.window.since
    found: dict[_Key, int] = defaultdict(int)
    for record in source.records(since, until, query.tenant):
        end = until if record.until is None else min(record.until, until)
        begin = max(record.since, since)
        if begin < end:
            name = "/".join(aggregate_key(record, key) for key in query.aggregate)
            found[name, record.resource, record.model] += record.amount * (end - begin)
    return found

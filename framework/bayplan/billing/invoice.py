"""A tenant's invoice for a month: what it used, at which price, and what it owes.

An amount is exact until the end of its line, where it is rounded once, a half to the even digit;
the sum adds rounded lines. A pod that holds a resource for less than the minimum period pays as if
it had held it for the whole period. Reserved and idle capacity is billed to the pool's owner,
without minimum and without discounts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from bayplan.billing.accounts import Account, Credit
from bayplan.billing.idle import Unused, unused
from bayplan.billing.money import decimal_text, rounded
from bayplan.billing.month import Month
from bayplan.billing.prices import PriceList, thousandths_of, unit_of
from bayplan.billing.spans import Key, Span, crossings_of, rests_of_minimum, spans_of
from bayplan.billing.tariff import Rate, Tariff, Time, discounted, pieces
from bayplan.billing.usage_source import UsageSource
from bayplan.metering.record import CapacityState, UsageRecord

if TYPE_CHECKING:
    from bayplan.metering.journal import Journal

__all__ = ["Invoice", "LineItem", "invoice", "make_invoice"]

_HOUR = 3_600_000
_STATES = {Unused.IDLE: CapacityState.IN_SERVICE, Unused.RESERVED: CapacityState.RESERVED}
"""What unused capacity is a part of."""


class LineItem(msgspec.Struct, frozen=True):
    """What was used of one thing at one price.

    :param what: "used", "idle" or "reserved".
    :param version: the first day of the version of the price list.
    :param exact_hours: unit hours: those of devices, of cores, of GiB.
    :param share: the part of the price that idle or reserved capacity costs; 1 for use.
    :param factor: the discount's factor, 1 without discount.
    """

    what: str
    resource: str
    model: str
    pool: str
    version: date
    band: str
    exact_hours: Fraction
    per_hour: Decimal
    share: Decimal
    factor: Decimal
    amount: Decimal

    @property
    def hours(self) -> str:
        """The hours with at most six decimal places."""
        return decimal_text(self.exact_hours, 6)

    @property
    def unit(self) -> str:
        """What is counted for an hour: "GiB h" or "h"."""
        return f"{unit_of(self.resource)} h".lstrip()


class Invoice(msgspec.Struct, frozen=True):
    """The lines of a month and the balances around it; a negative balance is owed.

    :param as_of: milliseconds since 1970; usage after it is not in the invoice.
    """

    tenant: str
    month: Month
    currency: str
    as_of: int
    lines: tuple[LineItem, ...]
    credits: tuple[Credit, ...] = ()
    opening: Decimal = Decimal(0)

    @property
    def total(self) -> Decimal:
        """The sum of the lines."""
        return sum((line.amount for line in self.lines), rounded(Decimal(0), self.currency))

    @property
    def credited(self) -> Decimal:
        """The sum of the month's credits."""
        none = rounded(Decimal(0), self.currency)
        return sum((credit.amount for credit in self.credits), none)

    @property
    def closing(self) -> Decimal:
        """The balance after the month."""
        return self.opening + self.credited - self.total

    @property
    def final(self) -> bool:
        """Whether the month was over."""
        return self.as_of >= self.month.until


def make_invoice(
    tenant: str,
    month: Month,
    prices: PriceList,
    source: UsageSource,
    as_of: int,
    account: Account | None = None,
) -> Invoice:
    """Return a tenant's invoice, with its balance from the account's opening month on.

    :param as_of: now, in milliseconds since 1970.
    :raises InputError: for usage at a time without prices.
    """
    if account is None:
        return invoice(tenant, month, prices, source, as_of)
    balance, at = account.opening, account.since
    while at < month:
        credited = sum((credit.amount for credit in account.credits_of(at)), Decimal(0))
        balance += credited - invoice(tenant, at, prices, source, as_of).total
        at = at.next
    if month < account.since:
        return invoice(tenant, month, prices, source, as_of)
    found = invoice(tenant, month, prices, source, as_of)
    return Invoice(
        tenant,
        month,
        prices.currency,
        found.as_of,
        found.lines,
        account.credits_of(month),
        rounded(balance, prices.currency),
    )


def invoice(
    tenant: str, month: Month, prices: PriceList, source: UsageSource, as_of: int
) -> Invoice:
    """Return the lines of a tenant's month; see ``make_invoice``.

    :raises InputError: for usage at a time without prices.
    """
    end = min(max(as_of, month.since), month.until)
    lines = _Lines(Tariff(prices, month.since, month.until), prices.currency)
    journal = _summed(prices, source, month, end)
    if journal is not None:
        _add_sums(lines, tenant, month, journal, end)
    else:
        _add_records(lines, tenant, month, source, end)
    owned = {
        pool
        for version in prices.versions
        for pool, price in version.capacity.items()
        if price.owner == tenant
    }
    if owned and journal is not None:
        lines.add_unused_sums(tenant, owned, journal, month.since, end)
    elif owned:
        lines.add_unused(tenant, owned, source, month.since, end)
    return Invoice(tenant, month, prices.currency, end, lines.items())


def _add_sums(lines: _Lines, tenant: str, month: Month, journal: Journal, end: int) -> None:
    prices = lines.tariff.prices
    least = prices.longest_minimum
    early: Iterable[UsageRecord] = ()
    if least:
        early = journal.records_of_short(max(0, month.since - least), end, tenant, least)
    rests = list(rests_of_minimum(early, prices, month, end))
    lines.add_sums(journal, tenant, month.since, end, rests)


def _add_records(lines: _Lines, tenant: str, month: Month, source: UsageSource, end: int) -> None:
    prices = lines.tariff.prices
    least = prices.longest_minimum
    records: Iterable[UsageRecord] = source.records(max(0, month.since - least), end, tenant)
    rests: list[Span] = []
    if least:
        records = kept = list(records)
        rests = list(rests_of_minimum(kept, prices, month, end))
    lines.add_usage(chain(spans_of(records, month.since, end), rests))


def _summed(prices: PriceList, source: UsageSource, month: Month, end: int) -> Journal | None:
    """Return the journal whose sums tell all that is billed; None if records have to be read.

    That is where usage may be from a time without prices.
    """
    # The database takes longer to import than a small simulation.
    from bayplan.metering.journal import Journal

    first, last = prices.versions[0].since, prices.versions[-1].until
    until = month.until if prices.longest_minimum else end
    priced = first <= month.since and (last is None or until <= last)
    return source if isinstance(source, Journal) and priced and month.since < end else None


# Lines --------------------------------------------------------------------------------------

_LineKey = tuple[str, str, str, str, date, str, Decimal, Decimal, Decimal]
"""What a line is about, in the order of its fields, without what it adds up."""


class _Lines(msgspec.Struct):
    """Adds spans up by what they are and what they cost."""

    tariff: Tariff
    currency: str
    _found: dict[_LineKey, Time] = msgspec.field(default_factory=lambda: defaultdict(int))

    def add_usage(self, billed: Iterable[Span]) -> None:
        """Add a tenant's use of a month, all of it at once, as discounts follow its sum."""
        by_resource: dict[str, list[Span]] = defaultdict(list)
        for span in billed:
            by_resource[span.resource].append(span)
        for resource, spans in by_resource.items():
            begin, end = min(one.since for one in spans), max(one.until for one in spans)
            self.tariff.prices.check(begin, end)
            thresholds = self._thresholds(resource)
            crossings = crossings_of(spans, thresholds) if thresholds else {}
            known: dict[tuple[str, str], tuple[Rate, ...]] = {}
            for span in spans:
                key = (span.model, span.pool)
                if key not in known:
                    known[key] = discounted(self.tariff.rates(resource, *key), resource, crossings)
                for rate, length in pieces(known[key], span.since, span.until):
                    self._add("used", span.key, rate, Decimal(1), span.amount * length)

    def add_sums(
        self, journal: Journal, tenant: str, since: int, until: int, rests: Sequence[Span]
    ) -> None:
        """Add a tenant's use of a month, as ``add_usage`` does, from a journal's sums.

        :param rests: what is billed beyond it.
        """
        from bayplan.metering.time_series import Step, TimeSeries

        steps = [Step(one.key, one.since, one.amount) for one in rests]
        steps += [Step(one.key, one.until, -one.amount) for one in rests]
        series = TimeSeries(journal, since, until, {"tenant": tenant}, added=steps)
        last = max((until, *(one.until for one in rests)))
        by_resource: dict[str, list[Key]] = defaultdict(list)
        for key in series.keys:
            by_resource[key[0]].append(key)
        for resource, keys in by_resource.items():
            reached = {one: series.reached(keys, one) for one in self._thresholds(resource)}
            crossings = {one: at for one, at in reached.items() if at is not None}
            for key in keys:
                rates = discounted(self.tariff.rates(*key), resource, crossings)
                for rate in rates:
                    begin, end = max(since, rate.since), min(last, rate.until)
                    used = series.used(key, end) - series.used(key, begin) if begin < end else 0
                    if used:
                        self._add("used", key, rate, Decimal(1), used)

    def _thresholds(self, resource: str) -> set[Fraction]:
        return {
            tier.threshold(resource)
            for version in self.tariff.prices.versions
            for tier in version.discounts.get(resource, ())
        }

    def add_unused(
        self, tenant: str, pools: set[str], source: UsageSource, since: int, until: int
    ) -> None:
        """Add what a tenant pays for unused capacity of its pools."""
        usage, capacity = source.records(since, until), source.capacity(since, until)
        for record in unused(usage, capacity, since, until):
            if record.pool not in pools:
                continue
            span = Span(
                record.resource,
                record.model,
                record.pool,
                record.amount,
                record.since,
                record.until,
            )
            self.tariff.prices.check(span.since, span.until)
            rates = self.tariff.rates(span.resource, span.model, span.pool)
            for rate, length in pieces(rates, span.since, span.until):
                share = _share(tenant, rate, record.pool, record.kind)
                if share:
                    self._add(record.kind.value, span.key, rate, share, span.amount * length)

    def add_unused_sums(
        self, tenant: str, pools: set[str], journal: Journal, since: int, until: int
    ) -> None:
        """Add what a tenant pays for unused capacity, as ``add_unused`` does, from sums.

        In a journal, what is in service on a node is never less than what is used there.
        """
        from bayplan.metering.tables import capacity
        from bayplan.metering.time_series import TimeSeries

        for pool in sorted(pools):
            used = TimeSeries(journal, since, until, {"pool": pool})
            for kind, state in _STATES.items():
                of = {"pool": pool, "state": state.value}
                offered = TimeSeries(journal, since, until, of, capacity)
                for key in offered.keys:
                    for rate in self.tariff.rates(*key):
                        begin, end = max(since, rate.since), min(until, rate.until)
                        share = _share(tenant, rate, pool, kind)
                        if not share or begin >= end:
                            continue
                        rest = offered.used(key, end) - offered.used(key, begin)
                        if kind is Unused.IDLE:
                            rest -= used.used(key, end) - used.used(key, begin)
                        if rest:
                            self._add(kind.value, key, rate, share, rest)

    def _add(self, what: str, key: Key, rate: Rate, share: Decimal, more: Time) -> None:
        resource, model, pool = key
        thing = (what, resource, model, pool)
        price = (rate.version.start, rate.band, rate.per_hour, share, rate.factor)
        self._found[(*thing, *price)] += more

    def items(self) -> tuple[LineItem, ...]:
        """Return the lines, in a lasting order."""
        return tuple(sorted((self._item(*found) for found in self._found.items()), key=_order))

    def _item(self, key: _LineKey, quantity: Time) -> LineItem:
        what, resource, model, pool, start, band, per_hour, share, factor = key
        hours = Fraction(quantity) / (_HOUR * thousandths_of(resource))
        exact = hours * Fraction(per_hour) * Fraction(share) * Fraction(factor)
        return LineItem(
            what,
            resource,
            model,
            pool,
            start,
            band,
            hours,
            per_hour,
            share,
            factor,
            rounded(exact, self.currency),
        )


def _share(tenant: str, rate: Rate, pool: str, kind: Unused) -> Decimal:
    """Return the part of the price that a tenant pays for what is unused of a pool."""
    price = rate.version.capacity.get(pool)
    if price is None or price.owner != tenant:
        return Decimal(0)
    return price.idle if kind is Unused.IDLE else price.reserved


def _order(line: LineItem) -> tuple[object, ...]:
    kind = ("used", "reserved", "idle").index(line.what)
    place = (line.resource, line.model, line.pool, kind)
    return (*place, line.version, line.band, -line.factor, line.per_hour)

"""Price lists: what a unit of a resource costs per hour, from which day on, at which times.

Versions begin at midnight UTC; only the bands of the day and the week follow the list's time zone.
A resource that a version does not name is free in it. Of the prices that fit, the one for the pool
comes first, then the one for the model, then the default. A price and a discount hold for a unit
(a device, a core, a GiB); discounts are marginal: a factor holds for the hours beyond its
threshold, counted per tenant, resource and calendar month (UTC) over all models and pools.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from bayplan.billing.month import day_of
from bayplan.billing.pricelist_file import (
    DAYS,
    QUARTERS_OF_A_DAY,
    BandFields,
    PriceFields,
    PriceListFields,
    VersionFields,
)
from bayplan.errors import InputError
from bayplan.inputs.documents import Document, parse_documents, read_text
from bayplan.inputs.validated import validated

__all__ = [
    "Band",
    "CapacityPrice",
    "Price",
    "PriceList",
    "PriceVersion",
    "Tier",
    "check_rewritten",
    "load_prices",
    "millis",
    "single_document",
    "thousandths_of",
    "unit_of",
]

_HOUR = 3_600_000
_BYTES = ("memory", "ephemeral-storage", "storage")
_WEEK = QUARTERS_OF_A_DAY * 7
_GIB = 2**30


def unit_of(resource: str) -> str:
    """Return the unit that a price holds for: "GiB" of memory and storage, else ""."""
    return "GiB" if resource in _BYTES or resource.startswith("hugepages-") else ""


def thousandths_of(resource: str) -> int:
    """Return how many thousandths, as in records, make up the unit that a price holds for."""
    return 1000 * _GIB if unit_of(resource) else 1000


def millis(day: date) -> int:
    """Return the midnight UTC at which a day begins, in milliseconds since 1970."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


class Band(msgspec.Struct, frozen=True):
    """Times with one price; ``name`` is "" for all times that have no band of their own."""

    name: str
    per_hour: Decimal


class Price(msgspec.Struct, frozen=True):
    """The price of a unit of a resource per hour.

    :param of_quarter: the band of each quarter of an hour of the week, from Monday 0:00 local
        time, as an index into ``bands``; empty when one band holds always.
    """

    resource: str
    model: str
    pool: str
    bands: tuple[Band, ...]
    of_quarter: tuple[int, ...] = ()


class Tier(msgspec.Struct, frozen=True):
    """The factor on the price of what is used beyond a number of hours; see ``load_prices``."""

    above: Decimal
    factor: Decimal

    def threshold(self, resource: str) -> Fraction:
        """Return the hours in thousandths of what a record counts, times milliseconds."""
        return Fraction(self.above) * _HOUR * thousandths_of(resource)


class CapacityPrice(msgspec.Struct, frozen=True):
    """Who pays for a pool's idle and reserved capacity, as shares of the price of its use."""

    pool: str
    owner: str
    idle: Decimal
    reserved: Decimal


class PriceVersion(msgspec.Struct, frozen=True):
    """The prices of a span of time, in milliseconds since 1970; ``until`` None is open.

    :param minimum: the milliseconds that a pod pays for each resource at least.
    :param digest: changes with everything that the version says.
    """

    start: date
    since: int
    until: int | None
    minimum: int
    prices: Mapping[tuple[str, str, str], Price]
    discounts: Mapping[str, tuple[Tier, ...]]
    capacity: Mapping[str, CapacityPrice]
    digest: str

    def price(self, resource: str, model: str, pool: str) -> Price | None:
        """Return the price of a resource's model in a pool, None when the resource is free."""
        for key in ((resource, model, pool), (resource, "", pool), (resource, model, "")):
            if key in self.prices:
                return self.prices[key]
        return self.prices.get((resource, "", ""))


class PriceList(msgspec.Struct, frozen=True):
    """The versions of one list, by their start. ``source`` names it in messages."""

    source: str
    currency: str
    time_zone: str
    versions: tuple[PriceVersion, ...]

    @property
    def zone(self) -> tzinfo:
        """The time zone of the bands."""
        return UTC if self.time_zone == "UTC" else ZoneInfo(self.time_zone)

    @property
    def longest_minimum(self) -> int:
        """The longest minimum period of any version, in milliseconds."""
        return max(version.minimum for version in self.versions)

    def version_at(self, moment: int) -> PriceVersion:
        """Return the version of a time.

        :raises InputError: when no version holds then.
        """
        found = [version for version in self.versions if version.since <= moment]
        if found and (found[-1].until is None or moment < found[-1].until):
            return found[-1]
        when = datetime.fromtimestamp(moment / 1000, UTC).strftime("%Y-%m-%d %H:%M")
        bound = f"begins on {self.versions[0].start}" if not found else "has ended by then"
        raise InputError(f"has no prices for {when} UTC: the list {bound}", self.source)

    def check(self, since: int, until: int) -> None:
        """Check that there are prices for a span of time.

        :raises InputError: when there are none at its begin or at its end.
        """
        self.version_at(since)
        self.version_at(until - 1)


def load_prices(path: Path) -> PriceList:
    """Read a price list.

    :raises InputError: naming file, line and path of what cannot be used.
    """
    document = single_document(path, "a PriceList")
    fields = validated(PriceListFields, document.content, document)
    versions = [
        _version(version, document, ("versions", index))
        for index, version in enumerate(fields.versions)
    ]
    _check_order(versions, document)
    ends = [*(version.since for version in versions[1:]), versions[-1].until]
    return PriceList(
        str(path),
        fields.currency,
        fields.time_zone,
        tuple(
            msgspec.structs.replace(version, until=end)
            for version, end in zip(versions, ends, strict=True)
        ),
    )


def single_document(path: Path, what: str) -> Document:
    """Read a file that holds one document.

    :raises InputError: when it holds none or several, or is not YAML.
    """
    documents = parse_documents(read_text(path), str(path))
    if not documents:
        raise InputError(f"is empty; expected {what}", str(path))
    if len(documents) > 1:
        raise InputError("holds several documents; expected one", documents[1].where())
    return documents[0]


def check_rewritten(old: PriceList, new: PriceList, now: int) -> None:
    """Check that a new list keeps every version that had begun.

    :param now: milliseconds since 1970.
    :raises InputError: naming the first version that was changed or taken out.
    """
    kept = {version.start: version.digest for version in new.versions}
    for version in old.versions:
        if version.since <= now and kept.get(version.start) != version.digest:
            how = "is changed" if version.start in kept else "is missing"
            raise InputError(
                f"the version of {version.start} {how}: prices in force are never rewritten; "
                "add a version that begins later",
                new.source,
            )
    if (old.currency, old.time_zone) != (new.currency, new.time_zone):
        raise InputError("the currency and the time zone of a list never change", new.source)


# Versions -----------------------------------------------------------------------------------

_Path = tuple[str | int, ...]


def _check_order(versions: Sequence[PriceVersion], document: Document) -> None:
    for index, (one, then) in enumerate(itertools.pairwise(versions), start=1):
        where = document.where(("versions", index, "from"))
        if then.since == one.since:
            raise InputError(f"versions.{index}: {then.start} has a version already", where)
        if then.since < one.since:
            raise InputError(f"versions.{index}: expected a later day than {one.start}", where)
        if one.until is not None and then.since != one.until:
            what = "an overlap" if then.since < one.until else "a gap"
            raise InputError(
                f"versions.{index}: {what}: the version before it ends on {day_of(one.until)}",
                where,
            )


def _plain(value: Decimal | date) -> str:
    """Return one text for all ways of writing a number."""
    return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)


def _version(fields: VersionFields, document: Document, at: _Path) -> PriceVersion:
    since = millis(fields.start)
    until = None if fields.until is None else millis(fields.until)
    if until is not None and until <= since:
        raise InputError(
            f"{_dotted(at)}: expected a later day than {fields.start}",
            document.where((*at, "until")),
        )
    prices = _prices(fields.prices, document, (*at, "prices"))
    resources = {resource for resource, _, _ in prices}
    content = json.dumps(fields.model_dump(exclude={"until"}), sort_keys=True, default=_plain)
    return PriceVersion(
        fields.start,
        since,
        until,
        fields.minimum_period,
        prices,
        _discounts(fields, resources, document, (*at, "discounts")),
        _capacity(fields, document, (*at, "capacity")),
        hashlib.sha256(content.encode()).hexdigest()[:12],
    )


def _prices(
    entries: Sequence[PriceFields], document: Document, at: _Path
) -> dict[tuple[str, str, str], Price]:
    found: dict[tuple[str, str, str], Price] = {}
    for index, entry in enumerate(entries):
        key = (entry.resource, entry.model, entry.pool)
        if key in found:
            of = f"{_named(key)} has a price already"
            raise InputError(f"{_dotted((*at, index))}: {of}", document.where((*at, index)))
        found[key] = _price(entry, document, (*at, index))
    for index, entry in enumerate(entries):
        if (entry.resource, "", "") not in found:
            raise InputError(
                f"{_dotted((*at, index))}: a gap: {entry.resource} has no price for other models "
                "and pools; add one without model and pool",
                document.where((*at, index)),
            )
    return found


def _named(key: tuple[str, str, str]) -> str:
    resource, model, pool = key
    return f"{resource}{f' of model {model}' if model else ''}{f' in pool {pool}' if pool else ''}"


def _price(entry: PriceFields, document: Document, at: _Path) -> Price:
    bands = [] if entry.per_hour is None else [Band("", entry.per_hour)]
    if not entry.bands:
        if not bands:
            raise InputError(
                f'{_dotted(at)}: the required field "perHour" is missing', document.where(at)
            )
        return Price(entry.resource, entry.model, entry.pool, tuple(bands))
    quarters = [-1] * _WEEK
    for index, band in enumerate(entry.bands):
        for quarter in _quarters(band):
            if quarters[quarter] >= 0:
                where = document.where((*at, "bands", index))
                other = bands[quarters[quarter]].name
                raise InputError(
                    f'{_dotted((*at, "bands", index))}: an overlap with "{other}": '
                    f"{_clock(quarter)}",
                    where,
                )
            quarters[quarter] = len(bands)
        bands.append(Band(band.name, band.per_hour))
    if entry.per_hour is None and -1 in quarters:
        text = f"a gap: no price for {_clock(quarters.index(-1))}; add perHour for all other times"
        raise InputError(f"{_dotted(at)}: {text}", document.where(at))
    of_quarter = tuple(max(0, quarter) for quarter in quarters)
    return Price(entry.resource, entry.model, entry.pool, tuple(bands), of_quarter)


def _quarters(band: BandFields) -> list[int]:
    """Return the quarters of the week that a band covers; a night belongs to the day it begins."""
    length = (band.end - band.start) % QUARTERS_OF_A_DAY or QUARTERS_OF_A_DAY
    starts = [DAYS.index(day) * QUARTERS_OF_A_DAY + band.start for day in band.days]
    return [(start + offset) % _WEEK for start in starts for offset in range(length)]


def _clock(quarter: int) -> str:
    day, rest = divmod(quarter, QUARTERS_OF_A_DAY)
    return f"{DAYS[day]} {rest // 4:02}:{rest % 4 * 15:02}"


def _discounts(
    fields: VersionFields, resources: set[str], document: Document, at: _Path
) -> dict[str, tuple[Tier, ...]]:
    found: dict[str, tuple[Tier, ...]] = {}
    for index, entry in enumerate(fields.discounts):
        here, where = _dotted((*at, index)), document.where((*at, index))
        if entry.resource in found:
            raise InputError(f"{here}: {entry.resource} has discounts already", where)
        if entry.resource not in resources:
            raise InputError(f"{here}: {entry.resource} has no price in this version", where)
        tiers = tuple(Tier(tier.above, tier.factor) for tier in entry.tiers)
        for one, then in itertools.pairwise(tiers):
            if then.above <= one.above:
                raise InputError(f"{here}: expected tiers with rising hours", where)
        found[entry.resource] = tiers
    return found


def _capacity(fields: VersionFields, document: Document, at: _Path) -> dict[str, CapacityPrice]:
    found: dict[str, CapacityPrice] = {}
    for index, entry in enumerate(fields.capacity):
        if entry.pool in found:
            raise InputError(
                f"{_dotted((*at, index))}: the pool {entry.pool} has an owner already",
                document.where((*at, index)),
            )
        found[entry.pool] = CapacityPrice(entry.pool, entry.owner, entry.idle, entry.reserved)
    return found


def _dotted(path: _Path) -> str:
    return ".".join(map(str, path))

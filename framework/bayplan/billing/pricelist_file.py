"""The price list file as it is written: its fields, and what each may hold."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, get_args
from zoneinfo import ZoneInfo

import pydantic
from pydantic import BeforeValidator, Field
from pydantic.alias_generators import to_camel

from bayplan.billing.money import CURRENCIES
from bayplan.errors import did_you_mean
from bayplan.inputs.durations import parse_duration

__all__ = [
    "DAYS",
    "PRICE_PLACES",
    "BandFields",
    "CapacityFields",
    "CurrencyCode",
    "DiscountFields",
    "Fields",
    "PriceFields",
    "PriceListFields",
    "VersionFields",
    "day",
    "exact",
]

Weekday = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
DAYS: tuple[Weekday, ...] = get_args(Weekday)
QUARTERS_OF_A_DAY = 96
PRICE_PLACES = 12
"""The most decimal places of a price."""
_MOST_PER_HOUR = 1_000_000
_LONGEST_MINIMUM = 86_400.0
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,12})?")
_CLOCK = re.compile(r"([0-2][0-9]):(00|15|30|45)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SURE_DIGITS = 15
"""Every decimal of so many digits survives the way through a float of 64 bits."""


def exact(value: Any) -> Decimal:
    """Return a number of a file as the decimal that was written.

    :raises ValueError: for what is no number, and for a float that may not be what was written.
    """
    if isinstance(value, Decimal):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a number")
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            raise ValueError(f'expected a number such as 2.50, got "{value[:40]}"')
        return Decimal(value)
    number = Decimal(repr(value))
    if not number.is_finite():
        raise ValueError("expected a finite number")
    if isinstance(value, float) and len(number.as_tuple().digits) > _SURE_DIGITS:
        raise ValueError(f"has more than {_SURE_DIGITS} digits: write it in quotes")
    return number


def _price(value: Any) -> Decimal:
    number = exact(value)
    if number < 0:
        raise ValueError("expected a price of 0 or more")
    if number > _MOST_PER_HOUR:
        raise ValueError(f"expected a price of at most {_MOST_PER_HOUR:,} per hour")
    if number != round(number, PRICE_PLACES):
        raise ValueError(f"expected a price with at most {PRICE_PLACES} decimal places")
    return number


def _share(value: Any) -> Decimal:
    number = exact(value)
    if not 0 <= number <= 1:
        raise ValueError("expected a number from 0 to 1")
    return number


def _hours(value: Any) -> Decimal:
    number = exact(value)
    if not 0 < number <= 10**9:
        raise ValueError("expected hours above 0 and at most 1,000,000,000")
    return number


def _currency(value: Any) -> Any:
    if isinstance(value, str) and value not in CURRENCIES:
        near = did_you_mean(value, CURRENCIES)
        raise ValueError(f'"{value[:40]}" is not a currency of ISO 4217{near}')
    return value


def _zone(value: Any) -> Any:
    if isinstance(value, str):
        try:
            ZoneInfo(value)
        except (LookupError, ValueError, OSError):
            raise ValueError(
                f'expected a time zone such as Europe/Berlin, got "{value[:40]}"'
            ) from None
    return value


def day(value: Any) -> date:
    """Return a date that is written as 2026-01-31.

    :raises ValueError: for anything else.
    """
    if isinstance(value, date):
        return value
    try:
        if isinstance(value, str) and _DATE.fullmatch(value) and value >= "1970":
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise ValueError("expected a date such as 2026-01-31")


def _quarter(value: Any) -> int:
    """Return the quarter of the day at which a time of day lies; 24:00 is its end."""
    found = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    quarter = int(found[1]) * 4 + int(found[2]) // 15 if found else QUARTERS_OF_A_DAY + 1
    if quarter > QUARTERS_OF_A_DAY:
        raise ValueError("expected a time of day such as 22:00, at a full quarter of an hour")
    return quarter


def _minimum(value: Any) -> int:
    """Return milliseconds."""
    if not isinstance(value, str):
        raise ValueError('expected a duration such as "10m"')
    seconds = parse_duration(value)
    if seconds > _LONGEST_MINIMUM:
        raise ValueError("expected a period of at most 1 day")
    return round(seconds * 1000)


Price = Annotated[Decimal, BeforeValidator(_price)]
Share = Annotated[Decimal, BeforeValidator(_share)]
Hours = Annotated[Decimal, BeforeValidator(_hours)]
CurrencyCode = Annotated[str, BeforeValidator(_currency)]
_Day = Annotated[date, BeforeValidator(day)]
_Quarter = Annotated[int, BeforeValidator(_quarter)]
_Minimum = Annotated[int, BeforeValidator(_minimum)]
_Name = Annotated[str, Field(min_length=1, max_length=253)]


class Fields(pydantic.BaseModel):
    """The base of what a file holds: no field that nobody knows, no text for a number."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class BandFields(Fields):
    """Times of the week with a price of their own; from 22:00 to 06:00 ends on the next day."""

    name: _Name
    days: tuple[Weekday, ...] = Field(default=DAYS, min_length=1)
    start: _Quarter = Field(default=0, alias="from")
    end: _Quarter = Field(default=QUARTERS_OF_A_DAY, alias="to")
    per_hour: Price

    @pydantic.model_validator(mode="after")
    def _some_time(self) -> BandFields:
        if self.start in (self.end, QUARTERS_OF_A_DAY):
            raise ValueError('expected "from" and "to" to be different times')
        return self


class PriceFields(Fields):
    """The price of a unit of a resource: for all models and pools, or for those that are named."""

    resource: _Name
    model: str = Field(default="", max_length=253)
    pool: str = Field(default="", max_length=253)
    per_hour: Price | None = None
    bands: tuple[BandFields, ...] = ()


class _TierFields(Fields):
    above: Hours
    factor: Share


class DiscountFields(Fields):
    """What the hours of a month cost beyond a number of them."""

    resource: _Name
    tiers: tuple[_TierFields, ...] = Field(min_length=1)


class CapacityFields(Fields):
    """Who pays for what a pool keeps: shares of the price of what is used."""

    pool: _Name
    owner: _Name
    idle: Share = Decimal(0)
    reserved: Share = Decimal(0)


class VersionFields(Fields):
    """The prices from a day on, until the next version or the day named."""

    start: _Day = Field(alias="from")
    until: _Day | None = None
    minimum_period: _Minimum = 0
    prices: tuple[PriceFields, ...] = Field(min_length=1)
    discounts: tuple[DiscountFields, ...] = ()
    capacity: tuple[CapacityFields, ...] = ()


class PriceListFields(Fields):
    """A price list."""

    api_version: Literal["bayplan.dev/v1alpha1"]
    kind: Literal["PriceList"]
    currency: CurrencyCode
    time_zone: Annotated[str, BeforeValidator(_zone)] = "UTC"
    versions: tuple[VersionFields, ...] = Field(min_length=1)

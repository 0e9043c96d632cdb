"""A calendar month, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

import msgspec

__all__ = ["Month", "day_of"]

_TEXT = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")


class Month(msgspec.Struct, frozen=True, order=True):
    """A month from 1970 on."""

    year: int
    number: int

    @classmethod
    def parse(cls, text: str) -> Month:
        """Return the month of a text such as 2026-01.

        :raises ValueError: for anything else.
        """
        found = _TEXT.fullmatch(text)
        if found is None or not 1970 <= int(found[1]) <= 9000:
            raise ValueError(f'expected a month such as 2026-01, got "{text[:40]}"')
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def at(cls, moment: int) -> Month:
        """Return the month of a time in milliseconds since 1970."""
        when = datetime.fromtimestamp(moment // 1000, UTC)
        return cls(when.year, when.month)

    @property
    def since(self) -> int:
        """Its begin, in milliseconds since 1970."""
        return int(datetime(self.year, self.number, 1, tzinfo=UTC).timestamp()) * 1000

    @property
    def until(self) -> int:
        """Its end, in milliseconds since 1970."""
        return self.next.since

    @property
    def next(self) -> Month:
        """The month after it."""
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    def holds(self, day: date) -> bool:
        """Return whether a day lies in it."""
        return (day.year, day.month) == (self.year, self.number)

    def __str__(self) -> str:
        return f"{self.year:04}-{self.number:02}"


def day_of(moment: int) -> date:
    """Return the day (UTC) of a time in milliseconds since 1970."""
    return datetime.fromtimestamp(moment // 1000, UTC).date()

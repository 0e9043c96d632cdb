"""What was used or offered up to any time, from a journal's sums.

Whole hours come from the sums; only hours that are cut are read record by record.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from sqlalchemy import Table

from bayplan.metering.changes import ROLLUPS, Change, Changes
from bayplan.metering.journal import Journal
from bayplan.metering.tables import HOUR, usage

__all__ = ["FIELDS", "Step", "Time", "TimeSeries"]

FIELDS = ("resource", "model", "pool")
"""What a series is identified by."""
Key = tuple[str, str, str]
"""The values of ``FIELDS``."""
Time = int | Fraction
"""Milliseconds since 1970."""


class Step(NamedTuple):
    """From a time on, an amount more of a key is used, or less if it is negative."""

    key: Key
    at: int
    amount: int


class _Steps:
    """The use of one key at whole hours: with n changes before a time, it is a line in time."""

    def __init__(self, since: int, level: int) -> None:
        self._starts: list[int] = []
        self._levels = [level]
        self._bases = [-level * since]

    def add(self, start: int, level: int, moment: int) -> None:
        """Add the changes of an hour, which is later than those before."""
        self._starts.append(start)
        self._levels.append(self._levels[-1] + level)
        self._bases.append(self._bases[-1] + moment - level * (start + HOUR))

    def until(self, at: int) -> tuple[int, int]:
        """Return what is used up to a whole hour, and the level then."""
        index = bisect_left(self._starts, at)
        return self._bases[index] + self._levels[index] * at, self._levels[index]


class TimeSeries:
    """What is used or offered between two times, in amount times milliseconds.

    What is open goes on to the end.

    :param since: the start, a whole hour in milliseconds since 1970.
    :param until: the end of what the journal says.
    :param equal: only what has these values, such as ``{"tenant": "red"}``.
    :param table: ``usage`` or ``capacity``.
    :param added: what is used as well, also beyond the end, but not before the start.
    """

    def __init__(
        self,
        journal: Journal,
        since: int,
        until: int,
        equal: Mapping[str, str],
        table: Table = usage,
        added: Sequence[Step] = (),
    ) -> None:
        assert since % HOUR == 0, "hours are summed up from a whole hour on"
        self._journal = journal
        self._equal = dict(equal)
        self._table = table
        self._since, self._until = since, until
        self._last = max((until, *(one.at for one in added)))
        self._added: dict[int, list[Step]] = defaultdict(list)
        self._steps = self._read(added)
        self._before: dict[tuple[int, str], dict[Key, list[Change]]] = {}

    def _read(self, added: Iterable[Step]) -> dict[Key, _Steps]:
        changes = Changes(self._table, FIELDS, self._equal)
        levels: dict[Key, int] = defaultdict(int)
        by_hour: dict[int, dict[Key, list[int]]] = defaultdict(dict)
        ends: dict[Key, int] = defaultdict(int)
        with self._journal.transaction() as connection:
            for one in changes.changes(connection, 0, self._since, ROLLUPS, dated=False):
                levels[_named(one.key)] += one.level
            for one in changes.changes(connection, self._since, self._until, ROLLUPS[1:]):
                hour = one.start // HOUR * HOUR
                found = by_hour[hour].setdefault(_named(one.key), [0, 0])
                found[0] += one.level
                found[1] += one.until(hour + HOUR)
                ends[_named(one.key)] += one.level
        for key, level in levels.items():
            ends[key] += level
        # What the journal says ends there: only what is added goes on.
        stops = (Step(key, self._until, -level) for key, level in ends.items() if level)
        for step in (*added, *stops):
            hour = step.at // HOUR * HOUR
            self._added[hour].append(step)
            found = by_hour[hour].setdefault(step.key, [0, 0])
            found[0] += step.amount
            found[1] += step.amount * (hour + HOUR - step.at)
        steps = {key: _Steps(self._since, level) for key, level in levels.items() if level}
        for hour in sorted(by_hour):
            for key, (level, moment) in by_hour[hour].items():
                steps.setdefault(key, _Steps(self._since, 0)).add(hour, level, moment)
        return steps

    @property
    def keys(self) -> tuple[Key, ...]:
        """Each (resource, model, pool) of which there may be anything."""
        return tuple(self._steps)

    def used(self, key: Key, until: Time) -> Time:
        """Return what was used of a key from the start up to a time."""
        if key not in self._steps:
            return 0
        hour = until // HOUR * HOUR
        total, level = self._steps[key].until(hour)
        if hour == until:
            return total
        changed = sum(
            one.moment + one.level * (until - one.end) for one in self._changes_until(until, key)
        )
        added = sum(
            one.amount * (until - one.at)
            for one in self._added.get(hour, ())
            if one.key == key and one.at < until
        )
        return total + level * (until - hour) + changed + added

    def _changes_until(self, until: Time, key: Key) -> list[Change]:
        """Return what the journal says of the cut hour before a time."""
        end = min(math.ceil(until), self._until)
        place = end, key[0]
        if place not in self._before:
            found: dict[Key, list[Change]] = defaultdict(list)
            changes = Changes(self._table, FIELDS, {**self._equal, "resource": key[0]})
            with self._journal.transaction() as connection:
                for one in changes.at_once(connection, until // HOUR * HOUR, end):
                    found[_named(one.key)].append(one)
            self._before[place] = found
        return self._before[place].get(key, [])

    def reached(self, keys: Iterable[Key], amount: Fraction) -> Time | None:
        """Return when the use of all keys of a resource reached an amount; None if it did not."""
        own = list(keys)
        if sum(self.used(key, self._last) for key in own) < amount:
            return None

        def total(hour: int) -> Fraction:
            return Fraction(sum(self._steps[key].until(hour)[0] for key in own))

        hours = range(self._since + HOUR, self._last + HOUR, HOUR)
        # The last hour may be cut; that it is reached by then is known.
        hour = hours[min(bisect_left(hours, amount, key=total), len(hours) - 1)] - HOUR
        used, last = total(hour), hour
        level = sum(self._steps[key].until(hour)[1] for key in own)
        changes = sorted(self._changes_of(hour, own))
        for moment, more in [*changes, (self._last, 0)]:
            then = used + level * (moment - last)
            if amount <= then:
                return last + (amount - used) / level
            used, level, last = then, level + more, moment
        raise AssertionError("it is reached before the end")

    def _changes_of(self, hour: int, keys: Sequence[Key]) -> list[tuple[int, int]]:
        """Return (time, amount) of what changes within an hour."""
        found = [(one.at, one.amount) for one in self._added.get(hour, ()) if one.key in keys]
        changes = Changes(self._table, FIELDS, {**self._equal, "resource": keys[0][0]})
        end = min(hour + HOUR, self._until)
        with self._journal.transaction() as connection:
            for one in changes.changes(connection, hour, end, ()):
                if _named(one.key) in keys:
                    found.append((one.start, one.level))
        return found


def _named(values: Sequence[str]) -> Key:
    resource, model, pool = values
    return resource, model, pool

"""What a tenant has used up to any time, from a journal's sums.

Whole hours come from the sums; only hours that are cut are read record by record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

from bayplan.metering.changes import ROLLUPS, Changes
from bayplan.metering.journal import Journal
from bayplan.metering.tables import HOUR, usage

__all__ = ["FIELDS", "Course", "Time"]

FIELDS = ("resource", "model", "pool")
"""What a course is told apart by."""
Key = tuple[str, str, str]
"""The values of ``FIELDS``."""
Time = int | Fraction
"""Milliseconds since 1970."""


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


class Course:
    """What a tenant uses between two times, in amount times milliseconds.

    What is open goes on to the end.

    :param since: the start, a whole hour in milliseconds since 1970.
    :param until: the end.
    """

    def __init__(self, journal: Journal, tenant: str, since: int, until: int) -> None:
        assert since % HOUR == 0, "hours are summed up from a whole hour on"
        self._journal = journal
        self._tenant = tenant
        self._since, self._until = since, until
        self._steps = self._read()
        self._cut: dict[tuple[int, str], dict[Key, list[tuple[int, int]]]] = {}

    def _read(self) -> dict[Key, _Steps]:
        last = self._until + -self._until % HOUR
        changes = Changes(usage, FIELDS, {"tenant": self._tenant})
        with self._journal.transaction() as connection:
            levels: dict[Key, int] = defaultdict(int)
            for one in changes.changes(connection, 0, self._since, ROLLUPS, dated=False):
                levels[_named(one.key)] += one.level
            found = sorted(
                changes.changes(connection, self._since, last, ROLLUPS[1:]),
                key=lambda one: one.start,
            )
        steps = {key: _Steps(self._since, level) for key, level in levels.items() if level}
        for one in found:
            own = steps.setdefault(_named(one.key), _Steps(self._since, 0))
            own.add(one.start, one.level, one.moment)
        return steps

    @property
    def keys(self) -> tuple[Key, ...]:
        """Each (resource, model, pool) of which anything may have been used."""
        return tuple(self._steps)

    def used(self, key: Key, until: Time) -> Time:
        """Return what was used of a key from the start up to a time."""
        hour = until // HOUR * HOUR
        total, level = self._steps[key].until(hour)
        if hour == until:
            return total
        changes = (change for change in self._changes_of(hour, key) if change[0] < until)
        return (
            total
            + level * (until - hour)
            + sum(amount * (until - moment) for moment, amount in changes)
        )

    def reached(self, keys: Iterable[Key], amount: Fraction) -> Time | None:
        """Return when the use of all keys together reached an amount; None if it did not."""
        own = list(keys)
        if sum(self.used(key, self._until) for key in own) < amount:
            return None

        def total(hour: int) -> Fraction:
            return Fraction(sum(self._steps[key].until(hour)[0] for key in own))

        hours = range(self._since + HOUR, self._until + HOUR, HOUR)
        # The last hour may be cut; that it is reached by then is known.
        hour = hours[min(bisect_left(hours, amount, key=total), len(hours) - 1)] - HOUR
        used, last = total(hour), hour
        level = sum(self._steps[key].until(hour)[1] for key in own)
        changes = sorted(change for key in own for change in self._changes_of(hour, key))
        for moment, more in [*changes, (self._until, 0)]:
            then = used + level * (moment - last)
            if amount <= then:
                return last + (amount - used) / level
            used, level, last = then, level + more, moment
        raise AssertionError("it is reached before the end")

    def _changes_of(self, hour: int, key: Key) -> list[tuple[int, int]]:
        """Return (time, amount) of what changes within an hour."""
        place = hour, key[0]
        if place not in self._cut:
            found: dict[Key, list[tuple[int, int]]] = defaultdict(list)
            changes = Changes(usage, FIELDS, {"tenant": self._tenant, "resource": key[0]})
            with self._journal.transaction() as connection:
                for one in changes.changes(connection, hour, hour + HOUR, ()):
                    found[_named(one.key)].append((one.start, one.level))
            self._cut[place] = found
        return self._cut[place].get(key, [])


def _named(values: Sequence[str]) -> Key:
    resource, model, pool = values
    return resource, model, pool

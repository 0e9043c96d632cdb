"""Where bills read what was used: a journal, or the records of a simulation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from bayplan.metering.record import CapacityRecord, UsageRecord

__all__ = ["UsageOfNamespaces", "UsageSource"]


class UsageSource(Protocol):
    """Returns records whole, with their own times; times are milliseconds since 1970."""

    def records(self, since: int, until: int, tenant: str | None = None) -> Iterable[UsageRecord]:
        """Return the usage that overlaps a span of time, of one tenant or of all."""
        ...

    def capacity(self, since: int, until: int) -> Iterable[CapacityRecord]:
        """Return the capacity that overlaps a span of time."""
        ...


class UsageOfNamespaces(msgspec.Struct, frozen=True):
    """The usage of some namespaces, without capacity: what idles says how much others use.

    :param namespaces: None for all.
    """

    source: UsageSource
    namespaces: frozenset[str] | None

    def records(self, since: int, until: int, tenant: str | None = None) -> Iterable[UsageRecord]:
        """Yield their usage."""
        for record in self.source.records(since, until, tenant):
            if self.namespaces is None or record.namespace in self.namespaces:
                yield record

    def capacity(self, since: int, until: int) -> Iterable[CapacityRecord]:
        """Return nothing."""
        return ()

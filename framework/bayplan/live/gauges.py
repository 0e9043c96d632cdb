"""Gauges that are made for one scrape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prometheus_client.core import GaugeMetricFamily

__all__ = ["Gauges"]


class Gauges:
    """Gauges by name, in the order in which they were first added."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily] = {}

    def add(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        of: Sequence[str],
        value: float,
        unlimited: bool = False,
    ) -> None:
        """Add a value; what is unlimited has none.

        :param labels: the names of the labels, :param of: their values.
        :param unlimited: whether what is unlimited is infinite instead.
        """
        if value == math.inf and not unlimited:
            return
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = GaugeMetricFamily(name, text, labels=labels)
        family.add_metric(of, value)

    def families(self) -> list[GaugeMetricFamily]:
        """Return all that has values."""
        return list(self._families.values())

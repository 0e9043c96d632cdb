"""Keeps prices and accounts up to date, and says whether their files are in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.billing.terms import BillingTermsFiles

__all__ = ["BillReload"]

_log = logging.getLogger("bayplan.live")
_EVERY = 10.0
"""Seconds between two looks at the files."""
_CURRENT = "bayplan_bill_files_current"
_TEXT = (
    "1 if bills are computed from the price list and the accounts as their files are now, 0 if "
    "those cannot be used and the last good ones hold."
)


class BillReload(Collector):
    """Reads the files of prices and accounts again when they change, and exports how that went."""

    def __init__(self, files: BillingTermsFiles, registry: CollectorRegistry) -> None:
        self._files = files
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Yield the gauge, without a value."""
        yield GaugeMetricFamily(_CURRENT, _TEXT)

    def collect(self) -> Iterable[Metric]:
        """Yield the gauge."""
        yield GaugeMetricFamily(_CURRENT, _TEXT, value=not self._files.problem)

    def now(self) -> None:
        """Read the files again at once."""
        self._files.refresh(force=True)

    async def run(self) -> None:
        """Look at the files every ten seconds, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                await asyncio.to_thread(self._files.refresh)
            except Exception:
                # Pods are more important than what they cost.
                _log.exception("prices and accounts could not be read")

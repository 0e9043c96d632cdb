"""The metrics of the journal of usage: what is written, how far it lags, and what fails."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.live.usage_writer import UsageWriter

__all__ = ["UsageMetrics"]


class UsageMetrics(Collector):
    """Exports what a writer of usage has done."""

    def __init__(self, writer: UsageWriter, registry: CollectorRegistry) -> None:
        self._writer = writer
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Yield nothing: what is exported depends on who leads."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics; those of a process that does not write have no lag."""
        writer = self._writer
        records = CounterMetricFamily(
            "bayplan_usage_records", "Records of usage and of capacity that were written."
        )
        records.add_metric((), writer.written)
        yield records
        errors = CounterMetricFamily(
            "bayplan_usage_write_errors", "Writes to the journal of usage that failed."
        )
        errors.add_metric((), writer.errors)
        yield errors
        yield GaugeMetricFamily(
            "bayplan_usage_waiting_records",
            "Records of usage that begin or end, and are not written yet.",
            value=writer.waiting,
        )
        if writer.lag is not None:
            yield GaugeMetricFamily(
                "bayplan_usage_lag_seconds",
                "For how long what is used has not been written.",
                value=writer.lag,
            )
        if writer.reconciled_at:
            yield GaugeMetricFamily(
                "bayplan_usage_last_reconcile_timestamp_seconds",
                "When usage was last compared with all objects of the cluster.",
                value=writer.reconciled_at,
            )

"""Prometheus metrics of the node driver."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = ["claim_done", "publish_failed", "published"]

_CALLS = Histogram(
    "bayplan_driver_claim_seconds",
    "Time to prepare or unprepare a claim",
    ["operation", "result"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
)
_DEVICES = Gauge("bayplan_driver_devices", "Devices that the node offers")
_UNHEALTHY = Gauge("bayplan_driver_sick_devices", "Devices with a taint because they are unhealthy")
_WRITES = Counter("bayplan_driver_slice_writes", "ResourceSlices that were written")
_FAILURES = Counter("bayplan_driver_publish_failures", "Failed attempts to publish")


def claim_done(operation: str, error: str, seconds: float) -> None:
    """Count a claim that was prepared or unprepared; ``error`` is "" for success."""
    _CALLS.labels(operation, "error" if error else "ok").observe(seconds)


def published(devices: int, unhealthy: int, written: int) -> None:
    """Record a successful publish: devices, those with a taint, and slices written."""
    _DEVICES.set(devices)
    _UNHEALTHY.set(unhealthy)
    _WRITES.inc(written)


def publish_failed() -> None:
    """Count a failed attempt to publish."""
    _FAILURES.inc()

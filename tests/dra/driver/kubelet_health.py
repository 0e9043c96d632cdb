"""What the kubelet knows of devices' health (Kubernetes' pkg/kubelet/cm/dra/healthinfo.go)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bayplan_dra.driver.proto import health_pb2 as health

_TIMEOUT_SECONDS = 30
_WORDS = {health.HEALTHY: "Healthy", health.UNHEALTHY: "Unhealthy"}


class HealthCache:
    """The last report on each device, by pool and name. Safe for concurrent calls.

    :param now: returns the kubelet's time in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._reports: dict[tuple[str, str], tuple[health.DeviceHealth, float]] = {}

    def report(self, report: health.NodeWatchResourcesResponse) -> None:
        """Keep a report; devices that it leaves out stay until they time out."""
        with self._lock:
            for one in report.devices:
                self._reports[one.device.pool_name, one.device.device_name] = one, self._now()

    def clear(self) -> None:
        """Forget everything: the stream has ended."""
        with self._lock:
            self._reports.clear()

    def of(self, pool: str, device: str) -> str:
        """Return the health of a device; Unknown without a report, or after its timeout."""
        with self._lock:
            one, at = self._reports.get((pool, device), (health.DeviceHealth(), 0.0))
        timeout = max(one.health_check_timeout_seconds, 0) or _TIMEOUT_SECONDS
        return "Unknown" if self._now() - at > timeout else _WORDS.get(one.health, "Unknown")

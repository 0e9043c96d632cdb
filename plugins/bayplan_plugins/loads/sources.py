"""Who besides the API server knows what nodes use, as arguments of plugins."""

from __future__ import annotations

from typing import Literal

import pydantic

from bayplan import Args
from bayplan.plugin.base import LoadSource

__all__ = ["LoadSourceArgs"]

_DEFAULT_PROMETHEUS = "http://prometheus-k8s:9090"


class MetricProviderArgs(Args):
    """Where usage is asked for: metrics-server, which is asked in any case, or Prometheus.

    Trimaran does not check Prometheus' certificate by default. Here that holds only without a
    token: whoever stands in between would get it.

    Of SignalFx load-watcher knows: run it as a service, and name it as ``watcherAddress``.
    """

    type: Literal["", "KubernetesMetricsServer", "Prometheus"] = ""
    address: str = ""
    token: str = pydantic.Field(default="", repr=False)
    insecure_skip_verify: bool | None = None


class LoadSourceArgs(Args):
    """What plugins take that score by usage; names and defaults as of Trimaran's."""

    metric_provider: MetricProviderArgs = MetricProviderArgs()
    watcher_address: str = ""

    @pydantic.field_validator("watcher_address")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return _address(value)

    @pydantic.field_validator("metric_provider")
    @classmethod
    def _has_address(cls, value: MetricProviderArgs) -> MetricProviderArgs:
        _address(value.address)
        return value

    @property
    def load_source(self) -> LoadSource | None:
        """The one that is named; load-watcher goes before Prometheus."""
        given = self.metric_provider
        if self.watcher_address:
            return LoadSource("load-watcher", self.watcher_address)
        if given.type == "Prometheus":
            url = given.address or _DEFAULT_PROMETHEUS
            skips = given.insecure_skip_verify
            verifies = bool(given.token) if skips is None else not skips
            return LoadSource("Prometheus", url, given.token, verifies)
        return None


def _address(value: str) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise ValueError(f'expected http://HOST:PORT, got "{value[:60]}"')
    return value

"""What the API server says it has spent: CPU seconds and requests, from its /metrics."""

from __future__ import annotations

from collections import Counter

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import ClusterError

__all__ = ["ServerUsage", "server_usage"]

_CPU = "process_cpu_seconds_total"
_REQUESTS = "apiserver_request_total"
_READS = ("GET", "LIST", "WATCH")
_SCHEDULERS = ("", "kube-scheduler")


class ServerUsage(msgspec.Struct, frozen=True):
    """The CPU seconds of an API server, and its writes by "VERB resource", since it started.

    Writes of other system components are left out where the server tells them apart.
    """

    cpu: float
    writes: Counter[str]


async def server_usage(transport: Transport) -> ServerUsage:
    """Return what the server has spent.

    :raises ClusterError: when it may not be read, or does not say it.
    """
    content = (await transport.request("GET", "/metrics")).decode(errors="replace")
    # The whole text has tens of thousands of lines.
    lines = [line for line in content.splitlines() if line.startswith((_CPU, f"{_REQUESTS}{{"))]
    cpu, writes = None, Counter[str]()
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.name == _CPU:
                cpu = sample.value
            elif sample.labels.get("system_client", "") in _SCHEDULERS:
                _count(writes, sample.labels, sample.value)
    if cpu is None:
        raise ClusterError(f"the server's metrics have no {_CPU}")
    return ServerUsage(cpu, writes)


def _count(writes: Counter[str], labels: dict[str, str], value: float) -> None:
    if labels["verb"] in _READS:
        return
    parts = filter(None, (labels["resource"], labels["subresource"]))
    # Requests come in whole numbers.
    writes[f"{labels['verb']} {'/'.join(parts)}"] += int(value)

"""What an autoscaler says of pods that wait: its events, and the status that it writes.

cluster-autoscaler and Karpenter write events on the pods, or on their stand-ins; the status of all
node groups is in a ConfigMap of cluster-autoscaler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bayplan.api.times import seconds_of
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.dialects.autoscaling import STAND_IN_NAMESPACE, STAND_IN_PODS
from bayplan.errors import ClusterError, InputError
from bayplan.inputs.documents import parse_documents
from bayplan.inputs.durations import duration_text

__all__ = ["read_autoscaler"]

_COMPONENTS = ("cluster-autoscaler", "karpenter")
_STATUS = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
_SECONDS = 10.0
_MOST = 5
_LONGEST = 300


async def read_autoscaler(
    kubeconfig: Path | None, context: str, pod: str, now: float
) -> Sequence[str]:
    """Return what an autoscaler says of a pod, one line each; none without an autoscaler.

    What the credentials do not allow is left out.

    :param pod: ``namespace/name``.
    :param now: seconds since 1970.
    :raises InputError: when the credentials cannot be used.
    """
    credentials = Credentials(kubeconfig, context)
    await credentials.endpoint()
    transport = Transport(credentials)
    try:
        names = [pod, *await _stand_ins_of(transport, pod)]
        events = [one for name in names for one in await _events_of(transport, name)]
        groups = await _groups(transport) if events else []
        return [*_event_lines(events, now), *groups]
    finally:
        await transport.close()


async def _read(transport: Transport, path: str, **query: str) -> Any:
    """Return what is at a path, an empty object if it cannot be read."""
    try:
        found = await transport.request("GET", path, query=query, seconds=_SECONDS)
        return json.loads(found)
    except (ClusterError, ValueError):
        return {}


async def _stand_ins_of(transport: Transport, pod: str) -> list[str]:
    listed = await _read(transport, f"/api/v1/namespaces/{STAND_IN_NAMESPACE}/pods")
    return [
        f"{STAND_IN_NAMESPACE}/{one['metadata']['name']}"
        for one in listed.get("items") or ()
        if pod in one["metadata"].get("annotations", {}).get(STAND_IN_PODS, "").split()
    ]


async def _events_of(transport: Transport, pod: str) -> list[dict[str, Any]]:
    namespace, _, name = pod.partition("/")
    selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
    path = f"/api/v1/namespaces/{namespace}/events"
    listed = await _read(transport, path, fieldSelector=selector)
    return [one for one in listed.get("items") or () if _component(one) in _COMPONENTS]


def _component(event: dict[str, Any]) -> str:
    source = event.get("source") or {}
    return str(event.get("reportingComponent") or source.get("component") or "")


def _event_lines(events: Iterable[dict[str, Any]], now: float) -> Iterator[str]:
    """Yield the latest events, each text once."""
    texts: dict[str, str] = {}
    for one in events:
        at = one.get("lastTimestamp") or one.get("eventTime") or ""
        text = f"{_component(one)}: {str(one.get('message') or '')[:_LONGEST]}"
        texts[text] = max(at, texts.get(text, ""))
    latest = sorted(texts.items(), key=lambda pair: pair[1], reverse=True)
    for text, at in latest[:_MOST]:
        ago = f", {duration_text(max(0.0, now - seconds_of(at)))} ago" if at else ""
        yield f"{text}{ago}"


async def _groups(transport: Transport) -> list[str]:
    """Return the node groups that cannot grow, as cluster-autoscaler states them."""
    found = await _read(transport, _STATUS)
    text = (found.get("data") or {}).get("status", "")
    try:
        documents = parse_documents(text, "the status of cluster-autoscaler")
    except InputError:
        return []
    content = documents[0].content if documents else {}
    groups = content.get("nodeGroups") if isinstance(content, dict) else None
    lines = [_group_line(one) for one in groups or () if isinstance(one, dict)]
    return [line for line in lines if line]


def _group_line(group: dict[str, Any]) -> str:
    health, name = group.get("health") or {}, group.get("name")
    target, most = health.get("cloudProviderTarget"), health.get("maxSize")
    scale_up = group.get("scaleUp") or {}
    backoff = (scale_up.get("backoffInfo") or {}).get("errorMessage")
    if scale_up.get("status") == "Backoff" or backoff:
        return f"node group {name} is tried again later: {str(backoff or '')[:_LONGEST]}"
    if isinstance(target, int) and isinstance(most, int) and target >= most:
        return f"node group {name} is at its maximum of {most}"
    return ""

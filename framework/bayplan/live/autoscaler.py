"""What an autoscaler says of pods that wait: its events, and the status that it writes.

cluster-autoscaler and Karpenter write events on the pods, or on their stand-ins; the status of all
node groups is in a ConfigMap of cluster-autoscaler.
"""

from __future__ import annotations

import json
import re
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
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z$")


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


async def _read(transport: Transport, path: str, **query: str) -> dict[str, Any]:
    """Return what is at a path, an empty object if it cannot be read."""
    try:
        found = await transport.request("GET", path, query=query, seconds=_SECONDS)
        return _mapping(json.loads(found))
    except (ClusterError, ValueError, RecursionError):
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(listed: dict[str, Any]) -> list[dict[str, Any]]:
    items = listed.get("items")
    return [_mapping(one) for one in items] if isinstance(items, list) else []


def _plain(value: Any) -> str:
    """Return a text in one line that a terminal can show; "" for anything else."""
    text = value[:_LONGEST] if isinstance(value, str) else ""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


async def _stand_ins_of(transport: Transport, pod: str) -> list[str]:
    listed = await _read(transport, f"/api/v1/namespaces/{STAND_IN_NAMESPACE}/pods")
    found = []
    for meta in (_mapping(one.get("metadata")) for one in _items(listed)):
        said = _mapping(meta.get("annotations")).get(STAND_IN_PODS)
        if isinstance(said, str) and pod in said.split() and isinstance(meta.get("name"), str):
            found.append(f"{STAND_IN_NAMESPACE}/{meta['name']}")
    return found


async def _events_of(transport: Transport, pod: str) -> list[dict[str, Any]]:
    namespace, _, name = pod.partition("/")
    selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
    path = f"/api/v1/namespaces/{namespace}/events"
    listed = await _read(transport, path, fieldSelector=selector)
    return [one for one in _items(listed) if _component(one) in _COMPONENTS]


def _component(event: dict[str, Any]) -> str:
    source = _mapping(event.get("source"))
    return _plain(event.get("reportingComponent")) or _plain(source.get("component"))


def _event_lines(events: Iterable[dict[str, Any]], now: float) -> Iterator[str]:
    """Yield the latest events, each text once."""
    texts: dict[str, str] = {}
    for one in events:
        at = _plain(one.get("lastTimestamp")) or _plain(one.get("eventTime"))
        text = f"{_component(one)}: {_plain(one.get('message'))}"
        texts[text] = max(at, texts.get(text, ""))
    latest = sorted(texts.items(), key=lambda pair: pair[1], reverse=True)
    for text, at in latest[:_MOST]:
        seconds = seconds_of(at) if _STAMP.match(at) else 0.0
        ago = f", {duration_text(max(0.0, now - seconds))} ago" if seconds else ""
        yield f"{text}{ago}"


async def _groups(transport: Transport) -> list[str]:
    """Return the node groups that cannot grow, as cluster-autoscaler states them."""
    found = await _read(transport, _STATUS)
    text = _mapping(found.get("data")).get("status")
    try:
        documents = parse_documents(text, "its status") if isinstance(text, str) else []
    except InputError:
        return []
    groups = _mapping(documents[0].content).get("nodeGroups") if documents else None
    lines = [_group_line(_mapping(one)) for one in groups] if isinstance(groups, list) else []
    return [line for line in lines if line]


def _group_line(group: dict[str, Any]) -> str:
    health, name = _mapping(group.get("health")), _plain(group.get("name"))
    target, most = health.get("cloudProviderTarget"), health.get("maxSize")
    scale_up = _mapping(group.get("scaleUp"))
    backoff = _plain(_mapping(scale_up.get("backoffInfo")).get("errorMessage"))
    if scale_up.get("status") == "Backoff" or backoff:
        return f"node group {name} is tried again later{': ' if backoff else ''}{backoff}"
    if isinstance(target, int) and isinstance(most, int) and target >= most:
        return f"node group {name} is at its maximum of {most}"
    return ""

"""The Deployment of a Knative Service: serving.knative.dev/v1.

Its number of replicas is up to Knative's autoscaler; without traffic it is the least that the
Service allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.dialects.reading import is_index

__all__ = ["deployments_of"]

_GROUP = "serving.knative.dev"
_LEAST = ("autoscaling.knative.dev/min-scale", "autoscaling.knative.dev/initial-scale")
_OF_REVISIONS = frozenset(
    (
        "containerConcurrency",
        "idleTimeoutSeconds",
        "responseStartTimeoutSeconds",
        "timeoutSeconds",
    )
)
"""Fields of a revision that are none of a pod."""


def deployments_of(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the Deployment of the revision of a Service, as JSON.

    :raises ValueError: for a number of replicas that is none.
    """
    name = content["metadata"]["name"]
    template = (content.get("spec") or {}).get("template") or {}
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    annotations = meta.get("annotations") or {}
    text = next((annotations[key] for key in _LEAST if key in annotations), "1")
    if not is_index(text):
        raise ValueError(f'{_LEAST[0]}: expected a number of replicas, got "{text[:40]}"')
    revision = meta.get("name") or f"{name}-00001"
    labels = {f"{_GROUP}/service": name, f"{_GROUP}/revision": revision}
    pod = {
        "metadata": {
            "labels": {**(meta.get("labels") or {}), **labels},
            "annotations": dict(annotations),
        },
        "spec": {key: value for key, value in spec.items() if key not in _OF_REVISIONS},
    }
    for container in pod["spec"].get("containers") or ():
        if isinstance(container, Mapping) and "name" not in container:
            first = {"name": "user-container", **container}
            others = pod["spec"]["containers"]
            pod["spec"]["containers"] = [first if one is container else one for one in others]
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{revision}-deployment", "labels": labels},
        "spec": {
            # Knative keeps at least one until it has seen no traffic.
            "replicas": max(1, int(text)),
            "selector": {"matchLabels": {f"{_GROUP}/revision": revision}},
            "template": pod,
        },
    }

"""Pods, profiles and what becomes of the pods, for the embedded cluster and a real API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.api import ApiObject, Pod
from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of
from bayplan.dialects.koordinator.colocation import BY_PROFILE, SPEC_ANNOTATION

__all__ = ["CASES", "CLASSES", "Case"]

Content = dict[str, Any]
CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


def _class(name: str, value: int) -> Content:
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**head, "metadata": {"name": name}, "value": value}


CLASSES = [_class("koord-batch", 5000), _class("koord-mid", 7000), _class("koord-prod", 9000)]


def profile(name: str, said: Content | None = None, **spec: Any) -> Content:
    return {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": name, "annotations": said or {}},
        "spec": spec,
    }


def _pod(requests: Content, limits: Content | None = None, **metadata: Any) -> Content:
    resources = {"requests": requests, "limits": limits or {}}
    container = {"name": "main", "image": "x", "resources": resources}
    meta = {"name": "p", "namespace": "space", **metadata}
    spec = {"containers": [container], "schedulerName": "other"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@dataclass(frozen=True)
class Case:
    """Profiles, a pod, and by field what it is in the end; what is not named does not count."""

    name: str
    profiles: list[Content]
    pod: Content
    expected: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def namespace(self) -> Content:
        """The pod's namespace."""
        meta = {"name": "space", "labels": dict(self.labels)}
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}

    def seen(self, pod: ApiObject) -> dict[str, Any]:
        """Return of a pod what the case expects something of."""
        assert isinstance(pod, Pod)
        meta, spec = pod.metadata, pod.spec
        resources = spec.containers[0].resources
        stated = meta.annotations.get(SPEC_ANNOTATION)
        own = {
            "labels": meta.labels,
            "annotations": {k: v for k, v in meta.annotations.items() if k != SPEC_ANNOTATION},
            "scheduler": spec.scheduler_name,
            "class": spec.priority_class_name,
            "priority": spec.priority,
            "requests": _amounts(resources.requests),
            "limits": _amounts(resources.limits),
            "nodeSelector": spec.node_selector,
            "tolerations": [one.key for one in spec.tolerations if "node.kub" not in one.key],
            "stated": _stated(stated) if stated is not None else None,
        }
        return {name: own[name] for name in self.expected}


def _amounts(given: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: amount_of(name, one if isinstance(one, Quantity) else Quantity(one))
        for name, one in given.items()
    }


def _stated(text: str) -> Content:
    return {
        name: {part: _amounts(amounts) for part, amounts in parts.items()}
        for name, parts in json.loads(text)["containers"].items()
    }


_GIB = 2**30
_BATCH = profile("batch", qosClass="BE", priorityClassName="koord-batch", schedulerName="koord")
CASES = [
    Case(
        "batch",
        [_BATCH],
        _pod({"cpu": "1500m", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}),
        {
            "labels": {"koordinator.sh/qosClass": "BE"},
            "scheduler": "koord",
            "class": "koord-batch",
            "priority": 5000,
            "requests": {CPU: 1500, MEMORY: _GIB},
            "limits": {CPU: 2000, MEMORY: _GIB},
            "stated": {
                "main": {
                    "requests": {CPU: 1500, MEMORY: _GIB},
                    "limits": {CPU: 2000, MEMORY: _GIB},
                }
            },
        },
    ),
    Case(
        "mid by name, of quality BE",
        [profile("mid", qosClass="BE", priorityClassName="koord-mid")],
        _pod({"cpu": "1"}),
        {"priority": 7000, "requests": {"kubernetes.io/mid-cpu": 1000}, "stated": None},
    ),
    Case(
        "production keeps its resources",
        [profile("prod", qosClass="LS", priorityClassName="koord-prod", koordinatorPriority=9)],
        _pod({"cpu": "1"}),
        {
            "labels": {"koordinator.sh/qosClass": "LS", "koordinator.sh/priority": "9"},
            "priority": 9000,
            "requests": {"cpu": 1000},
        },
    ),
    Case(
        "resources may stay as they are",
        [
            _BATCH,
            profile("keeps", {"config.koordinator.sh/skip-update-resources": "true"}),
        ],
        _pod({"cpu": "1"}),
        {"priority": 5000, "requests": {"cpu": 1000}, "annotations": {}},
    ),
    Case(
        "labels and annotations, in the order of names",
        [
            profile(
                "b",
                labels={"team": "second"},
                labelKeysMapping={"team": "copy"},
                labelSuffixes={"copy": "-x", "no": "-y"},
                annotationKeysMapping={"note": "noted"},
            ),
            profile("a", labels={"team": "first"}, annotations={"note": "n"}),
        ],
        _pod({"cpu": "1"}),
        {
            "labels": {"team": "second", "copy": "second-x"},
            "annotations": {"note": "n", "noted": "n", BY_PROFILE: "a,b"},
            "scheduler": "other",
        },
    ),
    Case(
        "selectors",
        [
            profile("a", selector={"matchLabels": {"app": "web"}}, labels={"a": "yes"}),
            profile("b", selector={"matchLabels": {"app": "db"}}, labels={"b": "yes"}),
            profile(
                "c",
                namespaceSelector={
                    "matchExpressions": [
                        {"key": "tier", "operator": "In", "values": ["low", "mid"]},
                        {"key": "off", "operator": "DoesNotExist"},
                        {"key": "kubernetes.io/metadata.name", "operator": "Exists"},
                    ]
                },
                labels={"c": "yes"},
            ),
            profile(
                "d",
                namespaceSelector={
                    "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["low"]}]
                },
                labels={"d": "yes"},
            ),
            profile("e", probability="0%", labels={"e": "yes"}),
            # Who is chosen does not depend on what another profile changes.
            profile("f", selector={"matchLabels": {"a": "yes"}}, labels={"f": "yes"}),
        ],
        _pod({"cpu": "1"}, labels={"app": "web"}),
        {"labels": {"app": "web", "a": "yes", "c": "yes"}},
        {"tier": "low"},
    ),
    Case(
        "patches",
        [
            profile(
                "p",
                patch={
                    "metadata": {"labels": {"gone": None, "new": "1"}, "annotations": {"x/y": "z"}},
                    "spec": {
                        "nodeSelector": {"pool": "batch"},
                        "tolerations": [{"key": "batch", "operator": "Exists"}],
                    },
                },
            )
        ],
        _pod({"cpu": "1"}, labels={"gone": "1"}),
        {
            "labels": {"new": "1"},
            "annotations": {"x/y": "z", BY_PROFILE: "p"},
            "nodeSelector": {"pool": "batch"},
            "tolerations": ["batch"],
        },
    ),
    Case(
        "quality alone",
        [profile("q", qosClass="BE")],
        _pod({}, {"cpu": "500m"}),
        {"priority": 0, "requests": {CPU: 500}, "limits": {CPU: 500}},
    ),
]

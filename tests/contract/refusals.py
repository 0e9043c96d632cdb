"""What the rows of refusals.yaml are about: what is sent, and what is there."""

from __future__ import annotations

import copy
import re
import time
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.apiserver.faces import Client

Content = dict[str, Any]

NS = "bayplan-refusals"
CORE = f"/api/v1/namespaces/{NS}"
NEW_EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NS}/events"
WIDGETS = f"/apis/example.com/v1/namespaces/{NS}/widgets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

# What is sent ------------------------------------------------------------------------------------

_DRA, _GANGS, _STORAGE = "resource.k8s.io/v1", "scheduling.k8s.io/v1alpha2", "storage.k8s.io/v1"
GROUPS = {
    "daemonsets": "apps/v1",
    "deployments": "apps/v1",
    "replicasets": "apps/v1",
    "statefulsets": "apps/v1",
    "jobs": "batch/v1",
    "leases": "coordination.k8s.io/v1",
    "widgets": "example.com/v1",
    "poddisruptionbudgets": "policy/v1",
    "priorityclasses": "scheduling.k8s.io/v1",
    "podgroups": _GANGS,
    "workloads": _GANGS,
    "deviceclasses": _DRA,
    "resourceclaims": _DRA,
    "resourceclaimtemplates": _DRA,
    "resourceslices": _DRA,
    "csidrivers": _STORAGE,
    "csinodes": _STORAGE,
    "storageclasses": _STORAGE,
}
CLUSTER_SCOPED = (
    "csidrivers",
    "csinodes",
    "deviceclasses",
    "namespaces",
    "nodes",
    "persistentvolumes",
    "priorityclasses",
    "resourceslices",
    "storageclasses",
)
_CONTAINERS = [{"name": "c", "image": "x"}]
_TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": _CONTAINERS}}
_WORKLOAD = {"selector": {"matchLabels": {"app": "a"}}, "template": _TEMPLATE}
_REQUEST = {"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}
_DEVICES = {"devices": {"requests": [_REQUEST]}}
_GANG = {"schedulingPolicy": {"gang": {"minCount": 2}}}
_ABOUT = {"kind": "Pod", "namespace": NS, "name": "a"}
BODIES: dict[str, Content] = {
    "pods": {"spec": {"containers": _CONTAINERS}},
    "services": {"spec": {"ports": [{"port": 80}]}},
    "configmaps": {"data": {"a": "b"}},
    "secrets": {"data": {"a": "Yg=="}},
    "persistentvolumeclaims": {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
    },
    "events": {
        "involvedObject": _ABOUT,
        "reason": "R",
        "message": "m",
        "type": "Normal",
        "source": {"component": "c"},
    },
    "new events": {
        "regarding": _ABOUT,
        "reason": "R",
        "action": "A",
        "note": "n",
        "type": "Normal",
        "reportingController": "example.com/c",
        "reportingInstance": "i",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    },
    "deployments": {"spec": _WORKLOAD},
    "replicasets": {"spec": _WORKLOAD},
    "statefulsets": {"spec": _WORKLOAD},
    "daemonsets": {"spec": _WORKLOAD},
    "jobs": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": _CONTAINERS}}}},
    "poddisruptionbudgets": {
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    },
    "leases": {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}},
    "resourceclaims": {"spec": _DEVICES},
    "resourceclaimtemplates": {"spec": {"spec": _DEVICES}},
    "podgroups": {"spec": _GANG},
    "workloads": {"spec": {"podGroupTemplates": [{"name": "a", **_GANG}]}},
    "namespaces": {},
    "nodes": {},
    "persistentvolumes": {
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/tmp"},  # noqa: S108 - a path on no machine
        }
    },
    "priorityclasses": {"value": 10},
    "deviceclasses": {"spec": {"selectors": [{"cel": {"expression": "true"}}]}},
    "resourceslices": {
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "d"}],
        }
    },
    "storageclasses": {"provisioner": "x.example.com"},
    "csinodes": {"spec": {"drivers": []}},
    "csidrivers": {"spec": {}},
}


def path_of(plural: str) -> str:
    """Return the path of a kind's objects."""
    if plural == "new events":
        return NEW_EVENTS
    group = GROUPS.get(plural)
    start = f"/apis/{group}" if group is not None else "/api/v1"
    return f"{start}/{plural}" if plural in CLUSTER_SCOPED else f"{start}/namespaces/{NS}/{plural}"


ABSENT = object()
"""Stands for a field that is left out."""
_REPEATED = re.compile(r"<(.)\*(\d+)>")


def table() -> dict[str, Any]:
    """Return the rows."""
    text = Path(__file__).with_suffix(".yaml").read_text()
    rows: dict[str, Any] = _read(yaml.load(text, yaml.CSafeLoader))
    return rows


def _read(value: Any) -> Any:
    """Return a part of the table with what its texts stand for."""
    if isinstance(value, dict):
        return {_read(key): _read(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_read(item) for item in value]
    if value == "<absent>":
        return ABSENT
    if isinstance(value, str):
        return _REPEATED.sub(lambda match: match[1] * int(match[2]), value)
    return value


def made(plural: str, **changes: Any) -> Content:
    """Return an object that is valid but for its changes.

    :param changes: other fields; ``name``, ``meta`` and ``spec`` change parts of what is there.
    """
    if plural == "widgets":
        spec = changes["spec"]
        identity = {"apiVersion": "example.com/v1", "kind": "Widget"}
        return {**identity, "metadata": {"name": "a"}, "spec": spec}
    body = copy.deepcopy(BODIES[plural])
    name = changes.pop("name", "a")
    body["metadata"] = {**({} if name is None else {"name": name}), **changes.pop("meta", {})}
    if "spec" in changes:
        body["spec"] = _with(body.get("spec", {}), changes.pop("spec"))
    return _with(body, changes)


def _with(content: Content, changes: Content) -> Content:
    return {key: value for key, value in {**content, **changes}.items() if value is not ABSENT}


# What is there -----------------------------------------------------------------------------------

_PROPERTIES: Content = {
    "size": {"type": "integer", "minimum": 1, "maximum": 10},
    "even": {"type": "integer", "multipleOf": 2},
    "color": {"type": "string", "enum": ["red", "blue"]},
    "code": {"type": "string", "pattern": "^[a-z]*$", "minLength": 1, "maxLength": 5},
    "list": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "string"}},
    "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    "map": {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
    },
    "when": {"type": "string", "format": "date-time"},
    "either": {"x-kubernetes-int-or-string": True},
    "maybe": {"type": "string", "nullable": True},
    "values": {
        "type": "object",
        "maxProperties": 3,
        "additionalProperties": {"type": "integer"},
    },
    "one": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "deep": {
        "type": "object",
        "properties": {"er": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    },
    "small": {"type": "integer", "format": "int32"},
    "fixed": {"type": "string"},
}
_SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": _PROPERTIES},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    },
}
_WIDGET = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": _SCHEMA},
            }
        ],
    },
}
_OF_NOBODY = {"schedulerName": "nobody"}
_PODS: dict[str, Content] = {
    "kept": {},
    "gated": {"schedulingGates": [{"name": "g"}], "nodeSelector": {"k": "v"}},
    "tolerant": {
        "tolerations": [
            {"key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
        ]
    },
    "dead": {"activeDeadlineSeconds": 20},
    "bound": {"nodeName": "bayplan-n"},
    "going": {},
}
_KEPT: dict[str, Content] = {
    "configmaps": {},
    "secrets": {},
    "leases": {},
    "poddisruptionbudgets": {},
    "resourceclaimtemplates": {},
    "resourceclaims": {},
    "podgroups": {},
    "workloads": {},
    "persistentvolumeclaims": {},
    "deployments": {"spec": {"replicas": 0}},
    "replicasets": {"spec": {"replicas": 0}},
    "statefulsets": {"spec": {"replicas": 0}},
    "daemonsets": {
        "spec": {
            "template": {
                **_TEMPLATE,
                "spec": {"containers": _CONTAINERS, "nodeSelector": {"no": "where"}},
            }
        }
    },
    "jobs": {"spec": {"suspend": True}},
    "new events": {},
}
_CLUSTER = {
    "nodes": ("bayplan-n", "bayplan-p"),
    "priorityclasses": ("bayplan-c",),
    "resourceslices": ("bayplan-s",),
    "storageclasses": ("bayplan-sc",),
}
_RESULT = {"request": "r", "driver": "gpu.example.com", "pool": "p", "device": "d"}
_ALLOCATION = {"devices": {"results": [_RESULT]}}


def set_up(client: Client) -> bool:
    """Make the objects that rows name; return whether the server has PodGroups."""

    def create(plural: str, **changes: Any) -> None:
        answer = client.post(path_of(plural), made(plural, **changes))
        assert answer.code == 201, answer

    create("namespaces", name=NS)
    assert client.post(CRDS, _WIDGET).code == 201
    create("nodes", name="bayplan-n")
    cidr = "10.0.0.0/24"
    spec = {"providerID": "a", "podCIDR": cidr, "podCIDRs": [cidr]}
    create("nodes", name="bayplan-p", spec=spec)
    for plural in ("priorityclasses", "resourceslices", "storageclasses"):
        create(plural, name=_CLUSTER[plural][0])
    for name, more in _PODS.items():
        meta = {"finalizers": ["example.com/x"]} if name == "going" else {}
        create("pods", name=name, meta=meta, spec={**_OF_NOBODY, **more})
    client.delete(f"{CORE}/pods/going", gracePeriodSeconds=0)
    has_gangs = client.get(path_of("podgroups")).code == 200
    for plural, changes in _KEPT.items():
        if has_gangs or plural not in ("podgroups", "workloads"):
            create(plural, name="kept", **changes)
    create("configmaps", name="fixed", immutable=True)
    for name in ("allocated", "reserved"):
        create("resourceclaims", name=name)
        users = [{"resource": "pods", "name": "a", "uid": "a"}] if name == "reserved" else []
        status = {"allocation": _ALLOCATION, "reservedFor": users}
        path = f"{path_of('resourceclaims')}/{name}/status"
        assert client.patch(path, {"status": status}).code == 200
    widget = made("widgets", spec={"size": 1, "fixed": "a"})
    widget["metadata"]["name"] = "kept"
    for _ in range(100):
        if client.post(WIDGETS, widget).code == 201:
            break
        time.sleep(0.1)
    return has_gangs


def tear_down(client: Client) -> None:
    """Remove what ``set_up`` made."""
    client.patch(f"{CORE}/pods/going", {"metadata": {"finalizers": None}})
    client.delete(f"{CORE}/pods", gracePeriodSeconds=0)
    client.delete(f"{CRDS}/widgets.example.com")
    for plural, names in _CLUSTER.items():
        for name in names:
            client.delete(f"{path_of(plural)}/{name}")
    client.delete(f"/api/v1/namespaces/{NS}")

"""A migration on a cluster: what its plan needs is read, and one namespace is moved by labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bayplan.admission import MOVED_FROM, SCHEDULER
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.transport import MERGE_PATCH, Transport
from bayplan.errors import BayplanError, Forbidden, NotFound
from bayplan.migration.plan import Plan, mounted, plan_of

__all__ = ["Moved", "move", "read_plan", "take_back"]

_PAGE = "500"
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SHARDS = "/apis/kai.scheduler/v1/schedulingshards"
_POLICY = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/bayplan-scheduler-name"
_DEFAULT = "default-scheduler"


class Moved(msgspec.Struct, frozen=True):
    """A namespace whose new pods another scheduler gets.

    :ivar before: the schedulerName that is replaced, "" for pods without one.
    :ivar pods: those that are there, by schedulerName; they stay as they are.
    """

    namespace: str
    before: str
    pods: Mapping[str, int]


async def read_plan(kubeconfig: Path | None, context: str) -> Plan:
    """Return what becomes of the other schedulers of a cluster.

    :raises BayplanError: when the cluster cannot be reached, or may not be read.
    """
    transport = Transport(Credentials(kubeconfig, context))
    try:
        workloads = []
        for kind in _WORKLOADS:
            # Items of a list do not say their kind.
            found = await _listed(transport, f"/apis/apps/v1/{kind.lower()}s")
            workloads += [{**one, "kind": kind} for one in found]
        definitions = await _listed(transport, _DEFINITIONS)
        names = {key for workload in workloads for key in mounted(workload)}
        config_maps = {}
        problems = []
        for key in sorted(names):
            namespace, _, name = key.partition("/")
            path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
            try:
                config_maps[key] = json.loads(await transport.request("GET", path))
            except (Forbidden, NotFound) as exc:
                problems.append(f"ConfigMap {key}: {exc}")
        try:
            shards = await _listed(transport, _SHARDS)
        except NotFound:
            shards = []
    finally:
        await transport.close()
    plan = plan_of(workloads, definitions, config_maps, shards)
    return Plan(plan.running, plan.falling, plan.conversions, (*plan.problems, *problems))


async def move(kubeconfig: Path | None, context: str, namespace: str, scheduler: str) -> Moved:
    """Give the new pods of a namespace to a scheduler; pods that are there stay as they are.

    What most of its pods name, if it is not the scheduler itself, is replaced.

    :raises BayplanError: when the policies are not there, or the cluster refuses it.
    """
    transport = Transport(Credentials(kubeconfig, context))
    try:
        try:
            await transport.request("GET", _POLICY)
        except NotFound:
            raise BayplanError(
                "the policy bayplan-scheduler-name is not there: "
                "kubectl apply -f configs/admission, or admission.enabled of the chart"
            ) from None
        found = await _listed(transport, f"/api/v1/namespaces/{namespace}/pods")
        pods = Counter(one["spec"].get("schedulerName", _DEFAULT) for one in found)
        others = [name for name, _ in pods.most_common() if name not in (_DEFAULT, scheduler)]
        before = others[0] if others else await _label(transport, namespace, MOVED_FROM)
        await _set(transport, namespace, {SCHEDULER: scheduler, MOVED_FROM: before or None})
    finally:
        await transport.close()
    return Moved(namespace, before, dict(pods))


async def take_back(kubeconfig: Path | None, context: str, namespace: str) -> bool:
    """Let new pods of a namespace have their own scheduler again; return whether it was moved.

    :raises BayplanError: when the cluster cannot be reached, or refuses it.
    """
    transport = Transport(Credentials(kubeconfig, context))
    try:
        moved = bool(await _label(transport, namespace, SCHEDULER))
        await _set(transport, namespace, {SCHEDULER: None, MOVED_FROM: None})
    finally:
        await transport.close()
    return moved


async def _label(transport: Transport, namespace: str, name: str) -> str:
    content = json.loads(await transport.request("GET", f"/api/v1/namespaces/{namespace}"))
    return str((content["metadata"].get("labels") or {}).get(name, ""))


async def _set(transport: Transport, namespace: str, labels: Mapping[str, str | None]) -> None:
    body = json.dumps({"metadata": {"labels": labels}}).encode()
    await transport.request("PATCH", f"/api/v1/namespaces/{namespace}", body, MERGE_PATCH)


async def _listed(transport: Transport, path: str) -> list[Any]:
    """Return all objects of a collection, a page at a time."""
    found: list[Any] = []
    query = {"limit": _PAGE}
    while True:
        content = json.loads(await transport.request("GET", path, query=query))
        found += content["items"]
        token = content["metadata"].get("continue", "")
        if not token:
            return found
        query = {"limit": _PAGE, "continue": token}

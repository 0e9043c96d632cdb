"""A look at a cluster as a new operator needs it: what works, what does not, and what to do."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from bayplan.api import KINDS, Kind
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.resources import is_required, watched
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import ClusterError, Forbidden, NotFound
from bayplan.live.leases import SchedulerLease, find_leases
from bayplan.live.migration import read_plan
from bayplan.naming import counted, listed

__all__ = ["Finding", "Level", "examine"]

Level = Literal["ok", "warning", "failure"]
_OLDEST, _TESTED = (1, 21), (1, 36)
"""policy/v1 is the newest API that is needed; tests run against the other."""
_CLOCK_SECONDS = 5.0
"""Leases, deadlines and usage go by clocks; a Lease is renewed within ten seconds."""
_LEASE_SECONDS = 30.0
_SHOWN = 4
_REVIEW = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_WRITES = (
    ("create", "", "pods/binding"),
    ("create", "", "pods/eviction"),
    ("patch", "", "pods/status"),
    ("create", "", "events"),
)
"""What every scheduler writes, as verb, group and resource."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at: how it is, and what helps ("" if nothing has to)."""

    level: Level
    about: str
    text: str
    remedy: str = ""


async def examine(kubeconfig: Path | None, context: str, account: str) -> AsyncIterator[Finding]:
    """Yield what is found, the most basic first.

    :param account: the scheduler's service account, as ``NAMESPACE/NAME``.
    :raises BayplanError: when the cluster cannot be reached at all.
    """
    transport = Transport(Credentials(kubeconfig, context))
    try:
        yield await _version(transport)
        yield await _clock(transport)
        yield await _nodes(transport)
        leases = await find_leases(transport, None)
        yield _leader(leases)
        yield await _waiting(transport, leases)
        yield await _rights(transport, account)
        async for one in _kinds(transport):
            yield one
    finally:
        await transport.close()
    plan = await read_plan(kubeconfig, context)
    others = Counter(one.component.system for one in plan.running)
    if others:
        yield Finding(
            "warning",
            "other systems",
            ", ".join(f"{system} ({counted(n, 'component')})" for system, n in others.items()),
            '"bayplan migrate plan" says which may go, and which stay',
        )
    else:
        yield Finding("ok", "other systems", "none runs here")


async def _asked(transport: Transport, path: str, body: Mapping[str, Any] | None = None) -> Any:
    sent = None if body is None else json.dumps(body).encode()
    return json.loads(await transport.request("GET" if body is None else "POST", path, sent))


async def _version(transport: Transport) -> Finding:
    text = str((await _asked(transport, "/version")).get("gitVersion", ""))
    numbers = re.match(r"v(\d+)\.(\d+)", text)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    about, where = "Kubernetes", f"{text} at {transport.url}"
    if version < _OLDEST:
        need = ".".join(map(str, _OLDEST))
        return Finding("failure", about, where, f"bayplan needs {need} or newer, for policy/v1")
    if version > _TESTED:
        tested = ".".join(map(str, _TESTED))
        return Finding(
            "warning", about, where, f"newer than {tested}, which bayplan is tested with"
        )
    return Finding("ok", about, where)


async def _clock(transport: Transport) -> Finding:
    """Compare this machine's clock with the API server's."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await _asked(
            transport, "/apis/authentication.k8s.io/v1/selfsubjectreviews", review
        )
        there = datetime.fromisoformat(answer["metadata"]["creationTimestamp"])
    except (ClusterError, KeyError, TypeError, ValueError):
        return Finding("warning", "clock", "the API server does not tell its time")
    # Its time is in whole seconds.
    seconds = abs((datetime.now(UTC) - there).total_seconds() - 0.5)
    if seconds > _CLOCK_SECONDS:
        text = f"{seconds:.0f} s away from the API server's"
        return Finding("failure", "clock", text, "set this machine's clock by NTP")
    return Finding("ok", "clock", "as the API server's")


async def _nodes(transport: Transport) -> Finding:
    nodes = (await _asked(transport, "/api/v1/nodes"))["items"]
    if not nodes:
        return Finding("failure", "nodes", "there are none")
    gpus: Counter[str] = Counter()
    silent = []
    for node in nodes:
        status = node.get("status") or {}
        for name, amount in (status.get("allocatable") or {}).items():
            if name.endswith("/gpu") and str(amount).isdecimal():
                gpus[name] += int(amount)
        conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
        if conditions.get("Ready") != "True":
            silent.append(node["metadata"]["name"])
    text = ", ".join([counted(len(nodes), "node"), *(f"{n} {name}" for name, n in gpus.items())])
    if silent:
        which = f"{len(silent)} not ready: {listed(silent, _SHOWN)}"
        return Finding("warning", "nodes", f"{text}; {which}", "kubectl describe node says why")
    if not gpus:
        return Finding("ok", "nodes", f"{text}, no GPUs")
    return Finding("ok", "nodes", text)


def _leader(leases: Sequence[SchedulerLease]) -> Finding:
    if not leases:
        return Finding(
            "failure",
            "scheduler",
            "none runs here",
            "helm install bayplan configs/chart/bayplan --namespace bayplan-system "
            "--create-namespace",
        )
    best = leases[0]
    names = listed(best.scheduler_names, _SHOWN) or "nobody's pods"
    try:
        renewed = datetime.fromisoformat(best.renewed)
        silent = (datetime.now(UTC) - renewed).total_seconds() > _LEASE_SECONDS
    except (TypeError, ValueError):
        silent = True
    if not best.holder or silent:
        return Finding(
            "failure",
            "scheduler",
            f"nobody leads: Lease {best} was last renewed at {best.renewed or 'no time'}",
            f"kubectl -n {best.namespace} get pods, and their logs",
        )
    return Finding("ok", "scheduler", f"{best.holder} leads, for {names}")


async def _waiting(transport: Transport, leases: Iterable[SchedulerLease]) -> Finding:
    """Look for pods whose scheduler nobody is."""
    known = {name for lease in leases for name in lease.scheduler_names} | {"default-scheduler"}
    query = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
    content = json.loads(await transport.request("GET", "/api/v1/pods", query=query))
    names = Counter(pod["spec"].get("schedulerName", "") for pod in content["items"])
    unknown = {name: count for name, count in names.items() if name not in known}
    waiting = f"{counted(sum(names.values()), 'pod')} without a node"
    if not unknown:
        return Finding("ok", "waiting", waiting)
    which = ", ".join(f'{count} for "{name}"' for name, count in sorted(unknown.items()))
    return Finding(
        "warning",
        "waiting",
        f"{waiting}, of these {which}, which no scheduler of bayplan's is",
        "give a profile this schedulerName, or the pods another one",
    )


async def _rights(transport: Transport, account: str) -> Finding:
    """Ask whether the scheduler's account may do what every scheduler does."""
    namespace, _, name = account.partition("/")
    asked = [("list", k.group, k.plural) for k in watched() if is_required(k)]
    missing = []
    for verb, group, resource in [*asked, *_WRITES]:
        resource, _, part = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": resource, "subresource": part}
        spec = {
            "user": f"system:serviceaccount:{namespace}:{name}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"],
            "resourceAttributes": attributes,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        try:
            allowed = (await _asked(transport, _REVIEW, body))["status"]["allowed"]
        except Forbidden:
            text = "you may not ask what others may do"
            return Finding("warning", "rights", text, "ask as an administrator")
        if not allowed:
            missing.append(f"{verb} {resource}{'/' * bool(part)}{part}")
    if missing:
        return Finding(
            "failure",
            "rights",
            f"ServiceAccount {account} may not {listed(missing, _SHOWN)}",
            "install the chart, or kubectl apply -f configs/deploy/rbac.yaml",
        )
    return Finding("ok", "rights", f"ServiceAccount {account} may do what schedulers do")


async def _kinds(transport: Transport) -> AsyncIterator[Finding]:
    """Compare the versions of other systems' kinds that are served with those that are read."""
    served = 0
    for group, kinds in _by_group().items():
        try:
            answer = await _asked(transport, f"/apis/{group}")
        except NotFound:
            continue
        versions = {one["version"] for one in answer["versions"]}
        served += 1
        read = {version for kind in kinds for version in kind.versions}
        if not versions & read:
            yield Finding(
                "failure",
                "kinds",
                f"{group} is served in {listed(sorted(versions), _SHOWN)} only",
                f"bayplan reads {listed(sorted(read), _SHOWN)}: update one of them",
            )
    yield Finding("ok", "kinds", f"{counted(served, 'group')} of other systems' kinds are served")


def _by_group() -> Mapping[str, list[Kind]]:
    found: dict[str, list[Kind]] = {}
    for kind in KINDS.values():
        # Groups of Kubernetes itself come with its version.
        if ("." in kind.group and not kind.group.endswith(".k8s.io")) or "x-k8s.io" in kind.group:
            found.setdefault(kind.group, []).append(kind)
    return found
